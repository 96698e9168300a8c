! A program of MPI that asks for a communicator of the living ranks, and counts them with it.
program shrunken
  use, intrinsic :: iso_fortran_env, only: output_unit
  use mpi
  use outlast
  use outlast_mpi
  implicit none
  type(outlast_job) :: job
  integer :: comm, size, provided, code

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided, code)
  call outlast_join_mpi(MPI_COMM_WORLD, job)
  call outlast_mpi_shrunken(job, comm)
  call MPI_Comm_size(comm, size, code)
  write (output_unit, '(i0, a)') size, " ranks"
  call MPI_Barrier(comm, code)
  call outlast_leave(job)
  call MPI_Finalize(code)
  ! A second call has no job to ask.
  call outlast_mpi_shrunken(job, comm, code)
  if (code /= outlast_invalid .or. comm /= -1) error stop "a job that was left"
end program shrunken
