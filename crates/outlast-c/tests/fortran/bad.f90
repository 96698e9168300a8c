! Bad input: handles without an object, wrong sizes, arrays with gaps, closed stores, use after
! leave, fork after open, null characters, wrong types, and a plug-in that is missing or of another
! MPI, whose file is the argument. Each has its own code and a message, and changes nothing. Signals
! end no wait.
program bad
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64, error_unit, output_unit
  use outlast
  implicit none

  interface
    integer(c_int) function c_fork() bind(C, name="fork")
      import
    end function c_fork
    integer(c_int) function c_waitpid(pid, status, options) bind(C, name="waitpid")
      import
      integer(c_int), value :: pid, options
      integer(c_int), intent(out) :: status
    end function c_waitpid
    subroutine c_exit(status) bind(C, name="_exit")
      import
      integer(c_int), value :: status
    end subroutine c_exit
    integer(c_int) function c_setenv(name, value, overwrite) bind(C, name="setenv")
      import
      character(kind=c_char), intent(in) :: name(*), value(*)
      integer(c_int), value :: overwrite
    end function c_setenv
    integer(c_int) function c_unsetenv(name) bind(C, name="unsetenv")
      import
      character(kind=c_char), intent(in) :: name(*)
    end function c_unsetenv
    type(c_funptr) function c_signal(number, handler) bind(C, name="signal")
      import
      integer(c_int), value :: number
      type(c_funptr), value :: handler
    end function c_signal
    integer(c_int) function c_ualarm(first, every) bind(C, name="ualarm")
      import
      integer(c_int), value :: first, every
    end function c_ualarm
  end interface

  type(outlast_job) :: job
  type(outlast_store) :: store
  integer :: ierr
  character(len=4096) :: plugin
  integer(c_int), parameter :: sigalrm = 14
  integer(c_int), volatile :: signals = 0

  call refused_plugin("/nowhere/plug-in.so", "does not exist")
  if (command_argument_count() > 0) then
    call get_command_argument(1, plugin)
    call refused_plugin(trim(plugin), "runs with another MPI")
  end if
  ierr = c_unsetenv("OUTLAST_MPI_SHIM" // c_null_char)
  ierr = c_unsetenv("OUTLAST_ENGINE" // c_null_char)
  call without_objects()
  call outlast_join(job)
  call outlast_open(job, store)
  call wrong_sizes_and_types()
  call null_characters_and_gaps()
  call aborted_transactions()
  call forks()
  call waits_with_signals()
  call closed_and_left()
  write (output_unit, '(a)') "ok"

contains

  ! Ends the program if the last call has not returned this code and a message with this text.
  subroutine refused(code, words, what)
    integer, intent(in) :: code
    character(len=*), intent(in) :: words, what
    if (ierr /= code .or. index(outlast_message(), words) == 0) then
      write (error_unit, '(3a, i0, 2a)') "not refused: ", what, ": ", ierr, ": ", outlast_message()
      call c_exit(1)
    end if
  end subroutine refused

  subroutine check(is_true, what)
    logical, intent(in) :: is_true
    character(len=*), intent(in) :: what
    if (.not. is_true) then
      write (error_unit, '(2a)') "it does not hold: ", what
      call c_exit(1)
    end if
  end subroutine check

  ! Joins over MPI with a file that is no plug-in for the MPI of this process.
  subroutine refused_plugin(file, reason)
    character(len=*), intent(in) :: file, reason
    ierr = c_setenv("OUTLAST_ENGINE" // c_null_char, "mpi" // c_null_char, 1)
    ierr = c_setenv("OUTLAST_MPI_SHIM" // c_null_char, file // c_null_char, 1)
    call outlast_join(job, ierr)
    call refused(outlast_not_joined, reason, file)
    call refused(outlast_not_joined, "outlast mpi setup", file)
  end subroutine refused_plugin

  subroutine without_objects()
    type(outlast_job) :: no_job
    type(outlast_store) :: no_store
    type(outlast_tx) :: no_tx
    type(outlast_comm) :: no_comm
    type(outlast_window) :: no_window
    type(outlast_regions) :: no_regions
    type(outlast_snapshots) :: no_snapshots
    type(outlast_snapshot) :: taken
    type(outlast_pin) :: no_pin
    type(outlast_lock_guard) :: no_guard
    type(outlast_request) :: no_request
    type(outlast_restored) :: at
    integer(int64) :: number
    integer :: sender, tag
    character :: bytes(8)
    call outlast_open(no_job, store, ierr=ierr)
    call refused(outlast_invalid, "NULL", "no job")
    call outlast_barrier(no_job, ierr)
    call refused(outlast_invalid, "NULL", "no job at a barrier")
    call outlast_leave(no_job, ierr)
    call refused(outlast_invalid, "NULL", "no job to leave")
    call outlast_put(no_store, "key", 1_int64, ierr)
    call refused(outlast_invalid, "NULL", "no store")
    call outlast_get(no_store, "key", number, ierr)
    call refused(outlast_invalid, "NULL", "no store to read")
    call outlast_tx_begin(no_store, no_tx, ierr)
    call refused(outlast_invalid, "NULL", "no store for a transaction")
    call outlast_tx_commit(no_tx, ierr)
    call refused(outlast_invalid, "NULL", "no transaction")
    call outlast_comm_world(no_job, no_comm, ierr)
    call refused(outlast_invalid, "NULL", "no job for a communicator")
    call outlast_comm_barrier(no_comm, ierr)
    call refused(outlast_invalid, "NULL", "no communicator")
    call outlast_window_put(no_window, 0, 0_int64, ["x"], 1_int64, ierr)
    call refused(outlast_invalid, "NULL", "no window")
    call outlast_restore(no_regions, at, ierr)
    call refused(outlast_invalid, "NULL", "no checkpoints")
    call outlast_snapshot_take(no_snapshots, taken, ierr)
    call refused(outlast_invalid, "NULL", "no folder of snapshots")
    call outlast_pin_read(no_pin, 0_int64, bytes, 1_int64, ierr)
    call refused(outlast_invalid, "NULL", "no pin")
    call outlast_unlock(no_guard, ierr)
    call refused(outlast_invalid, "NULL", "no lock")
    call outlast_request_wait(no_request, bytes, 8_int64, number, sender, tag, ierr)
    call refused(outlast_invalid, "NULL", "no request")
    call outlast_tx_free(no_tx)
    call outlast_pin_free(no_pin)
    call outlast_request_free(no_request)
    call check(outlast_members(no_job) == 0, "no members")
  end subroutine without_objects

  subroutine wrong_sizes_and_types()
    type(outlast_options) :: options
    type(outlast_store) :: other
    real(real64) :: two(2)
    integer(int32) :: number
    integer(int64) :: sum
    options%replicas = 99
    call outlast_open(job, other, options, ierr, "many")
    call refused(outlast_invalid, "replica", "99 replicas")
    call outlast_put(store, repeat("k", 1025), 1, ierr)
    call refused(outlast_invalid, "key length", "a long key")
    call outlast_put(store, "", 1, ierr)
    call refused(outlast_invalid, "key length", "an empty key")
    call outlast_put(store, "key", [1.0_real64, 2.0_real64, 3.0_real64])
    call outlast_get(store, "key", two, ierr)
    call refused(outlast_wrong_type, "", "a longer array")
    call outlast_get(store, "key", number, ierr)
    call refused(outlast_wrong_type, "", "an array for a number")
    call outlast_add(store, "key", 1_int64, sum, ierr)
    call refused(outlast_wrong_type, "", "an array as a number")
    call check(outlast_length(store, "key") == 24, "the value is there")
  end subroutine wrong_sizes_and_types

  subroutine null_characters_and_gaps()
    type(outlast_regions) :: regions
    type(outlast_snapshots) :: snapshots
    type(outlast_store) :: other
    character(len=:), allocatable :: key, text
    type(outlast_restored) :: at
    real(real64), target :: memory(1), gaps(4), rows(2, 3)
    key = "a" // c_null_char // "b"
    memory = 1
    gaps = 5
    rows = 7
    call outlast_put(store, key, "v" // c_null_char // "w")
    call outlast_get(store, key, text)
    call check(text == "v" // c_null_char // "w" .and. len(text) == 3, "the whole value")
    call check(.not. outlast_exists(store, "a"), "the whole key")
    call outlast_delete(store, key)
    ! Names and paths are texts of C, and a part of them would be another name.
    call outlast_open(job, other, ierr=ierr, name=key)
    call refused(outlast_invalid, "null character", "the name of a store")
    call outlast_regions_open(store, key, regions, ierr=ierr)
    call refused(outlast_invalid, "null character", "the name of checkpoints")
    call outlast_snapshots_open(store, key, snapshots, ierr=ierr)
    call refused(outlast_invalid, "null character", "a folder")
    call outlast_regions_open(store, "regions", regions)
    ! A copy of the elements would be another memory, which is gone after the call.
    call outlast_protect(regions, "gaps", gaps(1:4:2), 16_int64, ierr)
    call refused(outlast_invalid, "gaps", "an array that is not contiguous")
    call outlast_protect(regions, "row", rows(1, :), 24_int64, ierr)
    call refused(outlast_invalid, "row", "a row of a matrix")
    call outlast_protect(regions, "column", rows(:, 2), 16_int64)
    call outlast_protect(regions, "part", gaps(2:3), 16_int64)
    call outlast_checkpoint(regions, 1_int64)
    rows = 0
    gaps = 0
    call outlast_restore(regions, at)
    call check(all(rows(:, 2) == 7) .and. all(rows(:, 1) == 0), "the column was saved")
    call check(all(gaps(2:3) == 5) .and. gaps(1) == 0 .and. gaps(4) == 0, "the part was saved")
    call outlast_protect(regions, key, memory, 8_int64, ierr)
    call refused(outlast_invalid, "null character", "the name of a region")
    call outlast_region_read(regions, 0, key, 0_int64, memory, 8_int64, ierr)
    call refused(outlast_invalid, "null character", "the name of a region to read")
    call outlast_regions_close(regions)
  end subroutine null_characters_and_gaps

  ! What is not committed has no effect: after an abort, and when the transaction is freed.
  subroutine aborted_transactions()
    type(outlast_tx) :: tx
    call outlast_put(store, "kept", "before")
    call outlast_tx_begin(store, tx)
    call outlast_tx_put(tx, "kept", "after")
    call outlast_tx_abort(tx)
    call outlast_tx_put(tx, "kept", "later", ierr)
    call refused(outlast_over, "", "a transaction that is over")
    call outlast_tx_free(tx)
    call outlast_tx_begin(store, tx)
    call outlast_tx_delete(tx, "kept")
    call outlast_tx_free(tx)
    call outlast_tx_commit(tx, ierr)
    call refused(outlast_invalid, "NULL", "a transaction that was freed")
    call check(outlast_length(store, "kept") == 6, "the value from before")
  end subroutine aborted_transactions

  subroutine forks()
    integer(c_int) :: child, status
    integer(int64) :: length
    integer :: sender, tag
    character(len=:), allocatable :: text
    character :: bytes(8)
    type(outlast_comm) :: comm
    type(outlast_window) :: window
    type(outlast_regions) :: regions
    type(outlast_restored) :: at
    type(outlast_tx) :: tx
    call outlast_comm_world(job, comm)
    call outlast_window_open(comm, 64_int64, window)
    call outlast_regions_open(store, "forked", regions)
    call outlast_tx_begin(store, tx)
    call outlast_tx_put(tx, "fork", 1)
    child = c_fork()
    if (child == 0) then
      call outlast_tx_commit(tx, ierr)
      call refused(outlast_forked, "forked", "a commit of a child")
      call outlast_get(store, "kept", text, ierr)
      call refused(outlast_forked, "forked", "a get of a child")
      call outlast_comm_send(comm, 0, 1, ["x"], 1_int64, ierr)
      call refused(outlast_forked, "forked", "a message of a child")
      call outlast_comm_receive(comm, 0, 1, bytes, 8_int64, length, sender, tag, ierr)
      call refused(outlast_forked, "forked", "a receive of a child")
      call outlast_window_put(window, 0, 0_int64, ["x"], 1_int64, ierr)
      call refused(outlast_forked, "forked", "a put of a child into a window")
      call outlast_checkpoint(regions, 1_int64, ierr=ierr)
      call refused(outlast_forked, "forked", "a checkpoint of a child")
      call outlast_restore(regions, at, ierr)
      call refused(outlast_forked, "forked", "a restore of a child")
      call outlast_barrier(job, ierr)
      call refused(outlast_forked, "forked", "a barrier of a child")
      call outlast_put(store, "fork", 1, ierr)
      call refused(outlast_forked, "forked", "a put of a child")
      call outlast_wait_for(store, "fork", 20000, ierr=ierr)
      call refused(outlast_forked, "forked", "a wait of a child")
      call outlast_leave(job, ierr)
      call refused(outlast_forked, "forked", "leaving by a child")
      call c_exit(0)
    end if
    call check(child > 0 .and. c_waitpid(child, status, 0) == child .and. status == 0, "the child")
    call check(.not. outlast_exists(store, "fork"), "nothing was put")
    call outlast_restore(regions, at, ierr)
    call check(ierr == outlast_absent, "nothing was saved")
    call outlast_tx_free(tx)
    call outlast_window_free(window)
    call outlast_regions_close(regions)
  end subroutine forks

  subroutine count_signal(number) bind(C)
    integer(c_int), value :: number
    signals = signals + number/sigalrm
  end subroutine count_signal

  subroutine waits_with_signals()
    type(c_funptr) :: former
    integer(int64) :: began, ended, rate
    former = c_signal(sigalrm, c_funloc(count_signal))
    ierr = c_ualarm(10000, 10000)
    call system_clock(began, rate)
    call outlast_wait_for(store, "none", 200, ierr=ierr)
    call check(ierr == outlast_absent, "the time is over")
    call system_clock(ended)
    ierr = c_ualarm(0, 0)
    former = c_signal(sigalrm, former)
    call check(signals > 0 .and. ended - began > rate*19/100, "the wait is as long as without them")
  end subroutine waits_with_signals

  subroutine closed_and_left()
    type(outlast_store) :: again
    type(outlast_comm) :: comm
    type(outlast_window) :: window
    type(outlast_regions) :: regions
    call outlast_close(store)
    call outlast_put(store, "key", 1, ierr)
    call refused(outlast_invalid, "NULL", "a closed store")
    call outlast_close(store, ierr)
    call refused(outlast_invalid, "NULL", "a second close")
    call outlast_open(job, again)
    call outlast_comm_world(job, comm)
    call outlast_window_open(comm, 64_int64, window)
    call outlast_regions_open(again, "left", regions)
    call outlast_leave(job)
    call outlast_comm_send(comm, 0, 1, ["x"], 1_int64, ierr)
    call refused(outlast_closed, "", "a message after leaving")
    call outlast_window_put(window, 0, 0_int64, ["x"], 1_int64, ierr)
    call refused(outlast_closed, "", "a put into a window after leaving")
    call outlast_checkpoint(regions, 1_int64, ierr=ierr)
    call refused(outlast_closed, "", "a checkpoint after leaving")
    call outlast_put(again, "key", 1, ierr)
    call refused(outlast_closed, "", "a store of a job that was left")
    call outlast_barrier(job, ierr)
    call refused(outlast_invalid, "NULL", "a job that was left")
  end subroutine closed_and_left
end program bad
