! Bad input: handles without an object, wrong sizes, closed stores, use after leave, fork after
! open, null characters, wrong types, and a plug-in that is missing or of another MPI, whose file
! is the argument. Each has its own code and a message, and changes nothing. Signals end no wait.
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
  call null_characters()
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
    integer(int64) :: number
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

  subroutine null_characters()
    type(outlast_regions) :: regions
    type(outlast_snapshots) :: snapshots
    type(outlast_store) :: other
    character(len=:), allocatable :: key, text
    real(real64), target :: memory(1)
    key = "a" // c_null_char // "b"
    memory = 1
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
    call outlast_protect(regions, key, memory, 8_int64, ierr)
    call refused(outlast_invalid, "null character", "the name of a region")
    call outlast_region_read(regions, 0, key, 0_int64, memory, 8_int64, ierr)
    call refused(outlast_invalid, "null character", "the name of a region to read")
    call outlast_regions_close(regions)
  end subroutine null_characters

  subroutine forks()
    integer(c_int) :: child, status
    child = c_fork()
    if (child == 0) then
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
    call outlast_close(store)
    call outlast_put(store, "key", 1, ierr)
    call refused(outlast_invalid, "NULL", "a closed store")
    call outlast_close(store, ierr)
    call refused(outlast_invalid, "NULL", "a second close")
    call outlast_open(job, again)
    call outlast_leave(job)
    call outlast_put(again, "key", 1, ierr)
    call refused(outlast_closed, "", "a store of a job that was left")
    call outlast_barrier(job, ierr)
    call refused(outlast_invalid, "NULL", "a job that was left")
  end subroutine closed_and_left
end program bad
