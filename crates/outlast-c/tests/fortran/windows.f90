! A job of Fortran programs with communicators, windows, pins, snapshots and region checkpoints.
! Then the last member reports that it is ready to be killed, while it holds a lock, and the
! survivors shrink the communicator and the window, restore the regions and go on. The argument is a
! folder for snapshots.
program windows
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int64, real64, error_unit, output_unit
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
  type(outlast_comm) :: comm, survivors
  type(outlast_window) :: window
  type(outlast_regions) :: regions
  type(outlast_region_options) :: options
  type(outlast_restored) :: at
  real(real64), target :: cells(1000)
  real(real64) :: lost(1)
  character(len=:), allocatable :: note, path
  character :: bytes(8)
  integer, allocatable :: ranks(:)
  integer(int64) :: length, flags
  integer :: me, last, rank, ierr, sender, tag

  call outlast_join(job)
  call outlast_open(job, store)
  call outlast_comm_world(job, comm)
  me = outlast_comm_rank(comm)
  last = outlast_comm_size(comm) - 1
  call check(last == 3 .and. me == outlast_me(job), "four ranks")
  call messages()
  call requests()
  call collectives()
  call window_calls()
  call store_calls()

  options%bytes = 2**20
  options%set = 4
  call outlast_regions_open(store, "cells", regions, options)
  call outlast_restore(regions, at, ierr)
  call check(ierr == outlast_absent, "nothing was saved yet")
  cells = me + 0.5_real64
  call outlast_protect(regions, "cells", cells, 8_int64*size(cells))
  call outlast_checkpoint(regions, 1_int64, "a note", ierr)
  call check(ierr == outlast_ok, "saved")

  call outlast_window_open(comm, 64_int64, window)
  if (me == last) call outlast_window_lock(window, 0, outlast_lock_exclusive)
  ! By messages: others may still be inside of a barrier that the last member has left.
  if (me == last) then
    do rank = 0, last - 1
      call outlast_comm_receive(comm, rank, 31, bytes, 8_int64, length, sender, tag)
    end do
    write (output_unit, '(a)') "ready"
    flush (output_unit)
    do
      ierr = int(c_usleep(100000_c_int))
    end do
  end if
  call outlast_comm_send(comm, last, 31, ["r"], 1_int64)
  call outlast_comm_receive(comm, last, 1, bytes, 8_int64, length, sender, tag, ierr)
  call check(ierr == outlast_proc_failed, "the death is told")
  call outlast_comm_get_failed(comm, ranks)
  call check(size(ranks) == 1 .and. ranks(1) == last, "the dead rank is listed")
  call outlast_comm_receive(comm, outlast_any, 1, bytes, 8_int64, length, sender, tag, ierr)
  call check(ierr == outlast_proc_failed_pending, "a receive from any source")
  call outlast_comm_notify_failures(comm, [0, 1, 2, last])
  call outlast_comm_failure_ack(comm)
  call outlast_comm_get_acked(comm, ranks)
  call check(size(ranks) == 1, "acknowledged")
  flags = merge(6_int64, 7_int64, me == 1)
  call outlast_comm_agree(comm, flags)
  call check(flags == 6, "agreed")
  call outlast_window_flush_all(window, ierr)
  call check(ierr == outlast_proc_failed, "the window knows of the death")
  call outlast_window_get_failed(window, ranks)
  call check(ranks(1) == last, "the dead rank of the window")
  call outlast_window_shrink(window, ranks)
  call check(ranks(1) == last, "shrunk")
  call outlast_barrier(job)
  if (me == 0) then
    call outlast_window_lock(window, 0, outlast_lock_exclusive, ierr)
    call check(ierr == outlast_abandoned, "the lock of the dead member")
    call outlast_window_unlock(window, 0)
    call outlast_window_revoke(window)
    call outlast_comm_revoke(comm)
  end if
  do while (.not. (outlast_window_is_revoked(window) .and. outlast_comm_is_revoked(comm)))
    ierr = int(c_usleep(1000_c_int))
  end do
  call outlast_comm_barrier(comm, ierr)
  call check(ierr == outlast_revoked, "revoked")
  call outlast_comm_shrink(comm, survivors)
  call check(outlast_comm_size(survivors) == 3, "three survivors")
  call outlast_window_shrink(window, ranks)
  call outlast_window_free(window)
  call outlast_comm_free(survivors)
  call outlast_comm_free(comm)

  ! The regions of all four owners are still there.
  call outlast_protect(regions, "cells", cells, 0_int64)
  call outlast_restore(regions, at)
  call check(at%version == 1 .and. at%size == 3, "restored")
  call outlast_region_note(regions, note)
  call check(note == "a note", "the note")
  call outlast_region_read(regions, last, "cells", 8_int64*999, lost, 8_int64)
  call check(lost(1) == last + 0.5_real64, "the region of the dead member")
  call outlast_regions_close(regions)
  call outlast_wait_repaired(store, 30000, ierr=ierr)
  call check(ierr == outlast_ok, "repaired")
  call outlast_domain(job, me, path)
  call check(path == "rack3/node17", "the domain of this member")
  call outlast_domain(job, 9, path, ierr)
  call check(ierr == outlast_invalid .and. path == "", "no such member")
  call outlast_fence(job, last, 1000)
  call outlast_fence(job, 9, 1000, ierr)
  call check(ierr == outlast_invalid, "no member to fence")
  call outlast_barrier(job)
  if (me == 0) then
    ! This member leaves, and no value is lost.
    call outlast_hand_over(store, 20000)
  else
    call outlast_wait_for(store, "never", 20000, member=0, ierr=ierr)
    call check(ierr == outlast_died, "the first member has left")
    call outlast_close(store)
    call outlast_leave(job)
  end if
  write (output_unit, '(a)') "ok"

contains

  subroutine messages()
    type(outlast_request) :: request
    integer :: next, before
    next = mod(me + 1, 4)
    before = mod(me + 3, 4)
    call outlast_comm_send(comm, next, 7, ["h", "e", "l", "l", "o"], 5_int64)
    call outlast_comm_receive(comm, before, 7, bytes, 2_int64, length, sender, tag, ierr)
    call check(ierr == outlast_too_small .and. length == 5, "too small")
    call outlast_comm_probe(comm, before, outlast_any, length, sender, tag)
    call check(length == 5 .and. sender == before .and. tag == 7, "probed")
    call outlast_comm_receive(comm, outlast_any, outlast_any, bytes, 8_int64, length, sender, tag)
    call check(length == 5 .and. sender == before .and. bytes(5) == "o", "received")
    call outlast_comm_start_receive(comm, before, 8, request)
    call outlast_request_test(request, bytes, 8_int64, length, sender, tag, ierr)
    call check(ierr == outlast_absent, "not sent yet")
    call outlast_comm_barrier(comm)
    call outlast_comm_send(comm, next, 8, ["l"], 1_int64)
    call outlast_request_wait(request, bytes, 8_int64, length, sender, tag)
    call check(length == 1 .and. sender == before .and. bytes(1) == "l", "waited for")
    call outlast_request_free(request)
    call outlast_comm_interrupt(comm, me)
    call outlast_comm_receive(comm, before, 9, bytes, 8_int64, length, sender, tag, ierr)
    call check(ierr == outlast_interrupted, "interrupted")
  end subroutine messages

  subroutine requests()
    type(outlast_request) :: list(3)
    type(outlast_window_request) :: put, get, least, add, swap
    integer(int64) :: word(1), words(3)
    integer :: next, before, rank, number
    next = mod(me + 1, 4)
    before = mod(me + 3, 4)
    call outlast_comm_rank_of(comm, next, rank)
    call check(rank == next, "the rank of a member")
    call outlast_comm_rank_of(comm, 9, rank, ierr)
    call check(rank == -1 .and. ierr == outlast_absent, "no such member")
    call outlast_comm_start_receive(comm, before, 20, list(1))
    call outlast_comm_start_receive(comm, before, 21, list(2))
    call outlast_comm_start_send(comm, next, 21, ["b", "y"], 2_int64, list(3))
    call outlast_request_wait(list(3), bytes, 8_int64, length, sender, tag)
    call outlast_request_wait_any(list, number)
    call check(number == 2, "the second receive is complete first")
    call outlast_request_wait(list(2), bytes, 8_int64, length, sender, tag)
    call check(length == 2 .and. bytes(2) == "y" .and. sender == before, "its message")
    call outlast_comm_barrier(comm)
    call outlast_comm_send(comm, next, 20, ["a"], 1_int64)
    call outlast_request_wait_all(list)
    call outlast_request_test(list(1), bytes, 8_int64, length, sender, tag)
    call check(length == 1 .and. bytes(1) == "a", "the message of the first receive")
    call outlast_request_wait_any(list, number, ierr)
    call check(ierr == outlast_over, "all messages were taken")
    do number = 1, 3
      call outlast_request_free(list(number))
    end do

    call outlast_window_open(comm, 64_int64, window)
    call outlast_window_start_put(window, me, 0_int64, ["p", "u", "t"], 3_int64, put)
    call outlast_window_request_wait(put, bytes, 8_int64, length)
    call check(length == 0, "a put has no result")
    call outlast_window_start_accumulate(window, me, 8_int64, outlast_op_sum, [1_int64, 2_int64], &
        add)
    call outlast_window_request_wait(add, bytes, 8_int64, length)
    call outlast_window_request_free(add)
    call outlast_window_start_fetch_and_op(window, me, 8_int64, outlast_op_sum, 6_int64, add)
    call outlast_window_start_fetch_and_op(window, me, 16_int64, outlast_op_min, -5_int64, least)
    call outlast_window_start_compare_and_swap(window, me, 24_int64, 0_int64, 9_int64, swap)
    call outlast_window_request_wait(least, word, 8_int64, length)
    call check(word(1) == 2 .and. length == 8, "the word before the least")
    call outlast_window_request_wait(add, word, 4_int64, length, ierr)
    call check(ierr == outlast_too_small, "a word has 8 bytes")
    call outlast_window_request_wait(add, word, 8_int64, length)
    call check(word(1) == 1, "the word before the sum")
    call outlast_window_request_wait(swap, word, 8_int64, length)
    call check(word(1) == 0, "the word before the swap")
    call outlast_window_request_wait(swap, word, 8_int64, length, ierr)
    call check(ierr == outlast_over, "the result was taken")
    call outlast_window_start_get(window, me, 8_int64, 24_int64, get)
    do
      call outlast_window_request_test(get, words, 24_int64, length, ierr)
      if (ierr /= outlast_absent) exit
    end do
    call check(ierr == outlast_ok .and. all(words == [7, -5, 9]), "what the operations left")
    call outlast_window_request_free(put)
    call outlast_window_request_free(get)
    call outlast_window_request_free(least)
    call outlast_window_request_free(add)
    call outlast_window_request_free(swap)
    call outlast_window_close(window)
  end subroutine requests

  subroutine collectives()
    type(outlast_comm) :: half, copy
    integer(int64) :: sums(2)
    real(real64) :: most(1)
    integer :: member
    sums = [int(me, int64), 1_int64]
    call outlast_comm_allreduce(comm, outlast_op_sum, sums)
    call check(all(sums == [6, 4]), "sums")
    most = me*0.5_real64
    call outlast_comm_allreduce(comm, outlast_op_max, most)
    call check(most(1) == 1.5_real64, "the largest")
    if (me /= 1) most = 0
    call outlast_comm_broadcast(comm, 1, most, 8_int64)
    call check(most(1) == 1.5_real64, "broadcast")
    call outlast_comm_split(comm, me/2, -me, half)
    call check(outlast_comm_size(half) == 2, "split")
    call outlast_comm_member(half, outlast_comm_rank(half), member)
    call check(member == me, "the member of a rank")
    call outlast_comm_free(half)
    call outlast_comm_duplicate(comm, copy)
    call outlast_comm_split(copy, merge(outlast_any, 5, me == 0), 0, half, ierr)
    call check(merge(ierr == outlast_absent, ierr == outlast_ok, me == 0), "no colour")
    if (me /= 0) call outlast_comm_free(half)
    call outlast_comm_free(copy)
  end subroutine collectives

  subroutine window_calls()
    integer(int64) :: before, offset
    integer :: next
    next = mod(me + 1, 4)
    call outlast_window_allocate(comm, 64_int64, window)
    call outlast_window_put(window, next, 0_int64, ["x"], 1_int64, ierr)
    call check(ierr == outlast_not_locked, "not locked")
    call outlast_window_lock(window, next, outlast_lock_exclusive)
    call outlast_window_check_lock(window, next)
    call outlast_window_put(window, next, 0_int64, ["m", "i"], 2_int64)
    call outlast_window_flush(window, next)
    call outlast_window_holders(window, next, ranks)
    call check(size(ranks) == 1 .and. ranks(1) == me, "the holder")
    call outlast_window_free(window, ierr)
    call check(ierr == outlast_still_locked, "still locked")
    call outlast_window_unlock(window, next)
    call outlast_comm_barrier(comm)
    call outlast_window_lock_all(window)
    call outlast_window_get(window, me, 0_int64, bytes, 2_int64)
    call check(bytes(1) == "m" .and. bytes(2) == "i", "the bytes of a neighbour")
    call outlast_window_flush_all(window)
    call outlast_window_unlock_all(window)
    call outlast_comm_barrier(comm)
    call outlast_window_free(window)

    call outlast_window_open(comm, 64_int64, window)
    call outlast_window_accumulate(window, 0, 8_int64, outlast_op_min, [-5_int64])
    call outlast_window_flush(window, 0)
    call outlast_window_put_blocking(window, next, 32_int64, ["s"], 1_int64)
    call outlast_comm_barrier(comm)
    call outlast_window_fetch_and_op(window, 0, 8_int64, outlast_op_keep, 0_int64, before)
    call check(before == -5, "the least")
    call outlast_window_compare_and_swap(window, me, 16_int64, 0_int64, 9_int64, before)
    call check(before == 0, "swapped")
    call outlast_window_grow(window, 64_int64, length)
    call outlast_window_len(window, me, before)
    call check(length == 128 .and. before == 128, "grown")
    call outlast_window_attach(window, 8_int64, offset)
    call outlast_window_put_blocking(window, me, offset, ["a"], 1_int64)
    call outlast_window_detach(window, offset)
    call outlast_window_get(window, me, offset, bytes, 1_int64, ierr)
    call check(ierr == outlast_invalid, "detached")
    call outlast_comm_barrier(comm)
    if (me == 1) call outlast_window_lock(window, 0, outlast_lock_exclusive)
    call outlast_comm_barrier(comm)
    if (me == 0) then
      call outlast_window_lock_within(window, 0, outlast_lock_exclusive, 5, ierr)
      call check(ierr == outlast_locked, "locked")
      call outlast_window_force_unlock(window, 0, ranks)
      call check(size(ranks) == 1 .and. ranks(1) == 1, "taken away")
    end if
    call outlast_comm_barrier(comm)
    if (me == 1) then
      call outlast_window_unlock(window, 0, ierr)
      call check(ierr == outlast_lock_lost, "lost")
    end if
    call outlast_comm_barrier(comm)
    call outlast_window_close(window)
  end subroutine window_calls

  subroutine store_calls()
    type(outlast_pin) :: pin
    type(outlast_stats) :: stats
    type(outlast_totals) :: totals
    type(outlast_memory) :: memory
    type(outlast_snapshots) :: snapshots
    type(outlast_snapshot) :: taken
    character(len=:), allocatable :: key, text
    character(len=1000) :: folder
    integer(int64) :: records, restored
    key = "mine/" // achar(iachar("0") + me)
    call outlast_put_nb(store, key, ["e", "i", "n", "s"], 4_int64)
    call outlast_flush(store)
    call outlast_pin_open(store, "no such key", pin, length, ierr)
    call check(ierr == outlast_absent, "no key to pin")
    call outlast_pin_open(store, key, pin, length)
    call outlast_put(store, key, "another")
    call outlast_pin_read(pin, 2_int64, bytes, 2_int64)
    call check(length == 4 .and. bytes(1) == "n" .and. bytes(2) == "s", "the pinned version")
    call outlast_pin_free(pin)
    call outlast_get_stats(store, stats)
    call outlast_get_totals(store, totals)
    call outlast_get_memory(store, memory)
    call check(stats%replicas_repaired == 0 .and. totals%keys >= 1 .and. memory%values > 0, &
               "figures")
    call get_command_argument(1, folder)
    call outlast_snapshots_open(store, trim(folder), snapshots)
    call outlast_barrier(job)
    if (me == 0) then
      call outlast_snapshot_take(snapshots, taken)
      call check(taken%records >= 4, "taken")
      call outlast_put(store, key, "gone")
      call outlast_snapshot_restore(store, trim(folder), 0_int64, 1_int64, records, restored)
      call outlast_get(store, key, text)
      call check(records == taken%records .and. text == "another", "restored")
    end if
    call outlast_barrier(job)
    call outlast_snapshots_free(snapshots)
  end subroutine store_calls

  ! Ends the program if the condition does not hold.
  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: what
    if (.not. condition) then
      write (error_unit, '(a, i0, 4a)') "member ", me, ": not right: ", what, ": ", &
        outlast_message()
      error stop 1
    end if
  end subroutine check
end program windows
