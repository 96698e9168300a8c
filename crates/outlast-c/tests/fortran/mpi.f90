! Stands for the modules mpi and mpi_ext of Open MPI, which the Open MPI of PyPI does not have. It
! has the calls of the example, over the functions of C, and Open MPI's numbers of the constants.
module mpi
  use, intrinsic :: iso_c_binding
  implicit none
  private
  integer, parameter, public :: MPI_COMM_WORLD = 0, MPI_REQUEST_NULL = 0, MPI_SUCCESS = 0
  integer, parameter, public :: MPI_DOUBLE_PRECISION = 17, MPI_PROC_NULL = -2
  integer, parameter, public :: MPI_THREAD_MULTIPLE = 3, MPI_STATUS_SIZE = 6
  integer, public :: MPI_STATUS_IGNORE(MPI_STATUS_SIZE), MPI_STATUSES_IGNORE(MPI_STATUS_SIZE, 1)
  public :: MPI_Init_thread, MPI_Finalize, MPI_Comm_rank, MPI_Comm_size, MPI_Barrier
  public :: MPI_Irecv, MPI_Isend, MPI_Wait, MPI_Waitall, comm_f2c

  interface
    type(c_ptr) function comm_f2c(comm) bind(C, name="MPI_Comm_f2c")
      import
      integer(c_int), value :: comm
    end function comm_f2c
    type(c_ptr) function type_f2c(datatype) bind(C, name="MPI_Type_f2c")
      import
      integer(c_int), value :: datatype
    end function type_f2c
    type(c_ptr) function request_f2c(request) bind(C, name="MPI_Request_f2c")
      import
      integer(c_int), value :: request
    end function request_f2c
    integer(c_int) function request_c2f(request) bind(C, name="MPI_Request_c2f")
      import
      type(c_ptr), value :: request
    end function request_c2f
    integer(c_int) function c_init_thread(count, arguments, required, provided) &
        bind(C, name="MPI_Init_thread")
      import
      type(c_ptr), value :: count, arguments
      integer(c_int), value :: required
      integer(c_int), intent(out) :: provided
    end function c_init_thread
    integer(c_int) function c_finalize() bind(C, name="MPI_Finalize")
      import
    end function c_finalize
    integer(c_int) function c_comm_rank(comm, rank) bind(C, name="MPI_Comm_rank")
      import
      type(c_ptr), value :: comm
      integer(c_int), intent(out) :: rank
    end function c_comm_rank
    integer(c_int) function c_comm_size(comm, size) bind(C, name="MPI_Comm_size")
      import
      type(c_ptr), value :: comm
      integer(c_int), intent(out) :: size
    end function c_comm_size
    integer(c_int) function c_barrier(comm) bind(C, name="MPI_Barrier")
      import
      type(c_ptr), value :: comm
    end function c_barrier
    integer(c_int) function c_irecv(buffer, count, datatype, source, tag, comm, request) &
        bind(C, name="MPI_Irecv")
      import
      type(*), asynchronous :: buffer(*)
      integer(c_int), value :: count, source, tag
      type(c_ptr), value :: datatype, comm
      type(c_ptr), intent(out) :: request
    end function c_irecv
    integer(c_int) function c_isend(buffer, count, datatype, target, tag, comm, request) &
        bind(C, name="MPI_Isend")
      import
      type(*), intent(in), asynchronous :: buffer(*)
      integer(c_int), value :: count, target, tag
      type(c_ptr), value :: datatype, comm
      type(c_ptr), intent(out) :: request
    end function c_isend
    integer(c_int) function c_wait(request, status) bind(C, name="MPI_Wait")
      import
      type(c_ptr), intent(inout) :: request
      type(c_ptr), value :: status
    end function c_wait
    integer(c_int) function c_waitall(count, requests, statuses) bind(C, name="MPI_Waitall")
      import
      integer(c_int), value :: count
      type(c_ptr), intent(inout) :: requests(*)
      type(c_ptr), value :: statuses
    end function c_waitall
  end interface

contains

  subroutine MPI_Init_thread(required, provided, ierr)
    integer, intent(in) :: required
    integer, intent(out) :: provided, ierr
    ierr = c_init_thread(c_null_ptr, c_null_ptr, required, provided)
  end subroutine MPI_Init_thread

  subroutine MPI_Finalize(ierr)
    integer, intent(out) :: ierr
    ierr = c_finalize()
  end subroutine MPI_Finalize

  subroutine MPI_Comm_rank(comm, rank, ierr)
    integer, intent(in) :: comm
    integer, intent(out) :: rank, ierr
    ierr = c_comm_rank(comm_f2c(comm), rank)
  end subroutine MPI_Comm_rank

  subroutine MPI_Comm_size(comm, size, ierr)
    integer, intent(in) :: comm
    integer, intent(out) :: size, ierr
    ierr = c_comm_size(comm_f2c(comm), size)
  end subroutine MPI_Comm_size

  subroutine MPI_Barrier(comm, ierr)
    integer, intent(in) :: comm
    integer, intent(out) :: ierr
    ierr = c_barrier(comm_f2c(comm))
  end subroutine MPI_Barrier

  subroutine MPI_Irecv(buffer, count, datatype, source, tag, comm, request, ierr)
    type(*), asynchronous :: buffer(*)
    integer, intent(in) :: count, datatype, source, tag, comm
    integer, intent(out) :: request, ierr
    type(c_ptr) :: made
    made = request_f2c(MPI_REQUEST_NULL)
    ierr = c_irecv(buffer, count, type_f2c(datatype), source, tag, comm_f2c(comm), made)
    request = request_c2f(made)
  end subroutine MPI_Irecv

  subroutine MPI_Isend(buffer, count, datatype, target, tag, comm, request, ierr)
    type(*), intent(in), asynchronous :: buffer(*)
    integer, intent(in) :: count, datatype, target, tag, comm
    integer, intent(out) :: request, ierr
    type(c_ptr) :: made
    made = request_f2c(MPI_REQUEST_NULL)
    ierr = c_isend(buffer, count, type_f2c(datatype), target, tag, comm_f2c(comm), made)
    request = request_c2f(made)
  end subroutine MPI_Isend

  ! The status is that to be ignored: the example has no other.
  subroutine MPI_Wait(request, status, ierr)
    integer, intent(inout) :: request
    integer, intent(in) :: status(MPI_STATUS_SIZE)
    integer, intent(out) :: ierr
    type(c_ptr) :: handle
    if (.false.) ierr = status(1)
    handle = request_f2c(request)
    ierr = c_wait(handle, c_null_ptr)
    request = request_c2f(handle)
  end subroutine MPI_Wait

  subroutine MPI_Waitall(count, requests, statuses, ierr)
    integer, intent(in) :: count
    integer, intent(inout) :: requests(count)
    integer, intent(in) :: statuses(MPI_STATUS_SIZE, *)
    integer, intent(out) :: ierr
    type(c_ptr) :: handles(count)
    integer :: at
    if (.false.) ierr = statuses(1, 1)
    do at = 1, count
      handles(at) = request_f2c(requests(at))
    end do
    ierr = c_waitall(count, handles, c_null_ptr)
    do at = 1, count
      requests(at) = request_c2f(handles(at))
    end do
  end subroutine MPI_Waitall
end module mpi

module mpi_ext
  use, intrinsic :: iso_c_binding
  use mpi, only: comm_f2c
  implicit none
  private
  public :: MPIX_Comm_agree, MPIX_Comm_revoke, MPIX_Comm_shrink

  interface
    integer(c_int) function c_revoke(comm) bind(C, name="MPIX_Comm_revoke")
      import
      type(c_ptr), value :: comm
    end function c_revoke
    integer(c_int) function c_agree(comm, flag) bind(C, name="MPIX_Comm_agree")
      import
      type(c_ptr), value :: comm
      integer(c_int), intent(inout) :: flag
    end function c_agree
    integer(c_int) function c_shrink(comm, made) bind(C, name="MPIX_Comm_shrink")
      import
      type(c_ptr), value :: comm
      type(c_ptr), intent(out) :: made
    end function c_shrink
    integer(c_int) function comm_c2f(comm) bind(C, name="MPI_Comm_c2f")
      import
      type(c_ptr), value :: comm
    end function comm_c2f
  end interface

contains

  subroutine MPIX_Comm_revoke(comm, ierr)
    integer, intent(in) :: comm
    integer, intent(out) :: ierr
    ierr = c_revoke(comm_f2c(comm))
  end subroutine MPIX_Comm_revoke

  subroutine MPIX_Comm_agree(comm, flag, ierr)
    integer, intent(in) :: comm
    integer, intent(inout) :: flag
    integer, intent(out) :: ierr
    ierr = c_agree(comm_f2c(comm), flag)
  end subroutine MPIX_Comm_agree

  subroutine MPIX_Comm_shrink(comm, made, ierr)
    integer, intent(in) :: comm
    integer, intent(out) :: made, ierr
    type(c_ptr) :: handle
    ierr = c_shrink(comm_f2c(comm), handle)
    made = comm_c2f(handle)
  end subroutine MPIX_Comm_shrink
end module mpi_ext
