! Outlast for Fortran: a key-value store in the memories of the processes of a parallel program,
! which outlasts the death of any of them. This module wraps outlast.h; compile it with the program
! and link with -loutlast.
!
!     use outlast
!     type(outlast_job) :: job
!     type(outlast_store) :: store
!     real(8) :: grid(100, 100)
!     call outlast_join(job)
!     call outlast_open(job, store)
!     call outlast_put(store, "grid", grid)
!     call outlast_get(store, "grid", grid)
!     call outlast_close(store)
!     call outlast_leave(job)
!
! Errors: each call has an optional last argument `ierr`, which receives a code of outlast.h:
! outlast_ok, another answer such as outlast_absent, or a negative code of an error. Without `ierr`
! an error ends the program with its message. outlast_message() returns the message of the last
! call that failed.
!
! Values: integers of 4 and 8 bytes, reals of 4 and 8 bytes, and character strings; scalars and
! arrays of up to three dimensions. The bytes are stored as they are in memory. A get needs a
! variable of the length of the value: another length is outlast_wrong_type, and the variable is
! undefined then.
module outlast
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64, error_unit
  implicit none
  private

  ! The codes of outlast.h.
  integer, parameter, public :: outlast_ok = 0
  integer, parameter, public :: outlast_absent = 1
  integer, parameter, public :: outlast_died = 2
  integer, parameter, public :: outlast_abandoned = 3
  integer, parameter, public :: outlast_invalid = -1
  integer, parameter, public :: outlast_not_joined = -2
  integer, parameter, public :: outlast_data_lost = -3
  integer, parameter, public :: outlast_timeout = -4
  integer, parameter, public :: outlast_conflict = -5
  integer, parameter, public :: outlast_aborted = -6
  integer, parameter, public :: outlast_over = -7
  integer, parameter, public :: outlast_locked = -8
  integer, parameter, public :: outlast_out_of_memory = -9
  integer, parameter, public :: outlast_too_small = -10
  integer, parameter, public :: outlast_wrong_type = -11
  integer, parameter, public :: outlast_closed = -12
  integer, parameter, public :: outlast_corrupt = -13
  integer, parameter, public :: outlast_failed = -14
  integer, parameter, public :: outlast_nested = -15
  integer, parameter, public :: outlast_revoked = -16
  integer, parameter, public :: outlast_recovery_failed = -17
  integer, parameter, public :: outlast_already_open = -18
  integer, parameter, public :: outlast_forked = -19
  integer, parameter, public :: outlast_proc_failed = -20
  integer, parameter, public :: outlast_proc_failed_pending = -21
  integer, parameter, public :: outlast_interrupted = -22
  integer, parameter, public :: outlast_lock_lost = -23
  integer, parameter, public :: outlast_not_locked = -24
  integer, parameter, public :: outlast_still_locked = -25
  integer, parameter, public :: outlast_busy = -26
  integer, parameter, public :: outlast_rolled_back = -27
  integer, parameter, public :: outlast_seat_failed = -28

  ! The membership of this process.
  type, public :: outlast_job
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_job

  ! A store.
  type, public :: outlast_store
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_store

  ! A transaction.
  type, public :: outlast_tx
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_tx

  ! A held lock.
  type, public :: outlast_lock_guard
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_lock_guard

  ! A key, for the lists that outlast_keys_of and outlast_scan return.
  type, public :: outlast_key
    character(len=:), allocatable :: name
  end type outlast_key

  ! outlast_options of outlast.h. Zero is the default of each option; struct_size stays as it is.
  type, bind(C), public :: outlast_options
    integer(c_size_t) :: struct_size = 64
    integer(c_int32_t) :: replicas = 0
    integer(c_int32_t) :: allow_fewer = 0
    integer(c_int64_t) :: expected_keys = 0
    integer(c_int32_t) :: checksums = 0
    integer(c_int32_t) :: global_mode = 0
    integer(c_int32_t) :: salvage = 0
    integer(c_int32_t) :: sole_writers = 0
    type(c_ptr) :: name = c_null_ptr
    integer(c_int32_t) :: partitions = 0
    integer(c_int32_t) :: repair_share = 0
    integer(c_int64_t) :: slab_len_max = 0
  end type outlast_options

  ! A version of a key that stays readable while the key changes.
  type, public :: outlast_pin
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_pin

  ! A folder of snapshots.
  type, public :: outlast_snapshots
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_snapshots

  ! Region checkpoints: memory by name, saved by all members together or by none.
  type, public :: outlast_regions
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_regions

  ! A communicator: a group of members that exchange messages and recover together, by the rules of
  ! ULFM. A rank is the number of a member in it.
  type, public :: outlast_comm
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_comm

  ! A receive that was started.
  type, public :: outlast_request
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_request

  ! An operation on a window that was started.
  type, public :: outlast_window_request
    type(c_ptr) :: handle = c_null_ptr
  end type outlast_window_request

  ! A window: memory that the members of a communicator show to each other.
  type, public :: outlast_window
    type(c_ptr) :: handle = c_null_ptr
    integer, private :: size = 0
  end type outlast_window

  ! The structures of outlast.h of these names. struct_size stays as it is.
  type, bind(C), public :: outlast_latency
    integer(c_int64_t) :: samples = 0, p50_ns = 0, p99_ns = 0, max_ns = 0
  end type outlast_latency

  type, bind(C), public :: outlast_stats
    integer(c_size_t) :: struct_size = 96
    integer(c_int64_t) :: replicas_repaired = 0, records_repaired = 0, repairs_taken_over = 0
    type(outlast_latency) :: put, get
  end type outlast_stats

  type, bind(C), public :: outlast_totals
    integer(c_size_t) :: struct_size = 48
    integer(c_int64_t) :: keys = 0, key_bytes = 0, value_bytes = 0
    integer(c_int64_t) :: replicas_missing = 0, partitions_lost = 0
  end type outlast_totals

  type, bind(C), public :: outlast_memory
    integer(c_size_t) :: struct_size = 48
    integer(c_int64_t) :: values = 0, records = 0, free = 0, held_by_living = 0, held_by_dead = 0
  end type outlast_memory

  type, bind(C), public :: outlast_snapshot_options
    integer(c_size_t) :: struct_size = 32
    integer(c_int64_t) :: keep = 0, bytes_per_second = 0, freeze_limit_ms = 0
  end type outlast_snapshot_options

  type, bind(C), public :: outlast_snapshot
    integer(c_size_t) :: struct_size = 40
    integer(c_int64_t) :: generation = 0, records = 0, bytes = 0, frozen_ns = 0
  end type outlast_snapshot

  type, bind(C), public :: outlast_region_options
    integer(c_size_t) :: struct_size = 40
    integer(c_int64_t) :: bytes = 0
    integer(c_int32_t) :: set = 0, lose = 0, apart_depth = 0, strict = 0, piece = 0, room = 0
  end type outlast_region_options

  type, bind(C), public :: outlast_restored
    integer(c_int32_t) :: rank = 0, size = 0
    integer(c_int64_t) :: version = 0
  end type outlast_restored

  ! How two numbers are combined. The last three are for words of windows alone.
  integer, parameter, public :: outlast_op_and = 0
  integer, parameter, public :: outlast_op_or = 1
  integer, parameter, public :: outlast_op_min = 2
  integer, parameter, public :: outlast_op_max = 3
  integer, parameter, public :: outlast_op_sum = 4
  integer, parameter, public :: outlast_op_xor = 5
  integer, parameter, public :: outlast_op_replace = 6
  integer, parameter, public :: outlast_op_keep = 7

  ! How a lock of a window is held.
  integer, parameter, public :: outlast_lock_shared = 1
  integer, parameter, public :: outlast_lock_exclusive = 2

  ! Any source, or any tag.
  integer, parameter, public :: outlast_any = -1
  ! For outlast_region_read: the regions of a name of all owners, one after the other.
  integer, parameter, public :: outlast_all = -1

  public :: outlast_join, outlast_leave, outlast_me, outlast_members
  public :: outlast_living, outlast_barrier, outlast_open, outlast_close, outlast_message
  public :: outlast_put, outlast_get, outlast_exists, outlast_delete, outlast_add, outlast_length
  public :: outlast_wait_for, outlast_adopt, outlast_keys_of, outlast_scan
  public :: outlast_epoch, outlast_next_death, outlast_accept_loss
  public :: outlast_lock, outlast_unlock
  public :: outlast_tx_begin, outlast_tx_put, outlast_tx_get, outlast_tx_delete, outlast_tx_add
  public :: outlast_tx_adopt, outlast_tx_commit, outlast_tx_abort, outlast_tx_retry, outlast_tx_free
  public :: outlast_flush, outlast_put_nb, outlast_pin_read, outlast_pin_free, outlast_get_stats
  public :: outlast_get_totals, outlast_get_memory, outlast_snapshot_take
  public :: outlast_snapshots_free, outlast_snapshot_restore, outlast_protect, outlast_restore
  public :: outlast_region_read, outlast_regions_close, outlast_comm_world
  public :: outlast_comm_duplicate, outlast_comm_split, outlast_comm_shrink, outlast_comm_free
  public :: outlast_comm_rank, outlast_comm_size, outlast_comm_member, outlast_comm_send
  public :: outlast_comm_receive, outlast_comm_probe, outlast_comm_start_receive
  public :: outlast_request_test, outlast_request_wait, outlast_request_free
  public :: outlast_comm_barrier, outlast_comm_broadcast, outlast_comm_allreduce
  public :: outlast_comm_revoke, outlast_comm_is_revoked, outlast_comm_agree
  public :: outlast_comm_failure_ack, outlast_comm_get_acked, outlast_comm_get_failed
  public :: outlast_comm_interrupt, outlast_comm_notify_failures, outlast_window_allocate
  public :: outlast_window_open, outlast_window_free, outlast_window_close
  public :: outlast_window_discard, outlast_window_len, outlast_window_put
  public :: outlast_window_put_blocking, outlast_window_get, outlast_window_accumulate
  public :: outlast_window_fetch_and_op, outlast_window_compare_and_swap, outlast_window_flush
  public :: outlast_window_flush_all, outlast_window_lock, outlast_window_lock_within
  public :: outlast_window_lock_all, outlast_window_unlock, outlast_window_unlock_all
  public :: outlast_window_force_unlock, outlast_window_holders, outlast_window_check_lock
  public :: outlast_window_revoke, outlast_window_is_revoked, outlast_window_get_failed
  public :: outlast_window_shrink, outlast_window_grow, outlast_window_attach
  public :: outlast_window_detach, outlast_pin_open, outlast_wait_repaired
  public :: outlast_snapshots_open, outlast_regions_open, outlast_checkpoint
  public :: outlast_region_note, outlast_fence, outlast_domain, outlast_hand_over
  public :: outlast_comm_rank_of, outlast_comm_start_send, outlast_request_wait_any
  public :: outlast_request_wait_all, outlast_window_start_put, outlast_window_start_get
  public :: outlast_window_start_accumulate, outlast_window_start_fetch_and_op
  public :: outlast_window_start_compare_and_swap, outlast_window_request_test
  public :: outlast_window_request_wait, outlast_window_request_free

  ! Puts a value. When the call returns, every replica holds the value.
  interface outlast_put
    module procedure put_text, put_i4, put_i4_1, put_i4_2, put_i4_3, put_i8, put_i8_1, put_i8_2, &
      put_i8_3, put_r4, put_r4_1, put_r4_2, put_r4_3, put_r8, put_r8_1, put_r8_2, put_r8_3
  end interface outlast_put

  ! Reads a value into a variable of its length. The code is outlast_absent if there is no such key.
  interface outlast_get
    module procedure get_text, get_i4, get_i4_1, get_i4_2, get_i4_3, get_i8, get_i8_1, get_i8_2, &
      get_i8_3, get_r4, get_r4_1, get_r4_2, get_r4_3, get_r8, get_r8_1, get_r8_2, get_r8_3
  end interface outlast_get

  ! Puts a value when the transaction is committed.
  interface outlast_tx_put
    module procedure tx_put_text, tx_put_i4, tx_put_i8, tx_put_r8, tx_put_r8_1
  end interface outlast_tx_put

  ! Reads a value as the transaction sees it.
  interface outlast_tx_get
    module procedure tx_get_text, tx_get_i4, tx_get_i8, tx_get_r8, tx_get_r8_1
  end interface outlast_tx_get

  ! Combines the values of all members, element by element, with an operation up to outlast_op_sum.
  interface outlast_comm_allreduce
    module procedure allreduce_i8, allreduce_r8
  end interface outlast_comm_allreduce

  interface
    integer(c_int) function c_join(job) bind(C, name="outlast_join")
      import
      type(c_ptr), intent(out) :: job
    end function c_join
    integer(c_int) function c_leave(job) bind(C, name="outlast_leave")
      import
      type(c_ptr), value :: job
    end function c_leave
    integer(c_int32_t) function c_me(job) bind(C, name="outlast_me")
      import
      type(c_ptr), value :: job
    end function c_me
    integer(c_int32_t) function c_members(job) bind(C, name="outlast_members")
      import
      type(c_ptr), value :: job
    end function c_members
    integer(c_int32_t) function c_living(job) bind(C, name="outlast_living")
      import
      type(c_ptr), value :: job
    end function c_living
    integer(c_int) function c_fence(job, member, milliseconds) bind(C, name="outlast_fence")
      import
      type(c_ptr), value :: job
      integer(c_int32_t), value :: member
      integer(c_int64_t), value :: milliseconds
    end function c_fence
    integer(c_int) function c_domain(job, member, buffer, capacity, length) &
        bind(C, name="outlast_domain")
      import
      type(c_ptr), value :: job
      integer(c_int32_t), value :: member
      character(kind=c_char), intent(out) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: length
    end function c_domain
    integer(c_int) function c_hand_over(store, milliseconds) bind(C, name="outlast_hand_over")
      import
      type(c_ptr), value :: store
      integer(c_int64_t), value :: milliseconds
    end function c_hand_over
    integer(c_int) function c_barrier(job) bind(C, name="outlast_barrier")
      import
      type(c_ptr), value :: job
    end function c_barrier
    integer(c_int) function c_open(job, options, store) bind(C, name="outlast_open")
      import
      type(c_ptr), value :: job
      type(outlast_options), intent(in) :: options
      type(c_ptr), intent(out) :: store
    end function c_open
    integer(c_int) function c_close(store) bind(C, name="outlast_close")
      import
      type(c_ptr), value :: store
    end function c_close
    type(c_ptr) function c_error() bind(C, name="outlast_error")
      import
    end function c_error
    integer(c_size_t) function c_strlen(text) bind(C, name="strlen")
      import
      type(c_ptr), value :: text
    end function c_strlen
    integer(c_int) function c_put(store, key, key_len, value, len, version) &
        bind(C, name="outlast_put")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(*), intent(in) :: value(*)
      integer(c_size_t), value :: len
      type(c_ptr), value :: version
    end function c_put
    integer(c_int) function c_get(store, key, key_len, buffer, capacity, len, version) &
        bind(C, name="outlast_get")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: len
      type(c_ptr), value :: version
    end function c_get
    integer(c_int) function c_exists(store, key, key_len) bind(C, name="outlast_exists")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
    end function c_exists
    integer(c_int) function c_delete(store, key, key_len) bind(C, name="outlast_delete")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
    end function c_delete
    integer(c_int) function c_add(store, key, key_len, delta, after) bind(C, name="outlast_add")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      integer(c_int64_t), value :: delta
      integer(c_int64_t), intent(out) :: after
    end function c_add
    integer(c_int) function c_wait(store, key, key_len, newer, milliseconds, member, buffer, &
        capacity, len, version) bind(C, name="outlast_wait")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(c_ptr), value :: newer
      integer(c_int64_t), value :: milliseconds
      integer(c_int64_t), value :: member
      type(c_ptr), value :: buffer
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: len
      type(c_ptr), value :: version
    end function c_wait
    integer(c_int) function c_scan(store, prefix, prefix_len, visit, context) &
        bind(C, name="outlast_scan")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: prefix(*)
      integer(c_size_t), value :: prefix_len
      type(c_funptr), value :: visit
      type(c_ptr), value :: context
    end function c_scan
    integer(c_int) function c_keys_of(store, member, visit, context) &
        bind(C, name="outlast_keys_of")
      import
      type(c_ptr), value :: store
      integer(c_int32_t), value :: member
      type(c_funptr), value :: visit
      type(c_ptr), value :: context
    end function c_keys_of
    integer(c_int) function c_adopt(store, key, key_len) bind(C, name="outlast_adopt")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
    end function c_adopt
    integer(c_int64_t) function c_epoch(store) bind(C, name="outlast_epoch")
      import
      type(c_ptr), value :: store
    end function c_epoch
    integer(c_int) function c_next_death(store, seen, member, heir) &
        bind(C, name="outlast_next_death")
      import
      type(c_ptr), value :: store
      integer(c_int64_t), intent(inout) :: seen
      integer(c_int32_t), intent(out) :: member
      integer(c_int32_t), intent(out) :: heir
    end function c_next_death
    integer(c_int) function c_accept_loss(store, partitions) bind(C, name="outlast_accept_loss")
      import
      type(c_ptr), value :: store
      integer(c_size_t), intent(out) :: partitions
    end function c_accept_loss
    integer(c_int) function c_lock(store, key, key_len, milliseconds, guard, abandoned) &
        bind(C, name="outlast_lock")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      integer(c_int64_t), value :: milliseconds
      type(c_ptr), intent(out) :: guard
      integer(c_int64_t), intent(out) :: abandoned
    end function c_lock
    integer(c_int) function c_unlock(guard) bind(C, name="outlast_unlock")
      import
      type(c_ptr), value :: guard
    end function c_unlock
    integer(c_int) function c_tx_begin(store, tx) bind(C, name="outlast_tx_begin")
      import
      type(c_ptr), value :: store
      type(c_ptr), intent(out) :: tx
    end function c_tx_begin
    integer(c_int) function c_tx_get(tx, key, key_len, buffer, capacity, len) &
        bind(C, name="outlast_tx_get")
      import
      type(c_ptr), value :: tx
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: len
    end function c_tx_get
    integer(c_int) function c_tx_put(tx, key, key_len, value, len) bind(C, name="outlast_tx_put")
      import
      type(c_ptr), value :: tx
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(*), intent(in) :: value(*)
      integer(c_size_t), value :: len
    end function c_tx_put
    integer(c_int) function c_tx_delete(tx, key, key_len) bind(C, name="outlast_tx_delete")
      import
      type(c_ptr), value :: tx
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
    end function c_tx_delete
    integer(c_int) function c_tx_add(tx, key, key_len, delta, after) bind(C, name="outlast_tx_add")
      import
      type(c_ptr), value :: tx
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      integer(c_int64_t), value :: delta
      integer(c_int64_t), intent(out) :: after
    end function c_tx_add
    integer(c_int) function c_tx_adopt(tx, key, key_len) bind(C, name="outlast_tx_adopt")
      import
      type(c_ptr), value :: tx
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
    end function c_tx_adopt
    integer(c_int) function c_tx_commit(tx) bind(C, name="outlast_tx_commit")
      import
      type(c_ptr), value :: tx
    end function c_tx_commit
    integer(c_int) function c_tx_abort(tx) bind(C, name="outlast_tx_abort")
      import
      type(c_ptr), value :: tx
    end function c_tx_abort
    integer(c_int) function c_tx_retry(tx) bind(C, name="outlast_tx_retry")
      import
      type(c_ptr), value :: tx
    end function c_tx_retry
    subroutine c_tx_free(tx) bind(C, name="outlast_tx_free")
      import
      type(c_ptr), value :: tx
    end subroutine c_tx_free
    integer(c_int) function c_flush(store) bind(C, name="outlast_flush")
      import
      type(c_ptr), value :: store
    end function c_flush
    integer(c_int) function c_put_nb(store, key, key_len, value, length) &
        bind(C, name="outlast_put_nb")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(*), intent(in) :: value(*)
      integer(c_size_t), value :: length
    end function c_put_nb
    integer(c_int) function c_pin_read(pin, from, buffer, length) bind(C, name="outlast_pin_read")
      import
      type(c_ptr), value :: pin
      integer(c_int64_t), value :: from
      type(*) :: buffer(*)
      integer(c_size_t), value :: length
    end function c_pin_read
    subroutine c_pin_free(pin) bind(C, name="outlast_pin_free")
      import
      type(c_ptr), value :: pin
    end subroutine c_pin_free
    integer(c_int) function c_get_stats(store, stats) bind(C, name="outlast_get_stats")
      import
      type(c_ptr), value :: store
      type(outlast_stats), intent(inout) :: stats
    end function c_get_stats
    integer(c_int) function c_get_totals(store, totals) bind(C, name="outlast_get_totals")
      import
      type(c_ptr), value :: store
      type(outlast_totals), intent(inout) :: totals
    end function c_get_totals
    integer(c_int) function c_get_memory(store, memory) bind(C, name="outlast_get_memory")
      import
      type(c_ptr), value :: store
      type(outlast_memory), intent(inout) :: memory
    end function c_get_memory
    integer(c_int) function c_snapshot_take(snapshots, snapshot) &
        bind(C, name="outlast_snapshot_take")
      import
      type(c_ptr), value :: snapshots
      type(outlast_snapshot), intent(inout) :: snapshot
    end function c_snapshot_take
    subroutine c_snapshots_free(snapshots) bind(C, name="outlast_snapshots_free")
      import
      type(c_ptr), value :: snapshots
    end subroutine c_snapshots_free
    integer(c_int) function c_snapshot_restore(store, path, share, shares, records, bytes) &
        bind(C, name="outlast_snapshot_restore")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: path(*)
      integer(c_size_t), value :: share
      integer(c_size_t), value :: shares
      integer(c_int64_t), intent(out) :: records
      integer(c_int64_t), intent(out) :: bytes
    end function c_snapshot_restore
    integer(c_int) function c_protect(regions, name, memory, length) &
        bind(C, name="outlast_protect")
      import
      type(c_ptr), value :: regions
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), value :: memory
      integer(c_size_t), value :: length
    end function c_protect
    integer(c_int) function c_restore(regions, at) bind(C, name="outlast_restore")
      import
      type(c_ptr), value :: regions
      type(outlast_restored), intent(inout) :: at
    end function c_restore
    integer(c_int) function c_region_read(regions, owner, name, offset, buffer, length) &
        bind(C, name="outlast_region_read")
      import
      type(c_ptr), value :: regions
      integer(c_int32_t), value :: owner
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: offset
      type(*) :: buffer(*)
      integer(c_size_t), value :: length
    end function c_region_read
    integer(c_int) function c_regions_close(regions) bind(C, name="outlast_regions_close")
      import
      type(c_ptr), value :: regions
    end function c_regions_close
    integer(c_int) function c_comm_world(job, comm) bind(C, name="outlast_comm_world")
      import
      type(c_ptr), value :: job
      type(c_ptr), intent(out) :: comm
    end function c_comm_world
    integer(c_int) function c_comm_duplicate(comm, made) bind(C, name="outlast_comm_duplicate")
      import
      type(c_ptr), value :: comm
      type(c_ptr), intent(out) :: made
    end function c_comm_duplicate
    integer(c_int) function c_comm_split(comm, color, key, made) &
        bind(C, name="outlast_comm_split")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: color
      integer(c_int64_t), value :: key
      type(c_ptr), intent(out) :: made
    end function c_comm_split
    integer(c_int) function c_comm_shrink(comm, made) bind(C, name="outlast_comm_shrink")
      import
      type(c_ptr), value :: comm
      type(c_ptr), intent(out) :: made
    end function c_comm_shrink
    integer(c_int) function c_comm_free(comm) bind(C, name="outlast_comm_free")
      import
      type(c_ptr), value :: comm
    end function c_comm_free
    integer(c_int32_t) function c_comm_rank(comm) bind(C, name="outlast_comm_rank")
      import
      type(c_ptr), value :: comm
    end function c_comm_rank
    integer(c_int32_t) function c_comm_size(comm) bind(C, name="outlast_comm_size")
      import
      type(c_ptr), value :: comm
    end function c_comm_size
    integer(c_int) function c_comm_member(comm, rank, member) bind(C, name="outlast_comm_member")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: rank
      integer(c_int32_t), intent(out) :: member
    end function c_comm_member
    integer(c_int) function c_comm_send(comm, to, tag, message, length) &
        bind(C, name="outlast_comm_send")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: to
      integer(c_int32_t), value :: tag
      type(*), intent(in) :: message(*)
      integer(c_size_t), value :: length
    end function c_comm_send
    integer(c_int) function c_comm_receive(comm, from, tag, buffer, capacity, length, sender, &
        sent_tag) &
        bind(C, name="outlast_comm_receive")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: from
      integer(c_int64_t), value :: tag
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: length
      integer(c_int32_t), intent(out) :: sender
      integer(c_int32_t), intent(out) :: sent_tag
    end function c_comm_receive
    integer(c_int) function c_comm_probe(comm, from, tag, length, sender, sent_tag) &
        bind(C, name="outlast_comm_probe")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: from
      integer(c_int64_t), value :: tag
      integer(c_size_t), intent(out) :: length
      integer(c_int32_t), intent(out) :: sender
      integer(c_int32_t), intent(out) :: sent_tag
    end function c_comm_probe
    integer(c_int) function c_comm_start_receive(comm, from, tag, request) &
        bind(C, name="outlast_comm_start_receive")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: from
      integer(c_int64_t), value :: tag
      type(c_ptr), intent(out) :: request
    end function c_comm_start_receive
    integer(c_int) function c_comm_start_send(comm, to, tag, message, length, request) &
        bind(C, name="outlast_comm_start_send")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: to
      integer(c_int32_t), value :: tag
      type(*), intent(in) :: message(*)
      integer(c_size_t), value :: length
      type(c_ptr), intent(out) :: request
    end function c_comm_start_send
    integer(c_int) function c_comm_rank_of(comm, member, rank) &
        bind(C, name="outlast_comm_rank_of")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: member
      integer(c_int32_t), intent(inout) :: rank
    end function c_comm_rank_of
    integer(c_int) function c_request_wait_any(requests, count, index) &
        bind(C, name="outlast_request_wait_any")
      import
      type(c_ptr), intent(in) :: requests(*)
      integer(c_size_t), value :: count
      integer(c_size_t), intent(inout) :: index
    end function c_request_wait_any
    integer(c_int) function c_request_wait_all(requests, count, statuses) &
        bind(C, name="outlast_request_wait_all")
      import
      type(c_ptr), intent(in) :: requests(*)
      integer(c_size_t), value :: count
      type(c_ptr), value :: statuses
    end function c_request_wait_all
    integer(c_int) function c_request_test(request, buffer, capacity, length, sender, sent_tag) &
        bind(C, name="outlast_request_test")
      import
      type(c_ptr), value :: request
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: length
      integer(c_int32_t), intent(out) :: sender
      integer(c_int32_t), intent(out) :: sent_tag
    end function c_request_test
    integer(c_int) function c_request_wait(request, buffer, capacity, length, sender, sent_tag) &
        bind(C, name="outlast_request_wait")
      import
      type(c_ptr), value :: request
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: length
      integer(c_int32_t), intent(out) :: sender
      integer(c_int32_t), intent(out) :: sent_tag
    end function c_request_wait
    subroutine c_request_free(request) bind(C, name="outlast_request_free")
      import
      type(c_ptr), value :: request
    end subroutine c_request_free
    integer(c_int) function c_comm_barrier(comm) bind(C, name="outlast_comm_barrier")
      import
      type(c_ptr), value :: comm
    end function c_comm_barrier
    integer(c_int) function c_comm_broadcast(comm, root, message, length) &
        bind(C, name="outlast_comm_broadcast")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: root
      type(*) :: message(*)
      integer(c_size_t), value :: length
    end function c_comm_broadcast
    integer(c_int) function c_comm_allreduce_i64(comm, op, values, count) &
        bind(C, name="outlast_comm_allreduce_i64")
      import
      type(c_ptr), value :: comm
      integer(c_int), value :: op
      integer(c_int64_t), intent(inout) :: values(*)
      integer(c_size_t), value :: count
    end function c_comm_allreduce_i64
    integer(c_int) function c_comm_allreduce_f64(comm, op, values, count) &
        bind(C, name="outlast_comm_allreduce_f64")
      import
      type(c_ptr), value :: comm
      integer(c_int), value :: op
      real(c_double), intent(inout) :: values(*)
      integer(c_size_t), value :: count
    end function c_comm_allreduce_f64
    integer(c_int) function c_comm_revoke(comm) bind(C, name="outlast_comm_revoke")
      import
      type(c_ptr), value :: comm
    end function c_comm_revoke
    integer(c_int) function c_comm_is_revoked(comm) bind(C, name="outlast_comm_is_revoked")
      import
      type(c_ptr), value :: comm
    end function c_comm_is_revoked
    integer(c_int) function c_comm_agree(comm, flags) bind(C, name="outlast_comm_agree")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), intent(inout) :: flags
    end function c_comm_agree
    integer(c_int) function c_comm_failure_ack(comm) bind(C, name="outlast_comm_failure_ack")
      import
      type(c_ptr), value :: comm
    end function c_comm_failure_ack
    integer(c_int) function c_comm_get_acked(comm, ranks, capacity, count) &
        bind(C, name="outlast_comm_get_acked")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(out) :: ranks(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: count
    end function c_comm_get_acked
    integer(c_int) function c_comm_get_failed(comm, ranks, capacity, count) &
        bind(C, name="outlast_comm_get_failed")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(out) :: ranks(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: count
    end function c_comm_get_failed
    integer(c_int) function c_comm_interrupt(comm, rank) bind(C, name="outlast_comm_interrupt")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: rank
    end function c_comm_interrupt
    integer(c_int) function c_comm_notify_failures(comm, ranks, count) &
        bind(C, name="outlast_comm_notify_failures")
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(in) :: ranks(*)
      integer(c_size_t), value :: count
    end function c_comm_notify_failures
    integer(c_int) function c_window_allocate(comm, length, window) &
        bind(C, name="outlast_window_allocate")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: length
      type(c_ptr), intent(out) :: window
    end function c_window_allocate
    integer(c_int) function c_window_open(comm, length, window) &
        bind(C, name="outlast_window_open")
      import
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: length
      type(c_ptr), intent(out) :: window
    end function c_window_open
    integer(c_int) function c_window_free(window) bind(C, name="outlast_window_free")
      import
      type(c_ptr), value :: window
    end function c_window_free
    integer(c_int) function c_window_close(window) bind(C, name="outlast_window_close")
      import
      type(c_ptr), value :: window
    end function c_window_close
    subroutine c_window_discard(window) bind(C, name="outlast_window_discard")
      import
      type(c_ptr), value :: window
    end subroutine c_window_discard
    integer(c_int) function c_window_len(window, target, length) &
        bind(C, name="outlast_window_len")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), intent(out) :: length
    end function c_window_len
    integer(c_int) function c_window_put(window, target, offset, data, length) &
        bind(C, name="outlast_window_put")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      type(*), intent(in) :: data(*)
      integer(c_size_t), value :: length
    end function c_window_put
    integer(c_int) function c_window_put_blocking(window, target, offset, data, length) &
        bind(C, name="outlast_window_put_blocking")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      type(*), intent(in) :: data(*)
      integer(c_size_t), value :: length
    end function c_window_put_blocking
    integer(c_int) function c_window_get(window, target, offset, buffer, length) &
        bind(C, name="outlast_window_get")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      type(*) :: buffer(*)
      integer(c_size_t), value :: length
    end function c_window_get
    integer(c_int) function c_window_accumulate_i64(window, target, offset, op, values, count) &
        bind(C, name="outlast_window_accumulate_i64")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_int), value :: op
      integer(c_int64_t), intent(in) :: values(*)
      integer(c_size_t), value :: count
    end function c_window_accumulate_i64
    integer(c_int) function c_window_start_put(window, target, offset, data, length, request) &
        bind(C, name="outlast_window_start_put")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      type(*), intent(in) :: data(*)
      integer(c_size_t), value :: length
      type(c_ptr), intent(out) :: request
    end function c_window_start_put
    integer(c_int) function c_window_start_get(window, target, offset, length, request) &
        bind(C, name="outlast_window_start_get")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_size_t), value :: length
      type(c_ptr), intent(out) :: request
    end function c_window_start_get
    integer(c_int) function c_window_start_accumulate_i64(window, target, offset, op, values, &
        count, request) bind(C, name="outlast_window_start_accumulate_i64")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_int), value :: op
      integer(c_int64_t), intent(in) :: values(*)
      integer(c_size_t), value :: count
      type(c_ptr), intent(out) :: request
    end function c_window_start_accumulate_i64
    integer(c_int) function c_window_start_fetch_and_op_i64(window, target, offset, op, value, &
        request) bind(C, name="outlast_window_start_fetch_and_op_i64")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_int), value :: op
      integer(c_int64_t), value :: value
      type(c_ptr), intent(out) :: request
    end function c_window_start_fetch_and_op_i64
    integer(c_int) function c_window_start_compare_and_swap(window, target, offset, expected, &
        desired, request) bind(C, name="outlast_window_start_compare_and_swap")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      type(c_ptr), intent(out) :: request
    end function c_window_start_compare_and_swap
    integer(c_int) function c_window_request_test(request, buffer, capacity, length) &
        bind(C, name="outlast_window_request_test")
      import
      type(c_ptr), value :: request
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(inout) :: length
    end function c_window_request_test
    integer(c_int) function c_window_request_wait(request, buffer, capacity, length) &
        bind(C, name="outlast_window_request_wait")
      import
      type(c_ptr), value :: request
      type(*) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(inout) :: length
    end function c_window_request_wait
    subroutine c_window_request_free(request) bind(C, name="outlast_window_request_free")
      import
      type(c_ptr), value :: request
    end subroutine c_window_request_free
    integer(c_int) function c_window_fetch_and_op_i64(window, target, offset, op, value, before) &
        bind(C, name="outlast_window_fetch_and_op_i64")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_int), value :: op
      integer(c_int64_t), value :: value
      integer(c_int64_t), intent(out) :: before
    end function c_window_fetch_and_op_i64
    integer(c_int) function c_window_compare_and_swap(window, target, offset, expected, &
        desired, before) &
        bind(C, name="outlast_window_compare_and_swap")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int64_t), value :: offset
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      integer(c_int64_t), intent(out) :: before
    end function c_window_compare_and_swap
    integer(c_int) function c_window_flush(window, target) bind(C, name="outlast_window_flush")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
    end function c_window_flush
    integer(c_int) function c_window_flush_all(window) bind(C, name="outlast_window_flush_all")
      import
      type(c_ptr), value :: window
    end function c_window_flush_all
    integer(c_int) function c_window_lock(window, target, kind) &
        bind(C, name="outlast_window_lock")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int), value :: kind
    end function c_window_lock
    integer(c_int) function c_window_lock_within(window, target, kind, milliseconds) &
        bind(C, name="outlast_window_lock_within")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int), value :: kind
      integer(c_int64_t), value :: milliseconds
    end function c_window_lock_within
    integer(c_int) function c_window_lock_all(window) bind(C, name="outlast_window_lock_all")
      import
      type(c_ptr), value :: window
    end function c_window_lock_all
    integer(c_int) function c_window_unlock(window, target) bind(C, name="outlast_window_unlock")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
    end function c_window_unlock
    integer(c_int) function c_window_unlock_all(window) bind(C, name="outlast_window_unlock_all")
      import
      type(c_ptr), value :: window
    end function c_window_unlock_all
    integer(c_int) function c_window_force_unlock(window, target, ranks, capacity, count) &
        bind(C, name="outlast_window_force_unlock")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int32_t), intent(out) :: ranks(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: count
    end function c_window_force_unlock
    integer(c_int) function c_window_holders(window, target, ranks, capacity, count) &
        bind(C, name="outlast_window_holders")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
      integer(c_int32_t), intent(out) :: ranks(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: count
    end function c_window_holders
    integer(c_int) function c_window_check_lock(window, target) &
        bind(C, name="outlast_window_check_lock")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), value :: target
    end function c_window_check_lock
    integer(c_int) function c_window_revoke(window) bind(C, name="outlast_window_revoke")
      import
      type(c_ptr), value :: window
    end function c_window_revoke
    integer(c_int) function c_window_is_revoked(window) bind(C, name="outlast_window_is_revoked")
      import
      type(c_ptr), value :: window
    end function c_window_is_revoked
    integer(c_int) function c_window_get_failed(window, ranks, capacity, count) &
        bind(C, name="outlast_window_get_failed")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), intent(out) :: ranks(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: count
    end function c_window_get_failed
    integer(c_int) function c_window_shrink(window, ranks, capacity, count) &
        bind(C, name="outlast_window_shrink")
      import
      type(c_ptr), value :: window
      integer(c_int32_t), intent(out) :: ranks(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: count
    end function c_window_shrink
    integer(c_int) function c_window_grow(window, length, now) bind(C, name="outlast_window_grow")
      import
      type(c_ptr), value :: window
      integer(c_int64_t), value :: length
      integer(c_int64_t), intent(out) :: now
    end function c_window_grow
    integer(c_int) function c_window_attach(window, length, offset) &
        bind(C, name="outlast_window_attach")
      import
      type(c_ptr), value :: window
      integer(c_int64_t), value :: length
      integer(c_int64_t), intent(out) :: offset
    end function c_window_attach
    integer(c_int) function c_window_detach(window, offset) bind(C, name="outlast_window_detach")
      import
      type(c_ptr), value :: window
      integer(c_int64_t), value :: offset
    end function c_window_detach
    integer(c_int) function c_pin_open(store, key, key_len, pin, length, version) &
        bind(C, name="outlast_pin_open")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: key_len
      type(c_ptr), intent(out) :: pin
      integer(c_int64_t), intent(out) :: length
      type(c_ptr), value :: version
    end function c_pin_open
    integer(c_int) function c_snapshots_open(store, folder, options, snapshots) &
        bind(C, name="outlast_snapshots_open")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: folder(*)
      type(outlast_snapshot_options), intent(in) :: options
      type(c_ptr), intent(out) :: snapshots
    end function c_snapshots_open
    integer(c_int) function c_regions_open(store, name, options, regions) &
        bind(C, name="outlast_regions_open")
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: name(*)
      type(outlast_region_options), intent(in) :: options
      type(c_ptr), intent(out) :: regions
    end function c_regions_open
    integer(c_int) function c_checkpoint(regions, version, note, note_len) &
        bind(C, name="outlast_checkpoint")
      import
      type(c_ptr), value :: regions
      integer(c_int64_t), value :: version
      character(kind=c_char), intent(in) :: note(*)
      integer(c_size_t), value :: note_len
    end function c_checkpoint
    integer(c_int) function c_region_note(regions, buffer, capacity, length) &
        bind(C, name="outlast_region_note")
      import
      type(c_ptr), value :: regions
      character(kind=c_char), intent(out) :: buffer(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: length
    end function c_region_note
    integer(c_int) function c_wait_repaired(store, milliseconds, replicas, partitions) &
        bind(C, name="outlast_wait_repaired")
      import
      type(c_ptr), value :: store
      integer(c_int64_t), value :: milliseconds
      integer(c_size_t), intent(out) :: replicas
      integer(c_size_t), intent(out) :: partitions
    end function c_wait_repaired
  end interface

  ! The keys of a listing that is under way.
  type :: key_list
    type(outlast_key), allocatable :: keys(:)
    integer :: count = 0
  end type key_list

contains

  ! ---- The job ----

  ! Joins the job in which this process was started.
  subroutine outlast_join(job, ierr)
    type(outlast_job), intent(out) :: job
    integer, intent(out), optional :: ierr
    call report(c_join(job%handle), ierr)
  end subroutine outlast_join

  ! Ends the membership of this process. Close the store before.
  subroutine outlast_leave(job, ierr)
    type(outlast_job), intent(inout) :: job
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_leave(job%handle)
    job%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_leave

  ! The number of this member, from 0.
  integer function outlast_me(job)
    type(outlast_job), intent(in) :: job
    outlast_me = int(c_me(job%handle))
  end function outlast_me

  ! The number of members with which the job began.
  integer function outlast_members(job)
    type(outlast_job), intent(in) :: job
    outlast_members = int(c_members(job%handle))
  end function outlast_members

  ! The number of members that are not known to be dead.
  integer function outlast_living(job)
    type(outlast_job), intent(in) :: job
    outlast_living = int(c_living(job%handle))
  end function outlast_living

  ! Returns when all living members have called it, whichever members die meanwhile.
  subroutine outlast_barrier(job, ierr)
    type(outlast_job), intent(in) :: job
    integer, intent(out), optional :: ierr
    call report(c_barrier(job%handle), ierr)
  end subroutine outlast_barrier

  ! ---- The store ----

  ! Makes sure that a member is dead: kills it if it lives, and waits for the proof.
  subroutine outlast_fence(job, member, milliseconds, ierr)
    type(outlast_job), intent(in) :: job
    integer, intent(in) :: member
    integer, intent(in) :: milliseconds
    integer, intent(out), optional :: ierr
    call report(c_fence(job%handle, int(member, c_int32_t), int(milliseconds, c_int64_t)), ierr)
  end subroutine outlast_fence

  ! The failure domain of a member, such as rack3/node17.
  subroutine outlast_domain(job, member, path, ierr)
    type(outlast_job), intent(in) :: job
    integer, intent(in) :: member
    character(len=:), allocatable, intent(out) :: path
    integer, intent(out), optional :: ierr
    character(kind=c_char) :: buffer(1024)
    integer(c_size_t) :: length, at
    integer(c_int) :: code
    length = 0
    code = c_domain(job%handle, int(member, c_int32_t), buffer, size(buffer, kind=c_size_t), length)
    if (code /= outlast_ok) length = 0
    allocate (character(len=length) :: path)
    do at = 1, length
      path(at:at) = buffer(at)
    end do
    call report(code, ierr)
  end subroutine outlast_domain

  ! Opens a store, which is empty. All members call it. A job may have several stores at a time,
  ! each under its own name; after outlast_close a store can be opened again.
  subroutine outlast_open(job, store, options, ierr, name)
    type(outlast_job), intent(in) :: job
    type(outlast_store), intent(out) :: store
    type(outlast_options), intent(in), optional :: options
    integer, intent(out), optional :: ierr
    character(len=*), intent(in), optional :: name
    type(outlast_options) :: defaults
    character(kind=c_char, len=:), allocatable, target :: text
    if (present(options)) defaults = options
    if (present(name)) then
      text = whole(name)
      defaults%name = c_loc(text)
    end if
    call report(c_open(job%handle, defaults, store%handle), ierr)
  end subroutine outlast_open

  ! Closes the store, after waiting for a bounded time until all living members close it.
  subroutine outlast_close(store, ierr)
    type(outlast_store), intent(inout) :: store
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_close(store%handle)
    store%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_close

  ! Leaves the job: hands the replicas of this member over to other members, and ends the membership
  ! with all its stores. outlast_timeout: call again.
  subroutine outlast_hand_over(store, milliseconds, ierr)
    type(outlast_store), intent(in) :: store
    integer, intent(in) :: milliseconds
    integer, intent(out), optional :: ierr
    call report(c_hand_over(store%handle, int(milliseconds, c_int64_t)), ierr)
  end subroutine outlast_hand_over

  ! The message of the last call that failed.
  function outlast_message() result(message)
    character(len=:), allocatable :: message
    message = copy_text(c_error())
  end function outlast_message

  ! Whether the key exists.
  logical function outlast_exists(store, key, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_exists(store%handle, key, len(key, c_size_t))
    outlast_exists = code == outlast_ok
    call report(code, ierr)
  end function outlast_exists

  ! The length of a value in bytes, or -1 if the key does not exist.
  integer(int64) function outlast_length(store, key, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    integer(c_size_t) :: length
    character(kind=c_char) :: nothing(1)
    code = c_get(store%handle, key, len(key, c_size_t), nothing, 0_c_size_t, length, c_null_ptr)
    outlast_length = -1
    if (code == outlast_ok .or. code == outlast_too_small) then
      outlast_length = int(length, int64)
      code = outlast_ok
    end if
    call report(code, ierr)
  end function outlast_length

  ! Deletes a key. The code is outlast_absent if it did not exist.
  subroutine outlast_delete(store, key, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer, intent(out), optional :: ierr
    call report(c_delete(store%handle, key, len(key, c_size_t)), ierr)
  end subroutine outlast_delete

  ! Adds to the number that the key holds, 0 if the key does not exist; `after` is the sum.
  subroutine outlast_add(store, key, delta, after, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(in) :: delta
    integer(int64), intent(out), optional :: after
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: sum
    integer(c_int) :: code
    code = c_add(store%handle, key, len(key, c_size_t), delta, sum)
    if (present(after) .and. code == outlast_ok) after = sum
    call report(code, ierr)
  end subroutine outlast_add

  ! Sleeps until the key exists, at most for `milliseconds`. The code is outlast_absent at the time
  ! limit, and outlast_died if `member` is dead and has not put the key.
  subroutine outlast_wait_for(store, key, milliseconds, member, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer, intent(in) :: milliseconds
    integer, intent(in), optional :: member
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: who
    integer(c_size_t) :: length
    integer(c_int) :: code
    who = -1
    if (present(member)) who = member
    code = c_wait(store%handle, key, len(key, c_size_t), c_null_ptr, &
                  int(max(milliseconds, 0), c_int64_t), who, c_null_ptr, 0_c_size_t, length, &
                  c_null_ptr)
    if (code == outlast_too_small) code = outlast_ok
    call report(code, ierr)
  end subroutine outlast_wait_for

  ! Makes this member the owner of a key. The code is outlast_absent if the key does not exist.
  subroutine outlast_adopt(store, key, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer, intent(out), optional :: ierr
    call report(c_adopt(store%handle, key, len(key, c_size_t)), ierr)
  end subroutine outlast_adopt

  ! The keys that a member owns.
  subroutine outlast_keys_of(store, member, keys, ierr)
    type(outlast_store), intent(in) :: store
    integer, intent(in) :: member
    type(outlast_key), allocatable, intent(out) :: keys(:)
    integer, intent(out), optional :: ierr
    type(key_list), target :: list
    integer(c_int) :: code
    allocate (list%keys(16))
    code = c_keys_of(store%handle, int(member, c_int32_t), c_funloc(collect_key), c_loc(list))
    keys = list%keys(:list%count)
    call report(code, ierr)
  end subroutine outlast_keys_of

  ! The keys that begin with a prefix.
  subroutine outlast_scan(store, prefix, keys, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: prefix
    type(outlast_key), allocatable, intent(out) :: keys(:)
    integer, intent(out), optional :: ierr
    type(key_list), target :: list
    integer(c_int) :: code
    allocate (list%keys(16))
    code = c_scan(store%handle, prefix, len(prefix, c_size_t), c_funloc(collect_key), c_loc(list))
    keys = list%keys(:list%count)
    call report(code, ierr)
  end subroutine outlast_scan

  ! ---- Deaths ----

  ! A number that changes with each death.
  integer(int64) function outlast_epoch(store)
    type(outlast_store), intent(in) :: store
    outlast_epoch = c_epoch(store%handle)
  end function outlast_epoch

  ! The next death after `seen`, which is advanced, and the member that takes over. `seen` begins
  ! with 0. The code is outlast_absent if there is no further death.
  subroutine outlast_next_death(store, seen, member, heir, ierr)
    type(outlast_store), intent(in) :: store
    integer(int64), intent(inout) :: seen
    integer, intent(out) :: member, heir
    integer, intent(out) :: ierr
    integer(c_int32_t) :: dead, next
    member = -1
    heir = -1
    ierr = int(c_next_death(store%handle, seen, dead, next))
    if (ierr == outlast_ok) then
      member = int(dead)
      heir = int(next)
    end if
  end subroutine outlast_next_death

  ! Makes lost partitions usable again, without their old contents.
  subroutine outlast_accept_loss(store, partitions, ierr)
    type(outlast_store), intent(in) :: store
    integer(int64), intent(out), optional :: partitions
    integer, intent(out), optional :: ierr
    integer(c_size_t) :: count
    integer(c_int) :: code
    code = c_accept_loss(store%handle, count)
    if (present(partitions) .and. code == outlast_ok) partitions = int(count, int64)
    call report(code, ierr)
  end subroutine outlast_accept_loss

  ! ---- Locks ----

  ! Takes the lock of a key. The code is outlast_locked if another holder kept it until the time
  ! limit. `abandoned` is the dead member that held the lock before, or -1.
  subroutine outlast_lock(store, key, milliseconds, guard, abandoned, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer, intent(in) :: milliseconds
    type(outlast_lock_guard), intent(out) :: guard
    integer, intent(out), optional :: abandoned
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: dead
    integer(c_int) :: code
    code = c_lock(store%handle, key, len(key, c_size_t), int(max(milliseconds, 0), c_int64_t), &
                  guard%handle, dead)
    if (present(abandoned) .and. code == outlast_ok) abandoned = int(dead)
    call report(code, ierr)
  end subroutine outlast_lock

  ! Releases a lock.
  subroutine outlast_unlock(guard, ierr)
    type(outlast_lock_guard), intent(inout) :: guard
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_unlock(guard%handle)
    guard%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_unlock

  ! ---- Transactions ----

  ! Begins a transaction. Work with it, then commit. A code outlast_aborted of any call means a
  ! conflict: call outlast_tx_retry and repeat the work.
  !
  !     call outlast_tx_begin(store, tx)
  !     do
  !       call outlast_tx_add(tx, "from", -1_int64, ierr=ierr)
  !       if (ierr == outlast_ok) call outlast_tx_add(tx, "to", 1_int64, ierr=ierr)
  !       if (ierr == outlast_ok) call outlast_tx_commit(tx, ierr)
  !       if (ierr /= outlast_aborted) exit
  !       call outlast_tx_retry(tx)
  !     end do
  !     call outlast_tx_free(tx)
  subroutine outlast_tx_begin(store, tx, ierr)
    type(outlast_store), intent(in) :: store
    type(outlast_tx), intent(out) :: tx
    integer, intent(out), optional :: ierr
    call report(c_tx_begin(store%handle, tx%handle), ierr)
  end subroutine outlast_tx_begin

  ! Deletes a key when the transaction is committed.
  subroutine outlast_tx_delete(tx, key, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer, intent(out), optional :: ierr
    call report(c_tx_delete(tx%handle, key, len(key, c_size_t)), ierr)
  end subroutine outlast_tx_delete

  ! Adds to a number when the transaction is committed.
  subroutine outlast_tx_add(tx, key, delta, after, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer(int64), intent(in) :: delta
    integer(int64), intent(out), optional :: after
    integer, intent(out), optional :: ierr
    integer(c_int64_t) :: sum
    integer(c_int) :: code
    code = c_tx_add(tx%handle, key, len(key, c_size_t), delta, sum)
    if (present(after) .and. code == outlast_ok) after = sum
    call report(code, ierr)
  end subroutine outlast_tx_add

  ! Makes this member the owner of a key when the transaction is committed.
  subroutine outlast_tx_adopt(tx, key, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer, intent(out), optional :: ierr
    call report(c_tx_adopt(tx%handle, key, len(key, c_size_t)), ierr)
  end subroutine outlast_tx_adopt

  ! Commits: all changes take effect together, or none does.
  subroutine outlast_tx_commit(tx, ierr)
    type(outlast_tx), intent(in) :: tx
    integer, intent(out), optional :: ierr
    call report(c_tx_commit(tx%handle), ierr)
  end subroutine outlast_tx_commit

  ! Aborts: no change takes effect.
  subroutine outlast_tx_abort(tx, ierr)
    type(outlast_tx), intent(in) :: tx
    integer, intent(out), optional :: ierr
    call report(c_tx_abort(tx%handle), ierr)
  end subroutine outlast_tx_abort

  ! Begins the work anew after outlast_aborted.
  subroutine outlast_tx_retry(tx, ierr)
    type(outlast_tx), intent(in) :: tx
    integer, intent(out), optional :: ierr
    call report(c_tx_retry(tx%handle), ierr)
  end subroutine outlast_tx_retry

  ! Frees the transaction. It is aborted if it was not committed.
  subroutine outlast_tx_free(tx)
    type(outlast_tx), intent(inout) :: tx
    call c_tx_free(tx%handle)
    tx%handle = c_null_ptr
  end subroutine outlast_tx_free

  ! ---- Batches, pins and figures ----

  ! Pins the current version of a key; `length` is its length. The code is outlast_absent if the key
  ! does not exist.
  subroutine outlast_pin_open(store, key, pin, length, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    type(outlast_pin), intent(out) :: pin
    integer(int64), intent(out) :: length
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    length = 0
    code = c_pin_open(store%handle, key, len(key, c_size_t), pin%handle, length, c_null_ptr)
    call report(code, ierr)
  end subroutine outlast_pin_open

  ! Waits until every partition that is not lost has all its replicas. The code is outlast_absent at
  ! the time limit; the counts are then those of the missing replicas and the lost partitions.
  subroutine outlast_wait_repaired(store, milliseconds, replicas_missing, partitions_lost, ierr)
    type(outlast_store), intent(in) :: store
    integer, intent(in) :: milliseconds
    integer(int64), intent(out), optional :: replicas_missing, partitions_lost
    integer, intent(out), optional :: ierr
    integer(c_size_t) :: replicas, partitions
    integer(c_int) :: code
    replicas = 0
    partitions = 0
    code = c_wait_repaired(store%handle, int(max(milliseconds, 0), c_int64_t), replicas, partitions)
    if (present(replicas_missing)) replicas_missing = int(replicas, int64)
    if (present(partitions_lost)) partitions_lost = int(partitions, int64)
    call report(code, ierr)
  end subroutine outlast_wait_repaired

  ! Waits until every replica holds the values of all earlier calls of outlast_put_nb of this
  ! member. The code is that of the first error since the last flush.
  subroutine outlast_flush(store, ierr)
    type(outlast_store), intent(in) :: store
    integer, intent(out), optional :: ierr
    call report(c_flush(store%handle), ierr)
  end subroutine outlast_flush

  ! Puts `length` bytes of an array without waiting for the replicas. outlast_flush reports
  ! errors.
  subroutine outlast_put_nb(store, key, value, length, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    type(*), intent(in) :: value(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_put_nb(store%handle, key, len(key, c_size_t), value, int(length, c_size_t)), &
        ierr)
  end subroutine outlast_put_nb

  ! Copies `length` bytes of the pinned version from `from` on into an array.
  subroutine outlast_pin_read(pin, from, buffer, length, ierr)
    type(outlast_pin), intent(in) :: pin
    integer(int64), intent(in) :: from
    type(*) :: buffer(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_pin_read(pin%handle, from, buffer, int(length, c_size_t)), ierr)
  end subroutine outlast_pin_read

  ! Ends the pin.
  subroutine outlast_pin_free(pin)
    type(outlast_pin), intent(inout) :: pin
    call c_pin_free(pin%handle)
    pin%handle = c_null_ptr
  end subroutine outlast_pin_free

  ! What this member has done since it opened the store.
  subroutine outlast_get_stats(store, stats, ierr)
    type(outlast_store), intent(in) :: store
    type(outlast_stats), intent(inout) :: stats
    integer, intent(out), optional :: ierr
    call report(c_get_stats(store%handle, stats), ierr)
  end subroutine outlast_get_stats

  ! What the whole store holds. The call reads all records.
  subroutine outlast_get_totals(store, totals, ierr)
    type(outlast_store), intent(in) :: store
    type(outlast_totals), intent(inout) :: totals
    integer, intent(out), optional :: ierr
    call report(c_get_totals(store%handle, totals), ierr)
  end subroutine outlast_get_totals

  ! What this member's memory is used for, in bytes. The call reads every block.
  subroutine outlast_get_memory(store, memory, ierr)
    type(outlast_store), intent(in) :: store
    type(outlast_memory), intent(inout) :: memory
    integer, intent(out), optional :: ierr
    call report(c_get_memory(store%handle, memory), ierr)
  end subroutine outlast_get_memory

  ! ---- Snapshots ----

  ! Opens a folder of snapshots, which all members reach and all members open.
  subroutine outlast_snapshots_open(store, folder, snapshots, options, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: folder
    type(outlast_snapshots), intent(out) :: snapshots
    type(outlast_snapshot_options), intent(in), optional :: options
    integer, intent(out), optional :: ierr
    type(outlast_snapshot_options) :: given
    if (present(options)) given = options
    call report(c_snapshots_open(store%handle, whole(folder), given, snapshots%handle), &
                ierr)
  end subroutine outlast_snapshots_open

  ! Takes a snapshot, at a single member, and waits until it is published. After an error, and
  ! whichever members die, earlier snapshots stand.
  subroutine outlast_snapshot_take(snapshots, snapshot, ierr)
    type(outlast_snapshots), intent(in) :: snapshots
    type(outlast_snapshot), intent(inout) :: snapshot
    integer, intent(out), optional :: ierr
    call report(c_snapshot_take(snapshots%handle, snapshot), ierr)
  end subroutine outlast_snapshot_take

  ! Frees the handle of a folder of snapshots.
  subroutine outlast_snapshots_free(snapshots)
    type(outlast_snapshots), intent(inout) :: snapshots
    call c_snapshots_free(snapshots%handle)
    snapshots%handle = c_null_ptr
  end subroutine outlast_snapshots_free

  ! Puts the records of a snapshot into the store: the share with this number, from 0, of `shares`
  ! equal shares. `path` is a folder of snapshots, of which the newest is taken, or a snapshot in
  ! it.
  subroutine outlast_snapshot_restore(store, path, share, shares, records, bytes, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: path
    integer(int64), intent(in) :: share
    integer(int64), intent(in) :: shares
    integer(int64), intent(out) :: records
    integer(int64), intent(out) :: bytes
    integer, intent(out), optional :: ierr
    call report(c_snapshot_restore(store%handle, whole(path), int(share, c_size_t), &
        int(shares, c_size_t), records, bytes), ierr)
  end subroutine outlast_snapshot_restore

  ! ---- Region checkpoints ----

  ! Opens the region checkpoints of a name. All members call it with equal options.
  subroutine outlast_regions_open(store, name, regions, options, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: name
    type(outlast_regions), intent(out) :: regions
    type(outlast_region_options), intent(in), optional :: options
    integer, intent(out), optional :: ierr
    type(outlast_region_options) :: given
    if (present(options)) given = options
    call report(c_regions_open(store%handle, whole(name), given, regions%handle), ierr)
  end subroutine outlast_regions_open

  ! Saves the regions of all members as a version, with a note. outlast_ok at one member: the
  ! regions of all can be restored. outlast_died, at all members: the version before stands.
  subroutine outlast_checkpoint(regions, version, note, ierr)
    type(outlast_regions), intent(in) :: regions
    integer(int64), intent(in) :: version
    character(len=*), intent(in), optional :: note
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    if (present(note)) then
      code = c_checkpoint(regions%handle, version, note, len(note, c_size_t))
    else
      code = c_checkpoint(regions%handle, version, "", 0_c_size_t)
    end if
    call report(code, ierr)
  end subroutine outlast_checkpoint

  ! The note of this member's regions that outlast_restore found.
  subroutine outlast_region_note(regions, note, ierr)
    type(outlast_regions), intent(in) :: regions
    character(len=:), allocatable, intent(out) :: note
    integer, intent(out), optional :: ierr
    character(kind=c_char) :: nothing(1)
    integer(c_size_t) :: length, again
    integer(c_int) :: code
    length = 0
    code = c_region_note(regions%handle, nothing, 0_c_size_t, length)
    allocate (character(len=length) :: note)
    if (code == outlast_too_small) code = c_region_note(regions%handle, note, length, again)
    call report(code, ierr)
  end subroutine outlast_region_note

  ! Makes `length` bytes of an array a region of this member; 0 bytes end that. The array has the
  ! attribute target and stays allocated until then. A part of an array with gaps between its
  ! elements has no single place in memory, and is outlast_invalid.
  subroutine outlast_protect(regions, name, memory, length, ierr)
    type(outlast_regions), intent(in) :: regions
    character(len=*), intent(in) :: name
    type(*), target, intent(in) :: memory(..)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    type(c_ptr) :: place
    place = c_null_ptr
    if (is_contiguous(memory)) place = c_loc(memory)
    call report(c_protect(regions%handle, whole(name), place, int(length, c_size_t)), ierr)
  end subroutine outlast_protect

  ! Finds the version that was saved last and fills the regions that this member protects. All
  ! living members call it, at the start and after each error. The code is outlast_absent if
  ! nothing was saved.
  subroutine outlast_restore(regions, at, ierr)
    type(outlast_regions), intent(in) :: regions
    type(outlast_restored), intent(inout) :: at
    integer, intent(out), optional :: ierr
    call report(c_restore(regions%handle, at), ierr)
  end subroutine outlast_restore

  ! Reads a part of a region of the version that was saved last, of the owner with this number,
  ! into an array; outlast_all reads the regions of all owners, one after the other.
  subroutine outlast_region_read(regions, owner, name, offset, buffer, length, ierr)
    type(outlast_regions), intent(in) :: regions
    integer, intent(in) :: owner
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: offset
    type(*) :: buffer(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_region_read(regions%handle, int(owner, c_int32_t), whole(name), &
        offset, buffer, int(length, c_size_t)), ierr)
  end subroutine outlast_region_read

  ! Closes the checkpoints, which are gone then. All living members call it.
  subroutine outlast_regions_close(regions, ierr)
    type(outlast_regions), intent(inout) :: regions
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_regions_close(regions%handle)
    regions%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_regions_close

  ! ---- Communicators ----

  ! The communicator of all members.
  subroutine outlast_comm_world(job, comm, ierr)
    type(outlast_job), intent(in) :: job
    type(outlast_comm), intent(out) :: comm
    integer, intent(out), optional :: ierr
    call report(c_comm_world(job%handle, comm%handle), ierr)
  end subroutine outlast_comm_world

  ! A communicator of the same members. Collective.
  subroutine outlast_comm_duplicate(comm, made, ierr)
    type(outlast_comm), intent(in) :: comm
    type(outlast_comm), intent(out) :: made
    integer, intent(out), optional :: ierr
    call report(c_comm_duplicate(comm%handle, made%handle), ierr)
  end subroutine outlast_comm_duplicate

  ! A communicator of the members that give equal colours, in the order of their keys. With the
  ! colour outlast_any there is none, and the code is outlast_absent. Collective.
  subroutine outlast_comm_split(comm, color, key, made, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: color
    integer, intent(in) :: key
    type(outlast_comm), intent(out) :: made
    integer, intent(out), optional :: ierr
    call report(c_comm_split(comm%handle, int(color, c_int64_t), int(key, c_int64_t), &
        made%handle), ierr)
  end subroutine outlast_comm_split

  ! A communicator of the living members, also if this communicator is revoked.
  subroutine outlast_comm_shrink(comm, made, ierr)
    type(outlast_comm), intent(in) :: comm
    type(outlast_comm), intent(out) :: made
    integer, intent(out), optional :: ierr
    call report(c_comm_shrink(comm%handle, made%handle), ierr)
  end subroutine outlast_comm_shrink

  ! Ends this member's use of the communicator.
  subroutine outlast_comm_free(comm, ierr)
    type(outlast_comm), intent(inout) :: comm
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_comm_free(comm%handle)
    comm%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_comm_free

  ! The rank of this member, from 0.
  integer function outlast_comm_rank(comm)
    type(outlast_comm), intent(in) :: comm
    outlast_comm_rank = int(c_comm_rank(comm%handle))
  end function outlast_comm_rank

  ! The number of ranks, the dead included.
  integer function outlast_comm_size(comm)
    type(outlast_comm), intent(in) :: comm
    outlast_comm_size = int(c_comm_size(comm%handle))
  end function outlast_comm_size

  ! The member that has a rank.
  subroutine outlast_comm_member(comm, rank, member, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: rank
    integer, intent(out) :: member
    integer, intent(out), optional :: ierr
    call report(c_comm_member(comm%handle, int(rank, c_int32_t), member), ierr)
  end subroutine outlast_comm_member

  ! The rank of a member; -1 and outlast_absent if it does not belong to the communicator.
  subroutine outlast_comm_rank_of(comm, member, rank, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: member
    integer, intent(out) :: rank
    integer, intent(out), optional :: ierr
    rank = -1
    call report(c_comm_rank_of(comm%handle, int(member, c_int32_t), rank), ierr)
  end subroutine outlast_comm_rank_of

  ! Sends `length` bytes of an array. They may be used again when the call returns.
  subroutine outlast_comm_send(comm, to, tag, message, length, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: to
    integer, intent(in) :: tag
    type(*), intent(in) :: message(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_comm_send(comm%handle, int(to, c_int32_t), int(tag, c_int32_t), message, &
        int(length, c_size_t)), ierr)
  end subroutine outlast_comm_send

  ! Receives the oldest message from `from` with `tag`, either of which may be outlast_any, into
  ! an array of `capacity` bytes. A call that fails loses no message: after outlast_too_small,
  ! which stores the length, it can be received again.
  subroutine outlast_comm_receive(comm, from, tag, buffer, capacity, length, sender, sent_tag, &
      ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: from
    integer, intent(in) :: tag
    type(*) :: buffer(*)
    integer(int64), intent(in) :: capacity
    integer(int64), intent(out) :: length
    integer, intent(out) :: sender
    integer, intent(out) :: sent_tag
    integer, intent(out), optional :: ierr
    call report(c_comm_receive(comm%handle, int(from, c_int64_t), int(tag, c_int64_t), buffer, &
        int(capacity, c_size_t), length, sender, sent_tag), ierr)
  end subroutine outlast_comm_receive

  ! The length, sender and tag of the message that a receive would take now; the code is
  ! outlast_absent if there is none.
  subroutine outlast_comm_probe(comm, from, tag, length, sender, sent_tag, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: from
    integer, intent(in) :: tag
    integer(int64), intent(out) :: length
    integer, intent(out) :: sender
    integer, intent(out) :: sent_tag
    integer, intent(out), optional :: ierr
    call report(c_comm_probe(comm%handle, int(from, c_int64_t), int(tag, c_int64_t), length, &
        sender, sent_tag), ierr)
  end subroutine outlast_comm_probe

  ! Starts a receive, to be completed with outlast_request_test or outlast_request_wait.
  subroutine outlast_comm_start_receive(comm, from, tag, request, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: from
    integer, intent(in) :: tag
    type(outlast_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_comm_start_receive(comm%handle, int(from, c_int64_t), int(tag, c_int64_t), &
        request%handle), ierr)
  end subroutine outlast_comm_start_receive

  ! A send as a request, which is complete at once.
  subroutine outlast_comm_start_send(comm, to, tag, message, length, request, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: to
    integer, intent(in) :: tag
    type(*), intent(in) :: message(*)
    integer(int64), intent(in) :: length
    type(outlast_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_comm_start_send(comm%handle, int(to, c_int32_t), int(tag, c_int32_t), message, &
        int(length, c_size_t), request%handle), ierr)
  end subroutine outlast_comm_start_send

  ! Waits until any of the requests is complete or held up. `number` is its index in the array, from
  ! 1; outlast_request_wait then copies its message out. outlast_over: all messages were taken.
  subroutine outlast_request_wait_any(requests, number, ierr)
    type(outlast_request), intent(in) :: requests(:)
    integer, intent(out) :: number
    integer, intent(out), optional :: ierr
    integer(c_size_t) :: found
    integer(c_int) :: code
    integer :: at
    found = 0
    code = c_request_wait_any([(requests(at)%handle, at=1, size(requests))], &
        size(requests, kind=c_size_t), found)
    number = int(found) + 1
    call report(code, ierr)
  end subroutine outlast_request_wait_any

  ! Waits until all requests are complete, or any has failed. outlast_request_test then copies each
  ! message out.
  subroutine outlast_request_wait_all(requests, ierr)
    type(outlast_request), intent(in) :: requests(:)
    integer, intent(out), optional :: ierr
    integer :: at
    call report(c_request_wait_all([(requests(at)%handle, at=1, size(requests))], &
        size(requests, kind=c_size_t), c_null_ptr), ierr)
  end subroutine outlast_request_wait_all

  ! Copies the message out if it has come; otherwise the code is outlast_absent.
  subroutine outlast_request_test(request, buffer, capacity, length, sender, sent_tag, ierr)
    type(outlast_request), intent(in) :: request
    type(*) :: buffer(*)
    integer(int64), intent(in) :: capacity
    integer(int64), intent(out) :: length
    integer, intent(out) :: sender
    integer, intent(out) :: sent_tag
    integer, intent(out), optional :: ierr
    call report(c_request_test(request%handle, buffer, int(capacity, c_size_t), length, sender, &
        sent_tag), ierr)
  end subroutine outlast_request_test

  ! Waits for the message and copies it out.
  subroutine outlast_request_wait(request, buffer, capacity, length, sender, sent_tag, ierr)
    type(outlast_request), intent(in) :: request
    type(*) :: buffer(*)
    integer(int64), intent(in) :: capacity
    integer(int64), intent(out) :: length
    integer, intent(out) :: sender
    integer, intent(out) :: sent_tag
    integer, intent(out), optional :: ierr
    call report(c_request_wait(request%handle, buffer, int(capacity, c_size_t), length, sender, &
        sent_tag), ierr)
  end subroutine outlast_request_wait

  ! Cancels the receive, if it is not complete.
  subroutine outlast_request_free(request)
    type(outlast_request), intent(inout) :: request
    call c_request_free(request%handle)
    request%handle = c_null_ptr
  end subroutine outlast_request_free

  ! Returns when all members have called it. outlast_barrier goes on despite deaths.
  subroutine outlast_comm_barrier(comm, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(out), optional :: ierr
    call report(c_comm_barrier(comm%handle), ierr)
  end subroutine outlast_comm_barrier

  ! Gives all members `length` bytes of the array of the root.
  subroutine outlast_comm_broadcast(comm, root, message, length, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: root
    type(*) :: message(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_comm_broadcast(comm%handle, int(root, c_int32_t), message, int(length, &
        c_size_t)), ierr)
  end subroutine outlast_comm_broadcast

  ! Combines the values of all members, element by element.
  subroutine allreduce_i8(comm, op, values, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: op
    integer(int64), intent(inout) :: values(:)
    integer, intent(out), optional :: ierr
    call report(c_comm_allreduce_i64(comm%handle, int(op, c_int), values, size(values, &
        kind=c_size_t)), ierr)
  end subroutine allreduce_i8

  ! Combines the values of all members, element by element.
  subroutine allreduce_r8(comm, op, values, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: op
    real(real64), intent(inout) :: values(:)
    integer, intent(out), optional :: ierr
    call report(c_comm_allreduce_f64(comm%handle, int(op, c_int), values, size(values, &
        kind=c_size_t)), ierr)
  end subroutine allreduce_r8

  ! Makes the communicator unusable for all its members, except for agree and shrink.
  subroutine outlast_comm_revoke(comm, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(out), optional :: ierr
    call report(c_comm_revoke(comm%handle), ierr)
  end subroutine outlast_comm_revoke

  ! Whether a member has revoked the communicator.
  logical function outlast_comm_is_revoked(comm)
    type(outlast_comm), intent(in) :: comm
    outlast_comm_is_revoked = c_comm_is_revoked(comm%handle) /= 0
  end function outlast_comm_is_revoked

  ! Replaces `flags` by the bitwise and of the flags of all members that contributed: equal at all
  ! members. The code is outlast_proc_failed if there are failures that a member had not
  ! acknowledged.
  subroutine outlast_comm_agree(comm, flags, ierr)
    type(outlast_comm), intent(in) :: comm
    integer(int64), intent(inout) :: flags
    integer, intent(out), optional :: ierr
    call report(c_comm_agree(comm%handle, flags), ierr)
  end subroutine outlast_comm_agree

  ! Acknowledges all failures that this member knows.
  subroutine outlast_comm_failure_ack(comm, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(out), optional :: ierr
    call report(c_comm_failure_ack(comm%handle), ierr)
  end subroutine outlast_comm_failure_ack

  ! The ranks whose failure was acknowledged.
  subroutine outlast_comm_get_acked(comm, ranks, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, allocatable, intent(out) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t), allocatable :: found(:)
    integer(c_size_t) :: count
    integer(c_int) :: code
    allocate (found(outlast_comm_size(comm)))
    count = 0
    code = c_comm_get_acked(comm%handle, found, size(found, kind=c_size_t), count)
    ranks = found(:min(count, size(found, kind=c_size_t)))
    call report(code, ierr)
  end subroutine outlast_comm_get_acked

  ! The ranks that are dead, as far as this member knows.
  subroutine outlast_comm_get_failed(comm, ranks, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, allocatable, intent(out) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t), allocatable :: found(:)
    integer(c_size_t) :: count
    integer(c_int) :: code
    allocate (found(outlast_comm_size(comm)))
    count = 0
    code = c_comm_get_failed(comm%handle, found, size(found, kind=c_size_t), count)
    ranks = found(:min(count, size(found, kind=c_size_t)))
    call report(code, ierr)
  end subroutine outlast_comm_get_failed

  ! Ends the wait of another member for a message or a lock with outlast_interrupted.
  subroutine outlast_comm_interrupt(comm, rank, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: rank
    integer, intent(out), optional :: ierr
    call report(c_comm_interrupt(comm%handle, int(rank, c_int32_t)), ierr)
  end subroutine outlast_comm_interrupt

  ! Tells these ranks of all failures that this member knows.
  subroutine outlast_comm_notify_failures(comm, ranks, ierr)
    type(outlast_comm), intent(in) :: comm
    integer, intent(in) :: ranks(:)
    integer, intent(out), optional :: ierr
    call report(c_comm_notify_failures(comm%handle, ranks, size(ranks, kind=c_size_t)), ierr)
  end subroutine outlast_comm_notify_failures

  ! ---- Windows ----

  ! A window in which this member shows `length` bytes, all zero. Accesses need a lock on their
  ! target. Collective.
  subroutine outlast_window_allocate(comm, length, window, ierr)
    type(outlast_comm), intent(in) :: comm
    integer(int64), intent(in) :: length
    type(outlast_window), intent(out) :: window
    integer, intent(out), optional :: ierr
    window%size = outlast_comm_size(comm)
    call report(c_window_allocate(comm%handle, length, window%handle), ierr)
  end subroutine outlast_window_allocate

  ! A window whose accesses need no lock, until outlast_window_close. Collective.
  subroutine outlast_window_open(comm, length, window, ierr)
    type(outlast_comm), intent(in) :: comm
    integer(int64), intent(in) :: length
    type(outlast_window), intent(out) :: window
    integer, intent(out), optional :: ierr
    window%size = outlast_comm_size(comm)
    call report(c_window_open(comm%handle, length, window%handle), ierr)
  end subroutine outlast_window_open

  ! Ends the window. All living members call it. After outlast_still_locked the window goes on.
  subroutine outlast_window_free(window, ierr)
    type(outlast_window), intent(inout) :: window
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_window_free(window%handle)
    if (code == outlast_ok .or. code == outlast_closed) window%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_window_free

  ! Completes the operations in flight, releases this member's locks, and frees the window. All
  ! living members call it.
  subroutine outlast_window_close(window, ierr)
    type(outlast_window), intent(inout) :: window
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_window_close(window%handle)
    if (code == outlast_ok .or. code == outlast_closed) window%handle = c_null_ptr
    call report(code, ierr)
  end subroutine outlast_window_close

  ! Frees the handle alone: for a program that ends without freeing its windows.
  subroutine outlast_window_discard(window)
    type(outlast_window), intent(inout) :: window
    call c_window_discard(window%handle)
    window%handle = c_null_ptr
  end subroutine outlast_window_discard

  ! How many bytes the target shows.
  subroutine outlast_window_len(window, target, length, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(out) :: length
    integer, intent(out), optional :: ierr
    call report(c_window_len(window%handle, int(target, c_int32_t), length), ierr)
  end subroutine outlast_window_len

  ! Writes `length` bytes of an array to the memory of the target. They may be complete only after
  ! a flush or unlock, which reports errors.
  subroutine outlast_window_put(window, target, offset, data, length, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    type(*), intent(in) :: data(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_window_put(window%handle, int(target, c_int32_t), offset, data, int(length, &
        c_size_t)), ierr)
  end subroutine outlast_window_put

  ! Writes bytes and returns when every get that any member begins sees them.
  subroutine outlast_window_put_blocking(window, target, offset, data, length, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    type(*), intent(in) :: data(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_window_put_blocking(window%handle, int(target, c_int32_t), offset, data, &
        int(length, c_size_t)), ierr)
  end subroutine outlast_window_put_blocking

  ! Reads `length` bytes of the memory of the target into an array.
  subroutine outlast_window_get(window, target, offset, buffer, length, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    type(*) :: buffer(*)
    integer(int64), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_window_get(window%handle, int(target, c_int32_t), offset, buffer, int(length, &
        c_size_t)), ierr)
  end subroutine outlast_window_get

  ! Combines words of 8 bytes with the values, each atomically.
  subroutine outlast_window_accumulate(window, target, offset, op, values, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer, intent(in) :: op
    integer(int64), intent(in) :: values(:)
    integer, intent(out), optional :: ierr
    call report(c_window_accumulate_i64(window%handle, int(target, c_int32_t), offset, int(op, &
        c_int), values, size(values, kind=c_size_t)), ierr)
  end subroutine outlast_window_accumulate

  ! Combines a word with the value, atomically; `before` is the word before.
  subroutine outlast_window_fetch_and_op(window, target, offset, op, value, before, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer, intent(in) :: op
    integer(int64), intent(in) :: value
    integer(int64), intent(out) :: before
    integer, intent(out), optional :: ierr
    call report(c_window_fetch_and_op_i64(window%handle, int(target, c_int32_t), offset, &
        int(op, c_int), value, before), ierr)
  end subroutine outlast_window_fetch_and_op

  ! Replaces a word by `desired` if it is `expected`; `before` is the word before.
  subroutine outlast_window_compare_and_swap(window, target, offset, expected, desired, before, &
      ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer(int64), intent(in) :: expected
    integer(int64), intent(in) :: desired
    integer(int64), intent(out) :: before
    integer, intent(out), optional :: ierr
    call report(c_window_compare_and_swap(window%handle, int(target, c_int32_t), offset, &
        expected, desired, before), ierr)
  end subroutine outlast_window_compare_and_swap

  ! The same operations as requests: several can be in flight, each with its own result. The data
  ! can be used again at once.
  subroutine outlast_window_start_put(window, target, offset, data, length, request, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    type(*), intent(in) :: data(*)
    integer(int64), intent(in) :: length
    type(outlast_window_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_window_start_put(window%handle, int(target, c_int32_t), offset, data, &
        int(length, c_size_t), request%handle), ierr)
  end subroutine outlast_window_start_put

  ! Begins to read `length` bytes of the memory of the target.
  subroutine outlast_window_start_get(window, target, offset, length, request, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer(int64), intent(in) :: length
    type(outlast_window_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_window_start_get(window%handle, int(target, c_int32_t), offset, int(length, &
        c_size_t), request%handle), ierr)
  end subroutine outlast_window_start_get

  ! Begins to combine words of 8 bytes with the values, each atomically.
  subroutine outlast_window_start_accumulate(window, target, offset, op, values, request, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer, intent(in) :: op
    integer(int64), intent(in) :: values(:)
    type(outlast_window_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_window_start_accumulate_i64(window%handle, int(target, c_int32_t), offset, &
        int(op, c_int), values, size(values, kind=c_size_t), request%handle), ierr)
  end subroutine outlast_window_start_accumulate

  ! Begins to combine a word with the value, atomically. The result is the word before, of 8 bytes.
  subroutine outlast_window_start_fetch_and_op(window, target, offset, op, value, request, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer, intent(in) :: op
    integer(int64), intent(in) :: value
    type(outlast_window_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_window_start_fetch_and_op_i64(window%handle, int(target, c_int32_t), offset, &
        int(op, c_int), value, request%handle), ierr)
  end subroutine outlast_window_start_fetch_and_op

  ! Begins to replace a word by `desired` if it is `expected`. The result is the word before.
  subroutine outlast_window_start_compare_and_swap(window, target, offset, expected, desired, &
      request, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer(int64), intent(in) :: offset
    integer(int64), intent(in) :: expected
    integer(int64), intent(in) :: desired
    type(outlast_window_request), intent(out) :: request
    integer, intent(out), optional :: ierr
    call report(c_window_start_compare_and_swap(window%handle, int(target, c_int32_t), offset, &
        expected, desired, request%handle), ierr)
  end subroutine outlast_window_start_compare_and_swap

  ! Copies the result out if the operation is complete; otherwise the code is outlast_absent. A
  ! result that does not fit stays in the request.
  subroutine outlast_window_request_test(request, buffer, capacity, length, ierr)
    type(outlast_window_request), intent(in) :: request
    type(*) :: buffer(*)
    integer(int64), intent(in) :: capacity
    integer(int64), intent(out) :: length
    integer, intent(out), optional :: ierr
    length = 0
    call report(c_window_request_test(request%handle, buffer, int(capacity, c_size_t), length), &
        ierr)
  end subroutine outlast_window_request_test

  ! Waits for the operation and copies its result out.
  subroutine outlast_window_request_wait(request, buffer, capacity, length, ierr)
    type(outlast_window_request), intent(in) :: request
    type(*) :: buffer(*)
    integer(int64), intent(in) :: capacity
    integer(int64), intent(out) :: length
    integer, intent(out), optional :: ierr
    length = 0
    call report(c_window_request_wait(request%handle, buffer, int(capacity, c_size_t), length), &
        ierr)
  end subroutine outlast_window_request_wait

  ! Frees the request. The operation goes on, and outlast_window_flush completes it.
  subroutine outlast_window_request_free(request)
    type(outlast_window_request), intent(inout) :: request
    call c_window_request_free(request%handle)
    request%handle = c_null_ptr
  end subroutine outlast_window_request_free

  ! Completes all operations of this member on the target.
  subroutine outlast_window_flush(window, target, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, intent(out), optional :: ierr
    call report(c_window_flush(window%handle, int(target, c_int32_t)), ierr)
  end subroutine outlast_window_flush

  ! Completes all operations of this member.
  subroutine outlast_window_flush_all(window, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(out), optional :: ierr
    call report(c_window_flush_all(window%handle), ierr)
  end subroutine outlast_window_flush_all

  ! Locks the memory of the target: outlast_lock_shared or outlast_lock_exclusive. The code is
  ! outlast_locked at the time limit of the job, and outlast_abandoned if the lock is held now and
  ! its last holder died.
  subroutine outlast_window_lock(window, target, kind, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, intent(in) :: kind
    integer, intent(out), optional :: ierr
    call report(c_window_lock(window%handle, int(target, c_int32_t), int(kind, c_int)), ierr)
  end subroutine outlast_window_lock

  ! As outlast_window_lock, with a time limit; 0 only tries.
  subroutine outlast_window_lock_within(window, target, kind, milliseconds, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, intent(in) :: kind
    integer, intent(in) :: milliseconds
    integer, intent(out), optional :: ierr
    call report(c_window_lock_within(window%handle, int(target, c_int32_t), int(kind, c_int), &
        int(max(milliseconds, 0), c_int64_t)), ierr)
  end subroutine outlast_window_lock_within

  ! Shares the locks of all members: all or none.
  subroutine outlast_window_lock_all(window, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(out), optional :: ierr
    call report(c_window_lock_all(window%handle), ierr)
  end subroutine outlast_window_lock_all

  ! Completes all operations on the target and releases its lock, whatever the result.
  subroutine outlast_window_unlock(window, target, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, intent(out), optional :: ierr
    call report(c_window_unlock(window%handle, int(target, c_int32_t)), ierr)
  end subroutine outlast_window_unlock

  ! Completes all operations and releases the locks of outlast_window_lock_all.
  subroutine outlast_window_unlock_all(window, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(out), optional :: ierr
    call report(c_window_unlock_all(window%handle), ierr)
  end subroutine outlast_window_unlock_all

  ! Takes the lock away from all its holders, and lists them.
  subroutine outlast_window_force_unlock(window, target, ranks, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, allocatable, intent(out) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t), allocatable :: found(:)
    integer(c_size_t) :: count
    integer(c_int) :: code
    allocate (found(window%size))
    count = 0
    code = c_window_force_unlock(window%handle, int(target, c_int32_t), found, size(found, &
        kind=c_size_t), count)
    ranks = found(:min(count, size(found, kind=c_size_t)))
    call report(code, ierr)
  end subroutine outlast_window_force_unlock

  ! The ranks that hold the lock, or are about to, the dead included.
  subroutine outlast_window_holders(window, target, ranks, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, allocatable, intent(out) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t), allocatable :: found(:)
    integer(c_size_t) :: count
    integer(c_int) :: code
    allocate (found(window%size))
    count = 0
    code = c_window_holders(window%handle, int(target, c_int32_t), found, size(found, &
        kind=c_size_t), count)
    ranks = found(:min(count, size(found, kind=c_size_t)))
    call report(code, ierr)
  end subroutine outlast_window_holders

  ! The code is outlast_lock_lost or outlast_not_locked unless this member holds the lock.
  subroutine outlast_window_check_lock(window, target, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(in) :: target
    integer, intent(out), optional :: ierr
    call report(c_window_check_lock(window%handle, int(target, c_int32_t)), ierr)
  end subroutine outlast_window_check_lock

  ! Makes the window unusable for all its members until all survivors call outlast_window_shrink.
  subroutine outlast_window_revoke(window, ierr)
    type(outlast_window), intent(in) :: window
    integer, intent(out), optional :: ierr
    call report(c_window_revoke(window%handle), ierr)
  end subroutine outlast_window_revoke

  ! Whether the window is revoked.
  logical function outlast_window_is_revoked(window)
    type(outlast_window), intent(in) :: window
    outlast_window_is_revoked = c_window_is_revoked(window%handle) /= 0
  end function outlast_window_is_revoked

  ! The ranks that are dead, as far as this member knows.
  subroutine outlast_window_get_failed(window, ranks, ierr)
    type(outlast_window), intent(in) :: window
    integer, allocatable, intent(out) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t), allocatable :: found(:)
    integer(c_size_t) :: count
    integer(c_int) :: code
    allocate (found(window%size))
    count = 0
    code = c_window_get_failed(window%handle, found, size(found, kind=c_size_t), count)
    ranks = found(:min(count, size(found, kind=c_size_t)))
    call report(code, ierr)
  end subroutine outlast_window_get_failed

  ! Leaves the dead out of calls over all members, and lists them.
  subroutine outlast_window_shrink(window, ranks, ierr)
    type(outlast_window), intent(in) :: window
    integer, allocatable, intent(out) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t), allocatable :: found(:)
    integer(c_size_t) :: count
    integer(c_int) :: code
    allocate (found(window%size))
    count = 0
    code = c_window_shrink(window%handle, found, size(found, kind=c_size_t), count)
    ranks = found(:min(count, size(found, kind=c_size_t)))
    call report(code, ierr)
  end subroutine outlast_window_shrink

  ! Adds `length` bytes, all zero, to the end of this member's memory; `now` is its new length.
  subroutine outlast_window_grow(window, length, now, ierr)
    type(outlast_window), intent(in) :: window
    integer(int64), intent(in) :: length
    integer(int64), intent(out) :: now
    integer, intent(out), optional :: ierr
    call report(c_window_grow(window%handle, length, now), ierr)
  end subroutine outlast_window_grow

  ! Shows `length` further bytes as a range of their own, at `offset`.
  subroutine outlast_window_attach(window, length, offset, ierr)
    type(outlast_window), intent(in) :: window
    integer(int64), intent(in) :: length
    integer(int64), intent(out) :: offset
    integer, intent(out), optional :: ierr
    call report(c_window_attach(window%handle, length, offset), ierr)
  end subroutine outlast_window_attach

  ! Takes the range away that was attached at the offset.
  subroutine outlast_window_detach(window, offset, ierr)
    type(outlast_window), intent(in) :: window
    integer(int64), intent(in) :: offset
    integer, intent(out), optional :: ierr
    call report(c_window_detach(window%handle, offset), ierr)
  end subroutine outlast_window_detach

  ! ---- Helpers ----

  ! Stores a code, or ends the program at an error if the caller does not take the code.
  subroutine report(code, ierr)
    integer(c_int), intent(in) :: code
    integer, intent(out), optional :: ierr
    if (present(ierr)) then
      ierr = int(code)
    else if (code < 0) then
      write (error_unit, '(2a)') "outlast: ", copy_text(c_error())
      error stop 1
    end if
  end subroutine report

  ! A text for the C library, for which a null character ends it: a text with one inside is replaced
  ! by a byte that is not UTF-8, so that the library refuses it instead of cutting it off.
  function whole(text)
    character(len=*), intent(in) :: text
    character(kind=c_char, len=:), allocatable :: whole
    if (index(text, c_null_char) > 0) then
      whole = char(255) // c_null_char
    else
      whole = text // c_null_char
    end if
  end function whole

  ! Copies a text of C.
  function copy_text(text) result(copy)
    type(c_ptr), intent(in) :: text
    character(len=:), allocatable :: copy
    character(kind=c_char), pointer :: bytes(:)
    integer(c_size_t) :: length, at
    length = c_strlen(text)
    call c_f_pointer(text, bytes, [length])
    allocate (character(len=length) :: copy)
    do at = 1, length
      copy(at:at) = bytes(at)
    end do
  end function copy_text

  ! The visitor of a listing: appends a key to the list that `context` points to.
  integer(c_int) function collect_key(context, key, key_len) bind(C)
    type(c_ptr), value :: context
    type(c_ptr), value :: key
    integer(c_size_t), value :: key_len
    type(key_list), pointer :: list
    type(outlast_key), allocatable :: longer(:)
    character(kind=c_char), pointer :: bytes(:)
    integer(c_size_t) :: at
    call c_f_pointer(context, list)
    if (list%count == size(list%keys)) then
      allocate (longer(2*size(list%keys)))
      longer(:list%count) = list%keys
      call move_alloc(longer, list%keys)
    end if
    list%count = list%count + 1
    call c_f_pointer(key, bytes, [key_len])
    allocate (character(len=key_len) :: list%keys(list%count)%name)
    do at = 1, key_len
      list%keys(list%count)%name(at:at) = bytes(at)
    end do
    collect_key = 0
  end function collect_key

  ! Puts `len` bytes.
  subroutine put_bytes(store, key, value, length, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    type(*), intent(in) :: value(*)
    integer(c_size_t), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_put(store%handle, key, len(key, c_size_t), value, length, c_null_ptr), ierr)
  end subroutine put_bytes

  ! Reads a value of exactly `length` bytes.
  subroutine get_bytes(store, key, value, length, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    type(*) :: value(*)
    integer(c_size_t), intent(in) :: length
    integer, intent(out), optional :: ierr
    integer(c_size_t) :: found
    integer(c_int) :: code
    code = c_get(store%handle, key, len(key, c_size_t), value, length, found, c_null_ptr)
    call finish_get(code, found, length, ierr)
  end subroutine get_bytes

  ! Puts bytes in a transaction.
  subroutine tx_put_bytes(tx, key, value, length, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    type(*), intent(in) :: value(*)
    integer(c_size_t), intent(in) :: length
    integer, intent(out), optional :: ierr
    call report(c_tx_put(tx%handle, key, len(key, c_size_t), value, length), ierr)
  end subroutine tx_put_bytes

  ! Reads a value of exactly `length` bytes in a transaction.
  subroutine tx_get_bytes(tx, key, value, length, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    type(*) :: value(*)
    integer(c_size_t), intent(in) :: length
    integer, intent(out), optional :: ierr
    integer(c_size_t) :: found
    integer(c_int) :: code
    code = c_tx_get(tx%handle, key, len(key, c_size_t), value, length, found)
    call finish_get(code, found, length, ierr)
  end subroutine tx_get_bytes

  ! Reports a get: a value of another length is outlast_wrong_type.
  subroutine finish_get(code, found, length, ierr)
    integer(c_int), intent(in) :: code
    integer(c_size_t), intent(in) :: found, length
    integer, intent(out), optional :: ierr
    if (code == outlast_too_small .or. (code == outlast_ok .and. found /= length)) then
      if (.not. present(ierr)) then
        write (error_unit, '(a,i0,a,i0,a)') "outlast: the value has ", found, &
          " bytes, and the variable ", length, ": read it into a variable of its type and shape"
        error stop 1
      end if
      ierr = outlast_wrong_type
    else
      call report(code, ierr)
    end if
  end subroutine finish_get

  ! ---- Values by type and rank ----

  subroutine put_text(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key, value
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, [value], len(value, c_size_t), ierr)
  end subroutine put_text

  ! Reads a text of any length.
  subroutine get_text(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    character(len=:), allocatable, intent(out) :: value
    integer, intent(out), optional :: ierr
    character(kind=c_char), allocatable :: read(:)
    integer(c_size_t) :: found, at
    integer(c_int) :: code
    allocate (read(256))
    do
      code = c_get(store%handle, key, len(key, c_size_t), read, size(read, kind=c_size_t), found, &
                   c_null_ptr)
      if (code /= outlast_too_small) exit
      deallocate (read)
      allocate (read(found))
    end do
    if (code /= outlast_ok) found = 0
    allocate (character(len=found) :: value)
    do at = 1, found
      value(at:at) = read(at)
    end do
    call report(code, ierr)
  end subroutine get_text

  subroutine tx_put_text(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key, value
    integer, intent(out), optional :: ierr
    call tx_put_bytes(tx, key, [value], len(value, c_size_t), ierr)
  end subroutine tx_put_text

  ! Reads a text of any length as the transaction sees it.
  subroutine tx_get_text(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    character(len=:), allocatable, intent(out) :: value
    integer, intent(out), optional :: ierr
    character(kind=c_char), allocatable :: read(:)
    integer(c_size_t) :: found, at
    integer(c_int) :: code
    allocate (read(256))
    do
      code = c_tx_get(tx%handle, key, len(key, c_size_t), read, size(read, kind=c_size_t), found)
      if (code /= outlast_too_small) exit
      deallocate (read)
      allocate (read(found))
    end do
    if (code /= outlast_ok) found = 0
    allocate (character(len=found) :: value)
    do at = 1, found
      value(at:at) = read(at)
    end do
    call report(code, ierr)
  end subroutine tx_get_text

  subroutine put_i4(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, [value], 4_c_size_t, ierr)
  end subroutine put_i4

  subroutine get_i4(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(inout) :: value
    integer, intent(out), optional :: ierr
    integer(int32) :: read(1)
    read(1) = value
    call get_bytes(store, key, read, 4_c_size_t, ierr)
    value = read(1)
  end subroutine get_i4

  subroutine put_i4_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(in), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine put_i4_1

  subroutine get_i4_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(inout), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine get_i4_1

  subroutine put_i4_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(in), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine put_i4_2

  subroutine get_i4_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(inout), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine get_i4_2

  subroutine put_i4_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(in), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine put_i4_3

  subroutine get_i4_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int32), intent(inout), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine get_i4_3

  subroutine put_i8(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, [value], 8_c_size_t, ierr)
  end subroutine put_i8

  subroutine get_i8(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(inout) :: value
    integer, intent(out), optional :: ierr
    integer(int64) :: read(1)
    read(1) = value
    call get_bytes(store, key, read, 8_c_size_t, ierr)
    value = read(1)
  end subroutine get_i8

  subroutine put_i8_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(in), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine put_i8_1

  subroutine get_i8_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(inout), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine get_i8_1

  subroutine put_i8_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(in), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine put_i8_2

  subroutine get_i8_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(inout), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine get_i8_2

  subroutine put_i8_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(in), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine put_i8_3

  subroutine get_i8_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    integer(int64), intent(inout), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine get_i8_3

  subroutine put_r4(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(in) :: value
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, [value], 4_c_size_t, ierr)
  end subroutine put_r4

  subroutine get_r4(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(inout) :: value
    integer, intent(out), optional :: ierr
    real(real32) :: read(1)
    read(1) = value
    call get_bytes(store, key, read, 4_c_size_t, ierr)
    value = read(1)
  end subroutine get_r4

  subroutine put_r4_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(in), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine put_r4_1

  subroutine get_r4_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(inout), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine get_r4_1

  subroutine put_r4_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(in), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine put_r4_2

  subroutine get_r4_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(inout), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine get_r4_2

  subroutine put_r4_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(in), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine put_r4_3

  subroutine get_r4_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real32), intent(inout), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 4*size(value, kind=c_size_t), ierr)
  end subroutine get_r4_3

  subroutine put_r8(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, [value], 8_c_size_t, ierr)
  end subroutine put_r8

  subroutine get_r8(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(inout) :: value
    integer, intent(out), optional :: ierr
    real(real64) :: read(1)
    read(1) = value
    call get_bytes(store, key, read, 8_c_size_t, ierr)
    value = read(1)
  end subroutine get_r8

  subroutine put_r8_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(in), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine put_r8_1

  subroutine get_r8_1(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(inout), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine get_r8_1

  subroutine put_r8_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(in), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine put_r8_2

  subroutine get_r8_2(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(inout), contiguous :: value(:, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine get_r8_2

  subroutine put_r8_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(in), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call put_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine put_r8_3

  subroutine get_r8_3(store, key, value, ierr)
    type(outlast_store), intent(in) :: store
    character(len=*), intent(in) :: key
    real(real64), intent(inout), contiguous :: value(:, :, :)
    integer, intent(out), optional :: ierr
    call get_bytes(store, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine get_r8_3

  subroutine tx_put_i4(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: ierr
    call tx_put_bytes(tx, key, [value], 4_c_size_t, ierr)
  end subroutine tx_put_i4

  subroutine tx_get_i4(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer(int32), intent(inout) :: value
    integer, intent(out), optional :: ierr
    integer(int32) :: read(1)
    read(1) = value
    call tx_get_bytes(tx, key, read, 4_c_size_t, ierr)
    value = read(1)
  end subroutine tx_get_i4

  subroutine tx_put_i8(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer(int64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call tx_put_bytes(tx, key, [value], 8_c_size_t, ierr)
  end subroutine tx_put_i8

  subroutine tx_get_i8(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    integer(int64), intent(inout) :: value
    integer, intent(out), optional :: ierr
    integer(int64) :: read(1)
    read(1) = value
    call tx_get_bytes(tx, key, read, 8_c_size_t, ierr)
    value = read(1)
  end subroutine tx_get_i8

  subroutine tx_put_r8(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    real(real64), intent(in) :: value
    integer, intent(out), optional :: ierr
    call tx_put_bytes(tx, key, [value], 8_c_size_t, ierr)
  end subroutine tx_put_r8

  subroutine tx_get_r8(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    real(real64), intent(inout) :: value
    integer, intent(out), optional :: ierr
    real(real64) :: read(1)
    read(1) = value
    call tx_get_bytes(tx, key, read, 8_c_size_t, ierr)
    value = read(1)
  end subroutine tx_get_r8

  subroutine tx_put_r8_1(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    real(real64), intent(in), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call tx_put_bytes(tx, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine tx_put_r8_1

  subroutine tx_get_r8_1(tx, key, value, ierr)
    type(outlast_tx), intent(in) :: tx
    character(len=*), intent(in) :: key
    real(real64), intent(inout), contiguous :: value(:)
    integer, intent(out), optional :: ierr
    call tx_get_bytes(tx, key, value, 8*size(value, kind=c_size_t), ierr)
  end subroutine tx_get_r8_1
end module outlast
