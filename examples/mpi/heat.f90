! The heat equation over MPI: the ranks divide the columns of a grid and exchange the columns at
! their edges. The program outlasts the death of ranks: the survivors revoke and shrink the
! communicator, restore the last checkpoint, divide the columns anew and go on.
!
!     mpirun --with-ft ulfm -n 4 heat 400          400 steps; each rank prints a checksum
!     mpirun --with-ft ulfm -n 4 heat 400 2 130    rank 2 dies in step 130; an equal checksum
!
! A checkpoint is a value for each column, in two generations: the ranks write one generation while
! the other one, which the key "version" names, stays whole. Ranks wait for each other in the store
! there, as collective calls of MPI may end the program when a rank dies.
program heat
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int64, output_unit, real64
  use mpi
  use mpi_ext
  use outlast
  use outlast_mpi
  implicit none

  interface
    integer(c_int) function c_raise(signal) bind(C, name="raise")
      import
      integer(c_int), value :: signal
    end function c_raise
    subroutine c_exit(status) bind(C, name="_exit")
      import
      integer(c_int), value :: status
    end subroutine c_exit
  end interface

  integer, parameter :: height = 64, columns = 48, interval = 20
  type(outlast_job) :: job
  type(outlast_store) :: store
  type(outlast_options) :: options
  integer :: comm, survivors, before, now, provided, steps, code, column, flag
  integer(int64) :: sum
  real(real64) :: cells_of_column(height)
  logical :: is_done
  ! The sends of the step before, and the columns of this step and of that step.
  integer :: sends(2), turn = 1
  real(real64), asynchronous :: sent(height, 2, 2)

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided, code)
  steps = argument(1)
  call outlast_join_mpi(MPI_COMM_WORLD, job)
  options%replicas = 3
  options%allow_fewer = 1
  call outlast_open(job, store, options)
  comm = MPI_COMM_WORLD
  do
    call solve(is_done)
    if (.not. is_done) call MPIX_Comm_revoke(comm, code)
    ! A rank may be done though another is not: all of them go on together, or end together.
    flag = merge(1, 0, is_done)
    call MPIX_Comm_agree(comm, flag, code)
    if (flag == 1) exit
    call MPI_Comm_size(comm, before, code)
    call MPIX_Comm_shrink(comm, survivors, code)
    comm = survivors
    call MPI_Comm_size(comm, now, code)
    if (now == before) error stop "no rank died: the error has another reason"
  end do

  sum = 0
  do column = 1, columns
    call outlast_get(store, name_of(steps, column), cells_of_column)
    call add_to(sum, cells_of_column)
  end do
  write (output_unit, '(z16.16)') sum
  flush (output_unit)
  call outlast_close(store)
  call outlast_leave(job)
  ! After a death MPI_Finalize may hang. No rank comes here before all ranks have closed the store.
  if (comm /= MPI_COMM_WORLD) call c_exit(0_c_int)
  call MPI_Waitall(2, sends, MPI_STATUSES_IGNORE, code)
  call MPI_Finalize(code)

contains

  ! Computes with the ranks of the communicator, from the last checkpoint on. It is not done if a
  ! rank has died meanwhile.
  subroutine solve(is_done)
    logical, intent(out) :: is_done
    real(real64), allocatable, asynchronous :: cells(:, :)
    integer :: rank, size, first, count, version, step, at, found
    is_done = .false.
    sends = MPI_REQUEST_NULL
    call MPI_Comm_rank(comm, rank, code)
    call MPI_Comm_size(comm, size, code)
    first = columns*rank/size + 1
    count = columns*(rank + 1)/size + 1 - first
    allocate (cells(height, 0:count + 1), source=0.0_real64)
    call outlast_get(store, "version", version, found)
    if (found < 0) error stop "the store cannot be read"
    if (found == outlast_absent) version = -1
    do at = 1, count
      if (version < 0) then
        cells(:, at) = [(real(mod((first + at)*37, 101), real64) + 0.5*step, step=1, height)]
      else
        call outlast_get(store, name_of(version, first + at - 1), cells(:, at))
      end if
    end do
    do step = max(version, 0), steps - 1
      if (mod(step, interval) == 0 .and. step /= version) then
        call save(step, size, first, cells(:, 1:count), is_done)
        if (.not. is_done) return
      end if
      call die_if_named(step)
      call exchange(cells, count, rank, size, is_done)
      if (.not. is_done) return
      call advance(cells, first, count)
    end do
    if (version /= steps) then
      call save(steps, size, first, cells(:, 1:count), is_done)
    else
      is_done = .true.
    end if
  end subroutine solve

  ! Saves the columns of all ranks as a version, or leaves the version before as it is if a rank
  ! dies. The rank that is the last to have put its columns names the version.
  subroutine save(version, ranks, first, cells, is_done)
    integer, intent(in) :: version, ranks, first
    real(real64), intent(in), contiguous :: cells(:, :)
    logical, intent(out) :: is_done
    character(len=40) :: attempt
    integer(int64) :: saved
    integer :: at
    do at = 1, size(cells, 2)
      call outlast_put(store, name_of(version, first + at - 1), cells(:, at))
    end do
    write (attempt, '(i0, a, i0)') version, "/", ranks
    call outlast_add(store, "saved/"//trim(attempt), 1_int64, saved)
    if (saved == ranks) then
      call outlast_put(store, "version", version)
      call outlast_put(store, "named/"//trim(attempt), "")
    end if
    do
      call outlast_wait_for(store, "named/"//trim(attempt), 20, ierr=at)
      is_done = at == outlast_ok
      if (is_done .or. outlast_living(job) < ranks) exit
    end do
  end subroutine save

  ! Exchanges the columns at the edges with the neighbours. Open MPI 5.0.11 ends the program if a
  ! send fails, by a death or a revocation, after its request was freed, and waiting frees a request.
  ! So the sends of a step are waited for in the next step, when the columns of the neighbours say
  ! that the neighbours have them, and never after an error.
  subroutine exchange(cells, count, rank, size, is_done)
    real(real64), intent(inout), contiguous, asynchronous :: cells(:, 0:)
    integer, intent(in) :: count, rank, size
    logical, intent(out) :: is_done
    integer :: left, right, receives(2), requests(2), at, ignored
    left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    right = merge(rank + 1, MPI_PROC_NULL, rank < size - 1)
    receives = MPI_REQUEST_NULL
    turn = 3 - turn
    sent(:, 1, turn) = cells(:, 1)
    sent(:, 2, turn) = cells(:, count)
    call MPI_Irecv(cells(:, 0), height, MPI_DOUBLE_PRECISION, left, 0, comm, receives(1), code)
    if (code == MPI_SUCCESS) call MPI_Irecv(cells(:, count + 1), height, MPI_DOUBLE_PRECISION, &
                                            right, 0, comm, receives(2), code)
    if (code == MPI_SUCCESS) call MPI_Isend(sent(:, 1, turn), height, MPI_DOUBLE_PRECISION, left, &
                                            0, comm, requests(1), code)
    if (code == MPI_SUCCESS) call MPI_Isend(sent(:, 2, turn), height, MPI_DOUBLE_PRECISION, right, &
                                            0, comm, requests(2), code)
    if (code == MPI_SUCCESS) call MPI_Waitall(2, receives, MPI_STATUSES_IGNORE, code)
    if (code == MPI_SUCCESS) call MPI_Waitall(2, sends, MPI_STATUSES_IGNORE, code)
    is_done = code == MPI_SUCCESS
    if (is_done) then
      sends = requests
      return
    end if
    call MPIX_Comm_revoke(comm, ignored)  ! this ends the waits of all ranks, and so the receives,
    do at = 1, 2  ! which must not write into cells that are gone
      if (receives(at) /= MPI_REQUEST_NULL) call MPI_Wait(receives(at), MPI_STATUS_IGNORE, ignored)
    end do
  end subroutine exchange

  ! The next step. Cells at the edges of the grid stay as they are.
  subroutine advance(cells, first, count)
    real(real64), intent(inout), contiguous :: cells(:, 0:)
    integer, intent(in) :: first, count
    real(real64) :: next(height, count)
    integer :: at
    next = cells(:, 1:count)
    do at = 1, count
      if (first + at - 1 == 1 .or. first + at - 1 == columns) cycle
      next(2:height - 1, at) = cells(2:height - 1, at) + 0.1_real64*( &
        cells(1:height - 2, at) + cells(3:height, at) + cells(2:height - 1, at - 1) &
        + cells(2:height - 1, at + 1) - 4*cells(2:height - 1, at))
    end do
    cells(:, 1:count) = next
  end subroutine advance

  ! The key of a column in the generation of a version.
  function name_of(version, column) result(name)
    integer, intent(in) :: version, column
    character(len=:), allocatable :: name
    character(len=32) :: text
    write (text, '(a, i0, a, i0)') "column/", mod((version + interval - 1)/interval, 2), "/", column
    name = trim(text)
  end function name_of

  ! Adds the bits of numbers to a checksum.
  subroutine add_to(sum, numbers)
    integer(int64), intent(inout) :: sum
    real(real64), intent(in) :: numbers(:)
    integer :: at
    do at = 1, size(numbers)
      sum = ieor(ishftc(sum, 7), transfer(numbers(at), sum))
    end do
  end subroutine add_to

  integer function argument(number)
    integer, intent(in) :: number
    character(len=20) :: text
    call get_command_argument(number, text)
    read (text, *) argument
  end function argument

  ! Dies if the arguments name this rank of MPI_COMM_WORLD, followed by this step.
  subroutine die_if_named(step)
    integer, intent(in) :: step
    integer :: me, at
    call MPI_Comm_rank(MPI_COMM_WORLD, me, code)
    do at = 2, command_argument_count() - 1, 2
      if (argument(at) == me .and. argument(at + 1) == step) code = int(c_raise(9_c_int))
    end do
  end subroutine die_if_named
end program heat
