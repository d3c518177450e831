"""Regions on simulated pools: no GPU is needed."""

import asyncio
import os
import pickle
import signal
import threading
import time
import warnings

import pytest

import weirpool

MIB = 1 << 20


@pytest.fixture
def pool():
    return weirpool.Pool.simulated("128MiB")


def used(pool):
    return pool.stats()["pool"]["used"]["current"]


def waiting(pool):
    return len(pool.stats()["waiting"])


async def until(holds, limit=20.0):
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, "it never held"
        await asyncio.sleep(0.002)


def filled(pool, region, size="1MiB", text=b"weir"):
    with region.active():
        block = pool.allocate(size)
    block.write(text)
    return block


# ---- suspending and resuming ---------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["host", "pageable"])
def test_contents_and_addresses_are_kept(pool, keep):
    region = pool.region("kv", keep=keep)
    blocks = [filled(pool, region, "40MiB", b"large"), filled(pool, region, 512, b"small")]
    addresses = [block.address for block in blocks]

    async def main():
        for _ in range(3):
            assert await region.suspend() == 72 * MIB
            assert region.is_suspended and region.stats()["resident"] == 0
            assert region.stats()["on_host"] >= 40 * MIB + 512
            assert await region.resume() is None
            assert not region.is_suspended and region.stats()["on_host"] == 0

    asyncio.run(main())
    assert [block.address for block in blocks] == addresses
    assert blocks[0].read(size=5) == b"large" and blocks[1].read(0, 5) == b"small"
    blocks[0].write(b"more", offset=40 * MIB - 4)
    assert region.suspend().blocking() == 72 * MIB
    assert region.suspend().blocking() == 0
    assert region.resume(timeout=5).blocking() is None
    assert blocks[0].read(40 * MIB - 4) == b"more"


def test_memory_that_is_not_kept_takes_none_of_the_host(pool):
    region = pool.region("cache", keep="nothing")
    block = filled(pool, region)
    region.suspend().blocking()
    assert region.stats() == {"is_suspended": True, "used": MIB, "addresses": 32 * MIB, "resident": 0, "on_host": 0}
    region.resume().blocking()
    block.write(b"anew")
    assert block.read(size=4) == b"anew"


def test_suspended_memory_is_the_pools(pool):
    region = pool.region("kv", tag="chat")
    block = filled(pool, region, "96MiB")
    assert pool.tag("chat").stats()["used"]["current"] == 96 * MIB
    with pytest.raises(weirpool.Exhausted):
        pool.reserve("64MiB").try_now()
    region.suspend().blocking()
    assert pool.stats()["pool"]["suspended"] == 96 * MIB
    assert pool.tag("chat").stats()["used"]["current"] == 0
    with pool.reserve("128MiB").try_now():
        with pytest.raises(weirpool.DeadlineExceeded) as late:
            region.resume(timeout=0.02).blocking()
        assert late.value.retry_after is None or late.value.retry_after > 0
    assert region.is_suspended
    region.resume().blocking()
    assert block.read(size=4) == b"weir"


def test_resumption_waits_in_the_queue_while_the_loop_runs(pool):
    region = pool.region("kv")
    block = filled(pool, region, "96MiB")

    async def main():
        await region.suspend()
        memory = await pool.reserve("100MiB")
        resuming = asyncio.ensure_future(region.resume())
        await until(lambda: waiting(pool) == 1)
        later = asyncio.ensure_future(pool.reserve("30MiB").__aenter__())
        await until(lambda: waiting(pool) == 2)
        assert not resuming.done()
        memory.release()
        await resuming
        (await later).release()

    asyncio.run(main())
    assert block.read(size=4) == b"weir"


def test_cancelled_resumption_leaves_the_queue(pool):
    region = pool.region("kv")
    block = filled(pool, region)

    async def main():
        await region.suspend()
        with pool.reserve("128MiB").try_now():
            resuming = asyncio.ensure_future(region.resume())
            await until(lambda: waiting(pool) == 1)
            resuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await resuming
            assert waiting(pool) == 0
        assert region.is_suspended
        await region.resume()

    asyncio.run(main())
    assert block.read(size=4) == b"weir"


def test_several_regions_change_as_one(pool):
    regions = [pool.region("weights"), pool.region("cache", keep="nothing")]
    blocks = [filled(pool, region) for region in regions]
    assert weirpool.suspend_all(regions).blocking() == 64 * MIB
    assert all(region.is_suspended for region in regions)
    with pool.reserve("80MiB").try_now():
        # There is room for one of them.
        with pytest.raises(weirpool.DeadlineExceeded):
            weirpool.resume_all(regions, timeout=0.02).blocking()
        assert all(region.is_suspended for region in regions)
    weirpool.resume_all(regions, deadline=10, priority=1).blocking()
    assert blocks[0].read(size=4) == b"weir"
    other = weirpool.Pool.simulated("64MiB").region("weights")
    with pytest.raises(weirpool.InvalidRequest, match="another pool"):
        weirpool.suspend_all([regions[0], other]).blocking()
    assert not regions[0].is_suspended


def test_refusal_of_the_host_leaves_the_region_resident(pool):
    # The simulated host has 64 GiB.
    with pytest.raises(weirpool.HostFull):
        pool.region("kv", pin_ahead="1TiB")
    region = pool.region("kv", pin_ahead="32MiB")
    block = filled(pool, region)
    region.suspend().blocking()
    region.resume().blocking()
    assert block.read(size=4) == b"weir"


# ---- uses ----------------------------------------------------------------------------------------


def test_use_of_suspended_memory_is_a_typed_error(pool):
    region = pool.region("kv")
    block = filled(pool, region)
    region.suspend().blocking()
    for use in [
        lambda: block.read(),
        lambda: block.write(b"late"),
        lambda: region.active().__enter__(),
    ]:
        with pytest.raises(weirpool.Suspended, match="'kv'|\"kv\"") as refused:
            use()
        assert isinstance(refused.value, weirpool.AllocError)
        assert isinstance(pickle.loads(pickle.dumps(refused.value)), weirpool.Suspended)


def test_block_may_be_freed_while_it_is_suspended(pool):
    region = pool.region("kv")
    kept, freed = filled(pool, region), filled(pool, region, text=b"gone")
    region.suspend().blocking()
    assert freed.free()
    # A free ends once the work before it is complete.
    asyncio.run(until(lambda: region.stats()["used"] == MIB))
    region.resume().blocking()
    assert kept.read(size=4) == b"weir"
    kept.free()
    asyncio.run(until(lambda: region.stats()["addresses"] == 0))
    assert used(pool) == 0


def test_allocations_come_from_the_region_within_its_context_alone(pool):
    region, stream = pool.region("kv"), pool.stream()
    with region.active() as same:
        assert same is region
        inside = pool.allocate("1MiB")
        with pool.reserve("8MiB") as memory, memory.active():
            pool.allocate("1MiB").free()
            assert region.stats()["used"] == MIB
    outside = pool.allocate("1MiB")
    assert region.stats()["used"] == MIB
    found = []
    with region.active(stream):
        thread = threading.Thread(target=lambda: found.extend([pool.allocate("1MiB"), pool.allocate("1MiB", stream=stream)]))
        thread.start()
        thread.join()
    assert region.stats()["used"] == 2 * MIB
    del inside, outside, found


def test_allocation_in_a_region_waits_for_the_pool_and_fails_in_time(pool):
    region = pool.region("kv")
    with pool.reserve("128MiB").try_now(), region.active():
        begin = time.monotonic()
        with pytest.raises(weirpool.DeadlineExceeded):
            pool.allocate("1MiB", timeout=0.05)
        assert time.monotonic() - begin >= 0.05
        with pytest.raises(weirpool.TooLarge):
            pool.allocate("129MiB")


def test_suspension_waits_for_a_context_and_its_allocations(pool):
    region = pool.region("kv")
    blocks = []

    async def main():
        suspending = None
        with region.active():
            blocks.append(pool.allocate("1MiB"))
            suspending = asyncio.ensure_future(region.suspend())
        async with region.entered():
            again = asyncio.ensure_future(region.suspend())
            await asyncio.sleep(0.05)
            assert not again.done() and not region.is_suspended
            with region.active():
                blocks.append(pool.allocate("1MiB"))
        assert await suspending + await again == 32 * MIB
        assert region.is_suspended

    asyncio.run(main())
    del blocks


def test_suspension_waits_for_work_that_was_submitted(pool):
    region, stream = pool.region("kv"), pool.stream()
    with region.active():
        block = pool.allocate("1MiB", stream=stream)
    stream.work(0.2)
    begin = time.monotonic()
    region.suspend().blocking()
    assert time.monotonic() - begin > 0.15
    del block


def test_requests_enter_in_turn_and_resume_the_region(pool):
    weights, others = pool.region("weights"), pool.region("others")
    blocks = [filled(pool, weights, "96MiB"), None]
    weights.suspend().blocking()
    blocks[1] = filled(pool, others, "96MiB", b"else")
    others.suspend().blocking()

    async def serve(region, block, text):
        for _ in range(10):
            async with region.entered(timeout=20):
                assert block.read(size=4) == text
                await asyncio.sleep(0.001)
            await region.suspend()

    async def main():
        await asyncio.gather(serve(weights, blocks[0], b"weir"), serve(others, blocks[1], b"else"))

    asyncio.run(main())


def test_several_regions_are_entered_as_one(pool):
    regions = [pool.region("weights"), pool.region("cache")]
    blocks = [filled(pool, region) for region in regions]

    async def serve(order):
        for _ in range(10):
            async with weirpool.entered_all(order, timeout=20) as entered:
                assert entered == order
                assert [block.read(size=4) for block in blocks] == [b"weir"] * 2
                await asyncio.sleep(0)
            await weirpool.suspend_all(order)

    async def main():
        await asyncio.gather(serve(regions), serve(regions[::-1]), serve(regions))

    asyncio.run(main())
    with weirpool.entered_all(regions):
        assert blocks[0].read(size=4) == b"weir"


# ---- misuse --------------------------------------------------------------------------------------


def test_blocking_forms_do_not_block_an_event_loop(pool):
    region = pool.region("kv")
    block = filled(pool, region)

    async def main():
        for change in (region.suspend(), region.resume()):
            with pytest.raises(RuntimeError, match="event loop"):
                change.blocking()
        with region.entered():
            assert not region.is_suspended
        await region.suspend()
        with pytest.raises(RuntimeError, match="event loop"):
            region.entered().__enter__()
        assert region.is_suspended

    asyncio.run(main())
    with region.entered(timeout=5):
        assert block.read(size=4) == b"weir"


def test_change_that_was_forgotten_is_told(pool):
    region = pool.region("kv")
    with pytest.warns(RuntimeWarning, match="never awaited"):
        region.suspend()
    assert not region.is_suspended
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region.suspend().blocking()
        asyncio.run(_awaits(region.resume()))


async def _awaits(change):
    return await change


def test_signal_ends_a_blocking_resumption(pool):
    region = pool.region("kv")
    block = filled(pool, region)
    region.suspend().blocking()

    def interrupt(*_):
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGALRM, interrupt)
    with pool.reserve("128MiB").try_now():
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                region.resume().blocking()
        finally:
            signal.signal(signal.SIGALRM, earlier)
        assert waiting(pool) == 0
    assert region.is_suspended
    del block


def test_context_that_spans_an_await_is_told_and_holds_nothing(pool):
    region = pool.region("kv")

    async def main():
        with pytest.raises(RuntimeError, match="spans an await"):
            with region.active():
                await asyncio.sleep(0)
                await region.suspend()

    asyncio.run(main())
    assert region.is_suspended


def test_suspension_inside_of_its_own_context_is_refused(pool):
    region = pool.region("kv")
    with region.active():
        with pytest.raises(RuntimeError, match="active on this thread"):
            region.suspend().blocking()
        other = pool.region("other")
        other.suspend().blocking()
    region.suspend().blocking()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda pool: pool.region("kv", keep="disk"), ValueError),
        (lambda pool: pool.region("kv", keep="nothing", pin_ahead="1MiB"), ValueError),
        (lambda pool: pool.region("kv", chunk=0), ValueError),
        (lambda pool: pool.region("kv", tag=7), TypeError),
        (lambda pool: pool.region("kv").resume(timeout=-1), ValueError),
        (lambda pool: weirpool.suspend_all([]), ValueError),
        (lambda pool: weirpool.resume_all([pool]), TypeError),
        (lambda pool: filled(pool, pool.region("kv")).read(MIB, 1), ValueError),
    ],
)
def test_wrong_argument_is_refused(pool, call, error):
    with pytest.raises(error):
        call(pool)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_process_leaves_the_region_alone(pool):
    region = pool.region("kv")
    block = filled(pool, region)
    held = region.entered()
    held.__enter__()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            region.stats()
        except RuntimeError:
            held.__exit__(None, None, None)
            del held, block, region
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.__exit__(None, None, None)
    region.suspend().blocking()
    region.resume().blocking()
    assert block.read(size=4) == b"weir"
