! Joining a job of the ranks of an integer communicator of MPI, and such a communicator of the
! members that live. A program that uses this module is
! linked with MPI, runs under mpirun --with-ft ulfm, and has called MPI_Init_thread with
! MPI_THREAD_MULTIPLE.
module outlast_mpi
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use outlast
  implicit none
  private
  public :: outlast_join_mpi, outlast_mpi_shrunken

  interface
    type(c_ptr) function comm_f2c(comm) bind(C, name="MPI_Comm_f2c")
      import
      integer(c_int), value :: comm
    end function comm_f2c
    integer(c_int) function comm_c2f(comm) bind(C, name="MPI_Comm_c2f")
      import
      type(c_ptr), value :: comm
    end function comm_c2f
    integer(c_int) function c_mpi_shrunken(job, comm) bind(C, name="outlast_mpi_shrunken")
      import
      type(c_ptr), value :: job
      type(c_ptr), intent(inout) :: comm
    end function c_mpi_shrunken
    integer(c_int) function c_join_mpi(comm, set_errhandlers, job) bind(C, name="outlast_join_mpi")
      import
      type(c_ptr), value :: comm
      integer(c_int), value :: set_errhandlers
      type(c_ptr), intent(out) :: job
    end function c_join_mpi
  end interface

contains

  ! Joins a job of the ranks of `comm`, for example MPI_COMM_WORLD. The library uses a duplicate of
  ! the communicator, and makes errors on MPI_COMM_WORLD be returned instead of ending the program.
  subroutine outlast_join_mpi(comm, job, ierr)
    integer, intent(in) :: comm
    type(outlast_job), intent(out) :: job
    integer, intent(out), optional :: ierr
    integer(c_int) :: code
    code = c_join_mpi(comm_f2c(int(comm, c_int)), 1_c_int, job%handle)
    call report(code, ierr)
  end subroutine outlast_join_mpi

  ! A communicator of the living members, for the program's own use. All of them call it.
  subroutine outlast_mpi_shrunken(job, comm, ierr)
    type(outlast_job), intent(in) :: job
    integer, intent(out) :: comm
    integer, intent(out), optional :: ierr
    type(c_ptr) :: handle
    integer(c_int) :: code
    handle = c_null_ptr
    comm = -1
    code = c_mpi_shrunken(job%handle, handle)
    if (code == outlast_ok) comm = int(comm_c2f(handle))
    call report(code, ierr)
  end subroutine outlast_mpi_shrunken

  ! Stores a code, or ends the program at an error if the caller does not take the code.
  subroutine report(code, ierr)
    integer(c_int), intent(in) :: code
    integer, intent(out), optional :: ierr
    if (present(ierr)) then
      ierr = int(code)
    else if (code < 0) then
      write (error_unit, '(2a)') "outlast: ", outlast_message()
      error stop 1
    end if
  end subroutine report
end module outlast_mpi
