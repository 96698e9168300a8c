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

  public :: outlast_join, outlast_leave, outlast_me, outlast_members
  public :: outlast_living, outlast_barrier, outlast_open, outlast_close, outlast_message
  public :: outlast_put, outlast_get, outlast_exists, outlast_delete, outlast_add, outlast_length
  public :: outlast_wait_for, outlast_adopt, outlast_keys_of, outlast_scan
  public :: outlast_epoch, outlast_next_death, outlast_accept_loss
  public :: outlast_lock, outlast_unlock
  public :: outlast_tx_begin, outlast_tx_put, outlast_tx_get, outlast_tx_delete, outlast_tx_add
  public :: outlast_tx_adopt, outlast_tx_commit, outlast_tx_abort, outlast_tx_retry, outlast_tx_free

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

  ! Opens a store, which is empty. All members call it. A job may have several stores at a time, each
  ! under its own name; after outlast_close a store can be opened again.
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
      text = name // c_null_char
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

  ! The next death after `seen`, which is advanced, and the member that takes over. The code is
  ! outlast_absent if there is no further death.
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
