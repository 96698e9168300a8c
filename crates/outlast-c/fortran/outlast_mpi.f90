! Joining a job of the ranks of an integer communicator of MPI. A program that uses this module is
! linked with MPI, runs under mpirun --with-ft ulfm, and has called MPI_Init_thread with
! MPI_THREAD_MULTIPLE.
module outlast_mpi
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use outlast
  implicit none
  private
  public :: outlast_join_mpi

  interface
    type(c_ptr) function comm_f2c(comm) bind(C, name="MPI_Comm_f2c")
      import
      integer(c_int), value :: comm
    end function comm_f2c
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
    if (present(ierr)) then
      ierr = int(code)
    else if (code < 0) then
      write (error_unit, '(2a)') "outlast: ", outlast_message()
      error stop 1
    end if
  end subroutine outlast_join_mpi
end module outlast_mpi
