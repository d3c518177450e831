"""Reservations that are awaited, on simulated pools: no GPU is needed."""

import asyncio
import gc
import http.client
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import weirpool

MIB = 1 << 20


@pytest.fixture
def pool():
    return weirpool.Pool.simulated("64MiB")


def used(pool):
    return pool.stats()["pool"]["used"]["current"]


def waiting(pool):
    return len(pool.stats()["waiting"])


def until(holds, limit=20.0):
    """Waits until a condition holds."""
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.002)


async def until_async(holds, limit=20.0):
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, "it never held"
        await asyncio.sleep(0.002)


# ---- reserving -----------------------------------------------------------------------------------


def test_reservation_is_awaited_entered_or_tried(pool):
    async def main():
        async with pool.reserve("32MiB", tag="chat") as memory:
            assert (memory.size, memory.left, memory.tag) == (32 * MIB, 32 * MIB, "chat")
            assert used(pool) == 32 * MIB
        assert used(pool) == 0
        memory = await pool.reserve(MIB)
        memory.release()
        memory.release()

    asyncio.run(main())
    with pool.reserve(MIB) as memory:
        assert memory.size == MIB
    with pool.reserve([MIB, 2 * MIB]).try_now() as memory:
        assert memory.size == 3 * MIB
        part = memory.split("1MiB")
        assert (memory.size, part.size) == (2 * MIB, MIB)
        part.release()
    assert used(pool) == 0
    with pytest.raises(RuntimeError, match="released"):
        memory.size


@pytest.mark.parametrize("size", ["much", "", 0, -1, 1 << 70, "0", []])
def test_invalid_size_is_a_value_error(pool, size):
    with pytest.raises(ValueError):
        pool.reserve(size)


@pytest.mark.parametrize("size", [None, 1.5, True, object()])
def test_other_type_of_size_is_a_type_error(pool, size):
    with pytest.raises(TypeError):
        pool.reserve(size)


@pytest.mark.parametrize("limit", [{"deadline": -1}, {"timeout": float("nan")}, {"deadline": 1e300}])
def test_invalid_time_is_a_value_error(pool, limit):
    with pytest.raises(ValueError, match="seconds"):
        pool.reserve(MIB, **limit).blocking()


def test_loop_runs_while_a_task_waits(pool):
    async def main():
        memory = await pool.reserve("64MiB")
        task = asyncio.create_task(pool.reserve(MIB)._wait())
        steps = 0
        while waiting(pool) == 0:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0.001)
            steps += 1
        assert not task.done() and steps == 100
        memory.release()
        (await task).release()

    asyncio.run(main())
    assert used(pool) == 0


def test_blocking_wait_leaves_other_threads_python_lock(pool):
    memory = pool.reserve("64MiB").try_now()
    steps = []

    def work():
        until(lambda: waiting(pool) == 1)
        for _ in range(100):
            steps.append(1)
        memory.release()

    thread = threading.Thread(target=work)
    thread.start()
    with pool.reserve("64MiB", timeout=20):
        assert len(steps) == 100
    thread.join()


def test_blocking_wait_on_the_thread_of_a_loop_is_refused(pool):
    async def main():
        with pool.reserve("64MiB"):
            with pytest.raises(RuntimeError, match="async with"):
                pool.reserve(MIB).blocking()

    asyncio.run(main())


def test_signal_ends_a_blocking_wait(pool):
    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pool.reserve("64MiB").try_now():
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(Interrupted):
                pool.reserve(MIB).blocking()
            until(lambda: waiting(pool) == 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert used(pool) == 0


# ---- refusals ------------------------------------------------------------------------------------


def test_refusals_are_typed():
    pool = weirpool.Pool.simulated("64MiB", queue_limit=1)
    pool.tag("small").set_limit("1MiB")
    with pool.reserve("64MiB").try_now():
        with pytest.raises(weirpool.DeadlineExceeded, match="timed out") as late:
            pool.reserve(MIB, deadline=0.02).blocking()
        with pytest.raises(weirpool.Exhausted):
            pool.reserve(MIB).try_now()
        assert isinstance(late.value, weirpool.OutOfMemory) and isinstance(late.value, MemoryError)
        assert late.value.retry_after is None or late.value.retry_after > 0
        with pytest.raises(weirpool.TooLarge, match="can never fit"):
            pool.reserve("65MiB").blocking()
        with pytest.raises(weirpool.TooLarge, match="tag small"):
            pool.reserve("2MiB", tag="small").blocking()

        async def main():
            task = asyncio.create_task(pool.reserve(MIB)._wait())
            await until_async(lambda: waiting(pool) == 1)
            with pytest.raises(weirpool.QueueFull):
                await pool.reserve(MIB)
            pool.close()
            with pytest.raises(weirpool.Closed):
                await task
            with pytest.raises(weirpool.Closed):
                await pool.reserve(MIB)

        asyncio.run(main())


def test_pool_that_admits_no_more_requests_goes_on_with_what_is_held():
    pool = weirpool.Pool.simulated("64MiB")

    def draw():
        return pool.allocate("1MiB")

    async def main():
        async with pool.reserve("64MiB") as memory:
            task = asyncio.create_task(pool.reserve(MIB)._wait())
            await until_async(lambda: waiting(pool) == 1)
            pool.stop_admitting()
            with pytest.raises(weirpool.Stopping) as stopping:
                await task
            with pytest.raises(weirpool.Stopping, match="another server"):
                await pool.reserve(MIB)
            assert stopping.value.retry_after is None and not isinstance(stopping.value, MemoryError)
            assert await memory.run(draw) is not None
            with pytest.raises(RuntimeError, match="to_thread"):
                pool.drain()
            with pytest.raises(TimeoutError, match="64"):
                await asyncio.to_thread(pool.drain, 0.12)
            draining = asyncio.create_task(asyncio.to_thread(pool.drain, 20))
            await asyncio.sleep(0.07)
            assert not draining.done()
        await draining
        pool.close()
        with pytest.raises(weirpool.Closed):
            await pool.reserve(MIB)

    asyncio.run(main())


def test_tag_at_its_limit_is_refused_or_waits(pool):
    tag = pool.tag("limited").set_limit("4MiB").set_weight(3).set_queue_limit(1)
    with pool.reserve("4MiB", tag="limited").try_now():
        with pytest.raises(weirpool.LimitReached, match="limited"):
            pool.reserve(MIB, tag="limited").try_now()
        with pytest.raises(weirpool.DeadlineExceeded):
            pool.reserve(MIB, tag="limited", timeout=0.02).blocking()
        stats = tag.stats()
        assert (stats["limit"], stats["weight"], stats["used"]["current"]) == (4 * MIB, 3, 4 * MIB)
    tag.set_queue_limit(0)
    with pool.reserve("4MiB", tag="limited").try_now():
        with pytest.raises(weirpool.QueueFull):
            pool.reserve(MIB, tag="limited").blocking()
    tag.set_queue_limit().set_limit(None)
    assert tag.stats()["limit"] is None


def test_deadlock_is_refused_with_its_reason():
    pool = weirpool.Pool.simulated("64MiB", fail_deadlocks_after=0.05)
    with pool.reserve("64MiB").try_now():
        with pytest.raises(weirpool.Deadlocked, match="deadlocked"):
            pool.reserve(MIB, timeout=20).blocking()


def test_exceptions_can_be_pickled():
    error = pickle.loads(pickle.dumps(weirpool.QueueFull("full", 0.5)))
    assert (type(error), str(error), error.retry_after) == (weirpool.QueueFull, "full", 0.5)


def test_timed_out_allocation_names_the_holders(pool):
    with pool.reserve("60MiB", tag="named holder").try_now() as memory:
        entered, leave = threading.Event(), threading.Event()

        def hold():
            with memory.active():
                entered.set()
                leave.wait()

        thread = threading.Thread(target=hold, name="holding thread")
        thread.start()
        entered.wait()
        with pytest.raises(weirpool.DeadlineExceeded) as error:
            pool.allocate("8MiB", timeout=0.02)
        leave.set()
        thread.join()
    for part in ("tag named holder", "holding thread", "60.0 MiB not allocated"):
        assert part in str(error.value), error.value


def test_holders_are_told_at_any_time(pool):
    assert pool.holders() == ""
    with pool.reserve("60MiB", tag="a holder").try_now():
        assert "reservation" in pool.holders() and "for tag a holder" in pool.holders()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon"])
@pytest.mark.parametrize("term", ["deadline", "timeout"])
def test_duration_that_is_none_is_refused(pool, term, seconds):
    with pytest.raises(ValueError, match=f"{term} is a number of seconds"):
        pool.reserve(MIB, **{term: seconds})


@pytest.mark.parametrize("weight", [-1, 1 << 32, 0.5, "3"])
def test_weight_that_is_no_whole_number_is_refused(pool, weight):
    with pytest.raises(ValueError, match="a weight is a whole number"):
        pool.tag("t").set_weight(weight)


@pytest.mark.parametrize("value", [3, "x", None, bytearray(8)])
def test_value_that_is_no_tensor_cannot_be_evictable(pool, value):
    for evictable in (pool.evictable, weirpool.evictable):
        with pytest.raises(TypeError, match="expected a tensor of PyTorch"):
            evictable(value)


def test_tag_may_be_given_by_its_account(pool):
    with pool.reserve(MIB, tag=pool.tag("chat")).try_now() as memory:
        assert memory.tag == "chat"
    with pytest.raises(TypeError, match="a tag is a text"):
        pool.reserve(MIB, tag=3)


def test_block_of_another_pool_is_not_evictable_here(pool):
    block = pool.allocate(MIB)
    with pytest.raises(weirpool.ForeignMemory, match="another pool"):
        weirpool.Pool.simulated("64MiB").evictable(block)
    assert pool.evictable(block).is_present


def test_function_that_ends_an_iterator_fails(pool):
    async def main():
        async with pool.reserve(MIB) as memory:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await asyncio.wait_for(memory.run(next, iter(())), 10)

    asyncio.run(main())


def test_functions_run_although_the_executor_of_the_loop_is_full(pool):
    def block():
        with pool.reserve("64MiB", timeout=20):
            pass

    async def main():
        async with pool.reserve("64MiB") as memory:
            blocked = [asyncio.create_task(asyncio.to_thread(block)) for _ in range(64)]
            await until_async(lambda: waiting(pool) > 0)
            assert await asyncio.wait_for(memory.run(lambda: 7), 10) == 7
        await asyncio.gather(*blocked)

    asyncio.run(main())


def test_function_with_awaits_is_not_run_in_a_thread(pool):
    async def work():
        raise AssertionError("it is not called")

    async def main():
        async with pool.reserve(MIB) as memory:
            with pytest.raises(TypeError, match="plain function"):
                await memory.run(work)

    asyncio.run(main())


# ---- active reservations -------------------------------------------------------------------------


def test_active_reservation_serves_the_allocations_of_its_thread_on_any_stream(pool):
    with pool.reserve("8MiB").try_now() as memory, pool.reserve("56MiB").try_now():
        with memory.active() as same:
            assert same is memory
            first = pool.allocate(4 * MIB)
            second = pool.allocate(2 * MIB, stream=pool.stream())
            assert memory.left == 2 * MIB
            # It never waits.
            begin = time.monotonic()
            with pytest.raises(weirpool.NotReserved, match="2 MiB|2.0 MiB"):
                pool.allocate(4 * MIB, timeout=20)
            assert time.monotonic() - begin < 10
            first.free()
            assert pool.allocate(4 * MIB).free()
        with pytest.raises(weirpool.DeadlineExceeded):
            pool.allocate(MIB, timeout=0.01)
        second.free()


def test_active_reservation_is_of_its_thread_alone_without_a_stream(pool):
    with pool.reserve("64MiB").try_now() as memory:
        stream, outcome = pool.stream(), []

        def allocate():
            try:
                outcome.append(pool.allocate(MIB, stream=stream, timeout=0.01).free())
            except weirpool.DeadlineExceeded:
                outcome.append("late")

        for context in (memory.active(), memory.active(stream)):
            with context:
                thread = threading.Thread(target=allocate)
                thread.start()
                thread.join()
        assert outcome == ["late", True]


def test_reservation_that_is_released_while_blocks_live_leaves_them(pool):
    with pool.reserve("8MiB").try_now() as memory:
        with memory.active():
            block = pool.allocate(4 * MIB)
            memory.release()
            # The context keeps it.
            assert used(pool) == 8 * MIB
            other = pool.allocate(2 * MIB)
        assert used(pool) == 6 * MIB
        with pytest.raises(RuntimeError, match="released"):
            with memory.active():
                pass
    block.free()
    other.free()
    until(lambda: used(pool) == 0)


def test_exception_inside_active_ends_it(pool):
    with pool.reserve(MIB).try_now() as memory:
        with pytest.raises(ZeroDivisionError):
            with memory.active():
                1 / 0
        pool.allocate(4 * MIB).free()


def test_active_contexts_end_in_any_order(pool):
    first, second = pool.reserve(MIB).try_now(), pool.reserve(2 * MIB).try_now()
    outer, inner = first.active(), second.active()
    outer.__enter__(), inner.__enter__()
    with pytest.raises(RuntimeError, match="already"):
        outer.__enter__()
    outer.__exit__(None, None, None)
    block = pool.allocate(2 * MIB)
    assert second.left == 0
    inner.__exit__(None, None, None)
    block.free()
    first.release(), second.release()


def test_thread_that_dies_ends_its_active_context(pool):
    memory, contexts = pool.reserve("8MiB").try_now(), []

    def die():
        context = memory.active()
        context.__enter__()
        contexts.append(context)

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    memory.release()
    until(lambda: used(pool) == 0)
    with pytest.raises(RuntimeError, match="another thread"):
        contexts[0].__exit__(None, None, None)


def test_active_that_spans_an_await_is_refused_and_serves_no_other_task(pool):
    outcome = []

    async def spans(memory):
        with memory.active():
            pool.allocate(MIB).free()
            await asyncio.sleep(0.01)
            outcome.append(memory.left)

    async def other(memory):
        block = pool.allocate(2 * MIB)
        outcome.append(memory.left)
        block.free()

    async def main():
        async with pool.reserve("8MiB") as memory:
            # Both are ready before the first one runs.
            first, second = asyncio.create_task(spans(memory)), asyncio.create_task(other(memory))
            await second
            with pytest.raises(RuntimeError, match="spans an await"):
                await first

    asyncio.run(main())
    assert outcome == [8 * MIB, 8 * MIB]


def test_active_within_a_step_of_a_task_is_allowed(pool):
    async def main():
        async with pool.reserve("8MiB") as memory:
            for _ in range(3):
                with memory.active():
                    block = pool.allocate(MIB)
                    assert memory.left == 7 * MIB
                await asyncio.sleep(0)
                block.free()

    asyncio.run(main())


def test_run_calls_a_function_with_the_reservation_active(pool):
    def work(size, *, name):
        block = pool.allocate(size)
        left = memory.left
        block.free()
        return left, name, threading.current_thread() is threading.main_thread()

    async def main():
        nonlocal memory
        async with pool.reserve("8MiB") as memory:
            assert await memory.run(work, MIB, name="x") == (7 * MIB, "x", False)
            with pytest.raises(weirpool.NotReserved):
                await memory.run(pool.allocate, 16 * MIB)
            assert await asyncio.gather(*(memory.run(work, MIB // 8, name=n) for n in range(8)))

    memory = None
    asyncio.run(main())
    assert used(pool) == 0


def test_cancelled_run_keeps_the_reservation_until_the_function_ends(pool):
    begun, go, outcome = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go.wait()
        outcome.append(pool.allocate(8 * MIB).free())

    async def main():
        async with pool.reserve("8MiB") as memory:
            task = asyncio.create_task(memory.run(work))
            await until_async(begun.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert used(pool) == 8 * MIB
        go.set()
        await until_async(lambda: used(pool) == 0)

    asyncio.run(main())
    assert outcome == [True]


def test_tag_is_charged_for_allocations_outside_reservations(pool):
    tag = pool.tag("charged outside").set_limit("4MiB")
    with tag.active():
        block = pool.allocate(4 * MIB)
        assert tag.stats()["used"]["current"] == 4 * MIB
        with pytest.raises(weirpool.DeadlineExceeded):
            pool.allocate(MIB, timeout=0.01)
        with pool.reserve(MIB).try_now() as memory, memory.active():
            pool.allocate(MIB).free()
    block.free()
    assert tag.stats()["used"]["current"] == 0


# ---- cancellation and ends -----------------------------------------------------------------------


def test_cancellation_at_every_step_loses_nothing(pool):
    async def main():
        for steps in range(40):
            holder = await pool.reserve("64MiB")
            task = asyncio.create_task(pool.reserve("8MiB")._wait())
            for step in range(steps):
                if step == 10:
                    holder.release()
                await asyncio.sleep(0 if steps % 2 else 0.0005)
            task.cancel()
            try:
                (await task).release()
            except asyncio.CancelledError:
                pass
            holder.release()
            await until_async(lambda: used(pool) == 0 and waiting(pool) == 0)

    asyncio.run(main())


def test_cancellation_after_the_grant_and_before_the_step_loses_nothing(pool):
    async def main():
        async def enter():
            async with pool.reserve("8MiB"):
                raise AssertionError("it was cancelled")

        for _ in range(50):
            holder = await pool.reserve("64MiB")
            task = asyncio.create_task(enter())
            await until_async(lambda: waiting(pool) == 1)
            holder.release()
            # Granted on another thread, while this one keeps the loop.
            until(lambda: used(pool) == 8 * MIB)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_async(lambda: used(pool) == 0)

    asyncio.run(main())


def test_thousand_tasks_wait_and_are_served_in_order(pool):
    order = []

    async def serve(number):
        async with pool.reserve("64MiB"):
            order.append(number)

    async def main():
        holder = await pool.reserve("64MiB")
        tasks = []
        for number in range(1000):
            tasks.append(asyncio.create_task(serve(number)))
        await until_async(lambda: waiting(pool) == 1000)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks[::2], return_exceptions=True)
        assert waiting(pool) == 500, "a cancelled request has left when its task hears of it"
        holder.release()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert order == list(range(1, 1000, 2))


def test_request_whose_loop_was_closed_gives_its_memory_back(pool):
    holder = pool.reserve("64MiB").try_now()
    loop = asyncio.new_event_loop()

    async def serve():
        await pool.reserve("48MiB")

    task = loop.create_task(serve())
    loop.run_until_complete(asyncio.sleep(0.02))
    assert waiting(pool) == 1 and not task.done()
    loop.close()
    holder.release()
    until(lambda: used(pool) == 0 and waiting(pool) == 0)
    # The task is destroyed while it is pending, as the program wants it.
    task._log_destroy_pending = False


def test_reports_keep_no_memory(pool):
    done = threading.Event()

    def report():
        while not done.is_set():
            pool.holders()

    thread = threading.Thread(target=report)
    thread.start()
    try:
        for _ in range(20000):
            memory = pool.reserve("64MiB").try_now()
            memory.release()
    finally:
        done.set()
        thread.join()


def test_request_that_two_threads_enter_belongs_to_the_first(pool):
    request, barrier, entered = pool.reserve("16MiB"), threading.Barrier(2), []

    def enter():
        barrier.wait()
        try:
            with request as memory:
                time.sleep(0.05)
                entered.append(memory.left)
        except RuntimeError:
            entered.append(None)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entered, key=str) == [16 * MIB, None]
    assert used(pool) == 0
    assert used(pool) == 0 and waiting(pool) == 0


def test_closed_loop_gives_up_its_requests(pool):
    holder = pool.reserve("64MiB").try_now()
    loop = asyncio.new_event_loop()
    task = loop.create_task(pool.reserve("8MiB")._wait())
    loop.run_until_complete(asyncio.sleep(0))
    until(lambda: waiting(pool) == 1)
    loop.close()
    task._log_destroy_pending = False
    del task
    gc.collect()
    until(lambda: waiting(pool) == 0)
    holder.release()
    assert used(pool) == 0


def test_closed_loop_whose_task_is_kept_loses_no_memory(pool):
    holder = pool.reserve("64MiB").try_now()
    loop = asyncio.new_event_loop()
    task = loop.create_task(pool.reserve("8MiB")._wait())
    loop.run_until_complete(asyncio.sleep(0))
    until(lambda: waiting(pool) == 1)
    loop.close()
    holder.release()
    until(lambda: waiting(pool) == 0)
    task._log_destroy_pending = False
    del task
    gc.collect()
    until(lambda: used(pool) == 0)


def test_task_without_references_is_served(pool):
    served = threading.Event()

    async def serve():
        async with pool.reserve("8MiB"):
            served.set()

    async def main():
        holder = await pool.reserve("64MiB")
        asyncio.create_task(serve())
        await until_async(lambda: waiting(pool) == 1)
        gc.collect()
        holder.release()
        await until_async(served.is_set)

    asyncio.run(main())
    until(lambda: used(pool) == 0)


def test_request_that_is_never_awaited_never_waits(pool):
    request = pool.reserve("8MiB")
    coroutine = request._wait()
    coroutine.close()
    assert waiting(pool) == 0 and used(pool) == 0
    del request


def test_two_loops_in_two_threads_share_a_pool(pool):
    served = []

    async def serve(number):
        for _ in range(20):
            async with pool.reserve("48MiB", deadline=30):
                served.append(number)
                await asyncio.sleep(0)

    threads = [threading.Thread(target=lambda number=number: asyncio.run(serve(number))) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(served) == [0] * 20 + [1] * 20
    assert used(pool) == 0


def test_other_loops_are_served(pool):
    uvloop = pytest.importorskip("uvloop")

    async def serve():
        async with pool.reserve("48MiB", deadline=30) as memory:
            with memory.active():
                pool.allocate(MIB).free()
            assert await memory.run(lambda: 1) == 1

    async def main():
        await asyncio.gather(*(serve() for _ in range(20)))
        async with pool.reserve("8MiB") as memory:
            with pytest.raises(RuntimeError, match="spans an await"):
                with memory.active():
                    await asyncio.sleep(0.01)

    loop = uvloop.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    assert used(pool) == 0


def test_forked_process_is_refused_and_ends_cleanly(python):
    code = """
import os, sys, weirpool
pool = weirpool.Pool.simulated("64MiB")
memory = pool.reserve("8MiB").blocking()
block = pool.allocate("1MiB")
child = os.fork()
if child == 0:
    for call in (lambda: pool.reserve("1MiB").blocking(), pool.stats, lambda: memory.size, lambda: weirpool.Pool.simulated("8MiB")):
        try:
            call()
        except RuntimeError as error:
            assert "forked" in str(error), error
        else:
            os._exit(2)
    memory.release(); block.free()
    del memory, pool, block
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = python("-c", code, timeout=60)
    assert done.returncode == 0, done.stderr


def test_process_ends_while_requests_wait(python):
    code = """
import asyncio, threading, weirpool
pool = weirpool.Pool.simulated("64MiB")
memory = pool.reserve("64MiB").try_now()
threading.Thread(target=lambda: pool.reserve("8MiB").blocking(), daemon=True).start()
loop = asyncio.new_event_loop()
task = loop.create_task(pool.reserve("8MiB")._wait())
loop.run_until_complete(asyncio.sleep(0.05))
"""
    done = python("-c", code, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- evictable memory, figures, the page ---------------------------------------------------------


def test_evictable_memory_goes_before_a_request_waits(pool):
    first, second = (pool.evictable(pool.allocate("24MiB")) for _ in range(2))
    in_use = first.get()
    with pool.reserve("32MiB", timeout=20) as memory:
        assert memory.size == 32 * MIB
        assert first.is_present and not second.is_present and second.get() is None
        in_use.free()
        assert first.get().free()
    with pytest.raises(weirpool.ForeignMemory):
        pool.evictable(in_use)


def test_stats_have_the_pool_the_tags_and_the_waiting_requests(pool):
    with pool.reserve("64MiB", tag="counted").try_now():
        coroutine = pool.reserve(MIB, tag="waits")._wait()
        loop = asyncio.new_event_loop()
        task = loop.create_task(coroutine)
        loop.run_until_complete(asyncio.sleep(0))
        until(lambda: waiting(pool) == 1)
        stats = pool.stats()
        assert stats["pool"]["capacity"] == pool.capacity == 64 * MIB
        assert "counted" in [tag["tag"] for tag in stats["tags"]]
        assert stats["waiting"][0]["requested"] == MIB and stats["waiting"][0]["tag"] == "waits"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()


def test_page_is_served_to_its_own_origin_alone(pool):
    with pool.serve_page(title="a service") as page:
        with urllib.request.urlopen(page.url, timeout=10) as answer:
            assert answer.status == 200 and b"a service" in answer.read()
        for headers, status in [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)]:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(page.url, headers=headers), timeout=10)
            assert refused.value.code == status
        with pytest.raises(OSError, match="no page on port"):
            pool.serve_page(int(page.url.rsplit(":", 1)[1].strip("/")))
    with pytest.raises(OSError):
        urllib.request.urlopen(page.url, timeout=10).close()
    port = int(page.url.rsplit(":", 1)[1].strip("/"))
    for _ in range(20):
        pool.serve_page(port).close()


def test_page_is_served_on_after_its_object_is_gone(pool):
    url = pool.serve_page().url
    gc.collect()
    for _ in range(20):
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.status == 200
        time.sleep(0.005)


def test_missing_broker_is_an_error(tmp_path):
    with pytest.raises(RuntimeError):
        weirpool.Pool.simulated("64MiB", broker=str(tmp_path / "none.sock"))


@pytest.fixture
def broker(tmp_path):
    """The socket of a broker with 128 MiB."""
    tool = os.environ.get("WEIRPOOL_TOOL")
    if not tool:
        pytest.skip("WEIRPOOL_TOOL does not name the command-line tool of weirpool")
    socket = tmp_path / "gpu.sock"
    serving = subprocess.Popen([tool, "broker", "--capacity", "128MiB", "--socket", str(socket)])
    until(socket.exists)
    yield str(socket)
    serving.terminate()
    assert serving.wait(20) == 0


HOLDER = """
import sys, weirpool
memory = weirpool.Pool.simulated("256MiB", broker=sys.argv[1]).reserve("96MiB").__enter__()
print("granted", flush=True)
sys.stdin.read()
memory.release()
print("released", flush=True)
"""


def test_processes_of_a_broker_wait_for_each_others_memory(broker):
    def holder():
        command = [sys.executable, "-c", HOLDER, broker]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)

    pool = weirpool.Pool.simulated("256MiB", broker=broker)
    with pool.reserve("96MiB"):
        other = holder()
        # It waits in its own queue while this process holds the memory.
        with pytest.raises(weirpool.DeadlineExceeded), pool.reserve("64MiB", deadline=0.5):
            pass
        assert other.poll() is None and not select.select([other.stdout], [], [], 0)[0]
    assert other.stdout.readline() == "granted\n"
    with pytest.raises(weirpool.OutOfMemory):
        pool.reserve("96MiB").try_now()
    other.stdin.close()
    with pool.reserve("96MiB", deadline=20.0) as memory:
        assert memory.size == 96 * MIB
    assert other.stdout.readline() == "released\n" and other.wait(20) == 0


@pytest.mark.torch
def test_example_service_runs_without_a_gpu(python):
    example = Path(__file__).parent.parent / "examples" / "service.py"
    small = "--requests 8 --layers 1 --width 64 --heads 4 --context 64 --samples 2 --tokens 2 --memory 1".split()
    done = python(example, "--cpu", *small, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("0 of 8") == 2, done.stdout


def test_fastapi_service_that_is_terminated_under_load_breaks_no_answer():
    for module in ("fastapi", "uvicorn"):
        pytest.importorskip(module)
    example = Path(__file__).parent.parent / "examples" / "fastapi_service.py"
    service = subprocess.Popen([sys.executable, str(example), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = ""
    while "running on" not in line:
        line = service.stdout.readline()
        assert line, "the service did not start"
    url = re.search(r"http://[0-9.:]+", line).group()
    counts = {"complete": 0, "refused": 0, "broken": 0}
    lock = threading.Lock()

    def client():
        while True:
            try:
                answer = urllib.request.urlopen(urllib.request.Request(f"{url}/generate", method="POST"), timeout=60)
            except urllib.error.HTTPError as error:
                kind = "refused" if error.code == 503 and error.headers["Retry-After"] else "broken"
            except OSError:
                # It listens no more.
                return
            else:
                try:
                    kind = "complete" if answer.read().endswith(b"done\n") else "broken"
                except (OSError, http.client.IncompleteRead):
                    kind = "broken"
            with lock:
                counts[kind] += 1

    clients = [threading.Thread(target=client) for _ in range(24)]
    for thread in clients:
        thread.start()
    until(lambda: counts["complete"] >= 20)
    service.terminate()
    rest = service.stdout.read()
    service.wait(60)
    for thread in clients:
        thread.join(60)
    assert counts["broken"] == 0 and counts["refused"] > 0, (counts, rest)
    assert "all memory was returned" in rest, rest


@pytest.mark.skipif(sys.platform != "linux", reason="brokers need Linux")
def test_device_pools_need_a_device():
    from weirpool import _native

    with pytest.raises(RuntimeError):
        _native.NativePool.of_device(-1)
