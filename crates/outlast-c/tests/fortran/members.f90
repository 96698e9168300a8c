! A job of Fortran programs: each makes every call of the module. Then the last member reports that
! it is ready to be killed, and the survivors take over its keys.
program members
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64, error_unit, output_unit
  use outlast
  implicit none

  interface
    integer(c_int) function c_usleep(microseconds) bind(C, name="usleep")
      import
      integer(c_int), value :: microseconds
    end function c_usleep
  end interface

  type(outlast_job) :: job
  type(outlast_store) :: store
  integer :: me, last, member, heir, ierr, at
  integer(int64) :: seen
  type(outlast_key), allocatable :: keys(:)
  character(len=:), allocatable :: text
  type(outlast_options) :: options

  call outlast_join(job)
  options%replicas = 3
  call outlast_open(job, store, options)
  me = outlast_me(job)
  last = outlast_members(job) - 1
  call check(outlast_living(job) == 4, "living")
  seen = outlast_epoch(store)
  call every_call_once()
  call transfers()
  call meet("written")
  call check_sum()
  call meet("checked")
  if (me == last) then
    write (output_unit, '(a)') "ready"
    flush (output_unit)
    do
      ierr = int(c_usleep(100000_c_int))
    end do
  end if

  call outlast_wait_for(store, "never", 60000, last, ierr)
  call check(ierr == outlast_died, "the death is told")
  call outlast_next_death(store, seen, member, heir, ierr)
  call check(ierr == outlast_ok .and. member == last .and. heir /= last, "the death is listed")
  if (heir == me) then
    call outlast_keys_of(store, member, keys)
    call check(size(keys) > 0, "the dead member has keys")
    do at = 1, size(keys)
      call outlast_adopt(store, keys(at)%name, ierr)
    end do
    call outlast_put(store, "adopted", "")
  end if
  call outlast_wait_for(store, "adopted", 60000, ierr=ierr)
  call check(ierr == outlast_ok, "adopted")
  call outlast_get(store, name_of("text", last), text)
  call check(text == "forty-two", "the value of the dead member")
  call outlast_close(store)
  call outlast_put(store, "closed", "x", ierr)
  call check(ierr == outlast_invalid, "a closed store")
  call check(len(outlast_message()) > 0, "a message")
  call outlast_leave(job)
  write (output_unit, '(a)') "ok"

contains

  subroutine check(is_true, what)
    logical, intent(in) :: is_true
    character(len=*), intent(in) :: what
    if (.not. is_true) then
      write (error_unit, '(4a)') "it does not hold: ", what, ": ", outlast_message()
      error stop 1
    end if
  end subroutine check

  function name_of(what, number) result(name)
    character(len=*), intent(in) :: what
    integer, intent(in) :: number
    character(len=:), allocatable :: name
    character(len=12) :: digits
    write (digits, '(i0)') number
    name = what//"/"//trim(digits)
  end function name_of

  subroutine meet(place)
    character(len=*), intent(in) :: place
    integer(int64) :: here
    call outlast_add(store, place, 1_int64, here)
    do while (here < last + 1)
      ierr = int(c_usleep(1000_c_int))
      call outlast_add(store, place, 0_int64, here)
    end do
  end subroutine meet

  subroutine every_call_once()
    real(real64) :: grid(3, 4), copy(3, 4), cube(2, 2, 2), number, line(6)
    real(real32) :: single(5), other(5)
    integer(int32) :: short, shorts(2, 2)
    integer(int64) :: long, sum
    integer :: abandoned
    type(outlast_lock_guard) :: guard, second
    character(len=:), allocatable :: read
    character(len=500) :: many

    call outlast_get(store, name_of("absent", me), number, ierr)
    call check(ierr == outlast_absent, "an absent key")
    call check(.not. outlast_exists(store, name_of("absent", me)), "absent")
    call check(outlast_length(store, name_of("absent", me), ierr) == -1, "no length")
    call random_number(grid)
    call outlast_put(store, name_of("grid", me), grid)
    copy = 0
    call outlast_get(store, name_of("grid", me), copy)
    call check(all(copy == grid), "the grid")
    call check(outlast_length(store, name_of("grid", me)) == 96, "the length")
    call outlast_get(store, name_of("grid", me), number, ierr)
    call check(ierr == outlast_wrong_type, "too long for the variable")
    call outlast_put(store, name_of("grid", me), grid(1:3:2, :))
    call outlast_get(store, name_of("grid", me), copy, ierr)
    call check(ierr == outlast_wrong_type, "too short for the variable")
    call outlast_get(store, name_of("grid", me), copy(1:2, :))
    call check(all(copy(1:2, :) == grid(1:3:2, :)), "an array that is not contiguous")
    cube = 7
    call outlast_put(store, name_of("cube", me), cube)
    cube = 0
    call outlast_get(store, name_of("cube", me), cube)
    call check(all(cube == 7), "the cube")
    line = [1, 2, 3, 4, 5, 6]
    call outlast_put(store, name_of("line", me), line)
    single = 0.5
    call outlast_put(store, name_of("single", me), single)
    call outlast_get(store, name_of("single", me), other)
    call check(all(other == 0.5), "reals of four bytes")
    call outlast_put(store, name_of("short", me), 41_int32)
    call outlast_get(store, name_of("short", me), short)
    call check(short == 41, "an integer")
    shorts = 3
    call outlast_put(store, name_of("shorts", me), shorts)
    call outlast_put(store, name_of("long", me), 2_int64**40)
    call outlast_get(store, name_of("long", me), long)
    call check(long == 2_int64**40, "a long integer")
    many = repeat("z", 500)
    call outlast_put(store, name_of("text", me), many)
    call outlast_get(store, name_of("text", me), read)
    call check(read == many, "a long text")
    call outlast_put(store, name_of("text", me), "forty-two")
    call outlast_get(store, name_of("text", me), read)
    call check(len(read) == 9 .and. read == "forty-two", "a text")
    call outlast_add(store, name_of("text", me), 1_int64, ierr=ierr)
    call check(ierr == outlast_wrong_type, "no number")
    call outlast_add(store, name_of("count", me), 5_int64, sum)
    call check(sum == 5, "the sum")
    call outlast_delete(store, name_of("count", me), ierr)
    call check(ierr == outlast_ok, "deleted")
    call outlast_delete(store, name_of("count", me), ierr)
    call check(ierr == outlast_absent, "deleted already")
    call outlast_put(store, "", "x", ierr)
    call check(ierr == outlast_invalid, "an empty key")
    call outlast_scan(store, name_of("text", me), keys)
    call check(size(keys) == 1, "the scan")
    call outlast_lock(store, name_of("lock", me), 1000, guard, abandoned)
    call check(abandoned == -1, "a new lock")
    call outlast_lock(store, name_of("lock", me), 1, second, ierr=ierr)
    call check(ierr == outlast_locked, "a held lock")
    call outlast_unlock(guard)
  end subroutine every_call_once

  subroutine transfers()
    type(outlast_tx) :: tx
    integer :: round
    integer(int64) :: from
    call outlast_tx_begin(store, tx)
    do round = 1, 20
      do
        call outlast_tx_get(tx, "from", from, ierr)
        if (ierr == outlast_absent) then
          from = 0
          ierr = outlast_ok
        end if
        if (ierr == outlast_ok) call outlast_tx_put(tx, "from", from - 1, ierr)
        if (ierr == outlast_ok) call outlast_tx_get(tx, "to", from, ierr)
        if (ierr == outlast_absent) then
          from = 0
          ierr = outlast_ok
        end if
        if (ierr == outlast_ok) call outlast_tx_put(tx, "to", from + 1, ierr)
        if (ierr == outlast_ok) call outlast_tx_commit(tx, ierr)
        if (ierr /= outlast_aborted) exit
        call outlast_tx_retry(tx)
      end do
      call check(ierr == outlast_ok, "a transfer")
      call outlast_tx_free(tx)
      call outlast_tx_begin(store, tx)
    end do
    call outlast_tx_put(tx, "never", "x")
    call outlast_tx_abort(tx)
    call outlast_tx_free(tx)
    call check(.not. outlast_exists(store, "never"), "aborted")
  end subroutine transfers

  subroutine check_sum()
    integer(int64) :: from, to
    call outlast_get(store, "from", from)
    call outlast_get(store, "to", to)
    call check(from == -20*(last + 1) .and. to == 20*(last + 1), "the sum of all transfers")
  end subroutine check_sum
end program members
