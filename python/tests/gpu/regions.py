#!/usr/bin/env python3
"""Suspends and resumes regions with PyTorch's tensors and graphs in them.

    pip install weirpool
    python3 tests/gpu/regions.py --rounds 100 --gib 16

A transformer's weights are in a region that is kept on the host, its inputs in a pageable one, and a cache in one that is not kept. In each round all of
them are suspended, other work takes and overwrites the memory of the pool, and they are resumed: addresses and contents must be the same, and a replay of the
graph over them must give the answer of the eager step, bit for bit. Then come the ends: a resumption that waits, work on a stream that the pool does not know,
captures, tensors that are dropped, and errors. At last the bandwidth, for as many GiB as `--gib` says, beside copies of PyTorch between pinned memory and the device.
"""

import argparse
import asyncio
import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import weirpool
import weirpool.torch
from train_and_serve import DEVICE, VOCABULARY, Transformer

import torch

MIB, GIB = 1 << 20, 1 << 30


def bits(numbers):
    return numbers.contiguous().view(torch.int32)


def expect(holds, *found):
    if not holds:
        raise AssertionError(found)


def raises(error, call):
    try:
        call()
    except error as refused:
        return str(refused)
    raise AssertionError(f"no {error.__name__}")


def overwrite(limit=GIB):
    """Takes memory of the pool in blocks of several sizes, and overwrites it."""
    held, size = [], 0
    while size < limit:
        for part in (1 << 9, 3 << 18, 64 << 20):
            held.append(torch.full((part // 4,), float("nan"), device=DEVICE))
            size += part
    torch.cuda.synchronize()


def pointers(*parts):
    return [tensor.data_ptr() for part in parts for tensor in part]


@torch.inference_mode()
def rounds(count):
    weights, inputs, cache = weirpool.region("weights"), weirpool.region("inputs", keep="pageable"), weirpool.region("cache", keep="nothing")
    regions = [weights, inputs, cache]
    with weights.active():
        model = Transformer().to(DEVICE).eval()
    with inputs.active():
        tokens = torch.zeros(4, 64, dtype=torch.long, device=DEVICE)
    with cache.active():
        scratch = [torch.empty(16 * MIB, device=DEVICE) for _ in range(4)]
    size = sum(tensor.nbytes for tensor in model.parameters())
    expect(weights.stats()["used"] >= size, weights.stats(), size)

    def step():
        scratch[0][:4096].fill_(2)
        return model(tokens)[:, -1] * scratch[0][0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = step()
    where = pointers(model.parameters(), [tokens], scratch)
    kept = [tensor.clone() for tensor in model.parameters()]
    for number in range(count):
        text = torch.randint(VOCABULARY, (4, 64), device=DEVICE)
        tokens.copy_(text)
        wanted = step().clone()
        given_back = weirpool.suspend_all(regions).blocking()
        expect(given_back >= size + 256 * MIB, given_back)
        expect(all(region.is_suspended for region in regions))
        overwrite()
        weirpool.resume_all(regions, timeout=60).blocking()
        expect(pointers(model.parameters(), [tokens], scratch) == where, "addresses")
        expect(torch.equal(tokens, text), f"round {number}: the inputs differ")
        expect(all(torch.equal(now, before) for now, before in zip(model.parameters(), kept)), f"round {number}: the weights differ")
        graph.replay()
        expect(torch.equal(bits(answer), bits(wanted)), f"round {number}: the replay differs from the eager step")
    print(f"{count} rounds: addresses, contents and replays are the same")

    async def contended():
        """A resumption waits while others have the memory, and the loop runs."""
        await weirpool.suspend_all(regions)
        figures = weirpool.stats()["pool"]
        left = figures["capacity"] - figures["used"]["current"] - 128 * MIB
        memory = await weirpool.reserve([32 * MIB] * (left // (32 * MIB)), timeout=60)
        begin = time.monotonic()
        try:
            await weirpool.resume_all(regions, timeout=0.2)
        except weirpool.DeadlineExceeded:
            pass
        else:
            raise AssertionError("there is no memory")
        waited = time.monotonic() - begin
        expect(0.2 <= waited < 2, waited)
        resuming = asyncio.ensure_future(weirpool.resume_all(regions))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
        expect(not resuming.done())
        memory.release()
        await resuming

    asyncio.run(contended())
    graph.replay()
    expect(torch.equal(bits(answer), bits(wanted)), "the replay differs after the wait")
    print("a resumption waited for memory that others had")


def ends():
    region = weirpool.region("ends")
    with region.active():
        tensor, dropped = torch.ones(MIB, device=DEVICE), torch.ones(64 * MIB, device=DEVICE)
        with torch.cuda.stream(torch.cuda.Stream()):
            on_side = torch.ones(MIB, device=DEVICE)
    expect(region.stats()["used"] == (4 + 256 + 4) * MIB, region.stats())
    # A stream that neither the region nor the pool knows.
    unknown = torch.cuda.Stream()
    unknown.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(unknown):
        torch.cuda._sleep(400_000_000)
        tensor.fill_(7)
    region.suspend().blocking()
    expect("suspended" in raises(weirpool.Suspended, lambda: region.active().__enter__()))
    del dropped
    gc.collect()
    with region.entered(timeout=60):
        expect((tensor == 7).all().item(), "the work came after the copy")
        expect((on_side == 1).all().item())
        deadline = time.monotonic() + 10
        while region.stats()["used"] > 8 * MIB:
            expect(time.monotonic() < deadline, region.stats())
            time.sleep(0.01)
    print("work on a stream of others is waited for; tensors are dropped while they are suspended")

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with region.active(), torch.cuda.stream(side):
        temporary = torch.ones(32 * MIB, device=DEVICE)
    torch.cuda.synchronize()
    before = region.stats()["used"]
    with torch.cuda.graph(graph, stream=side):
        expect("captured" in raises(weirpool.DeviceFailed, region.suspend().blocking))
        with region.active():
            result = tensor * 2
        # While the temporary tensor is there: its bytes would hide those of an allocation.
        expect(region.stats()["used"] <= before, "the capture allocated from the region")
        del temporary
    graph.replay()
    expect((result == 14).all().item())
    deadline = time.monotonic() + 10
    while region.stats()["used"] > 8 * MIB:
        expect(time.monotonic() < deadline, "a tensor that was dropped in a capture is not freed", region.stats())
        torch.cuda.synchronize()
        time.sleep(0.01)
    print("captures allocate from their own memory, and no region is suspended meanwhile")

    free = weirpool.region("large")
    raises(torch.OutOfMemoryError, lambda: in_region(free, 1 << 46))
    expect(free.stats()["resident"] == 0)


def in_region(region, size):
    with region.active():
        return torch.empty(size, dtype=torch.uint8, device=DEVICE)


def bandwidth(gib):
    size = gib * GIB
    kept, cache = weirpool.region("kept"), weirpool.region("cache", keep="nothing")
    with kept.active():
        tensors = [torch.full((GIB // 16,), number, dtype=torch.int32, device=DEVICE) for number in range(4 * gib)]
    with cache.active():
        others = [torch.empty(GIB, dtype=torch.uint8, device=DEVICE) for _ in range(gib)]
    host, device = torch.empty(GIB, dtype=torch.uint8).pin_memory(), torch.empty(GIB, dtype=torch.uint8, device=DEVICE)

    def timed(call):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    bare = {"to the host": lambda: host.copy_(device, non_blocking=True), "to the device": lambda: device.copy_(host, non_blocking=True)}
    for name, copy in bare.items():
        copy()
        print(f"a bare copy {name}: {8 / timed(lambda: [copy() for _ in range(8)]):.1f} GiB/s")
    for number in range(3):
        out = timed(kept.suspend().blocking)
        dropped = timed(cache.suspend().blocking)
        time.sleep(1)  # Copies just after memory was given back are slower.
        back = timed(kept.resume(timeout=60).blocking)
        taken = timed(cache.resume(timeout=60).blocking)
        label = ", and pin" if number == 0 else ""
        print(
            f"{gib} GiB kept: suspend{label} {out * 1e3:.0f} ms ({size / GIB / out:.1f} GiB/s), resume {back * 1e3:.0f} ms ({size / GIB / back:.1f} GiB/s); "
            f"not kept: {dropped * 1e3:.1f} and {taken * 1e3:.1f} ms"
        )
    expect(all((tensor == number).all().item() for number, tensor in enumerate(tensors)), "contents")
    del others


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gib", type=int, default=1)
    options = parser.parse_args()
    weirpool.torch.use(capacity=(2 * options.gib + 6) * GIB, timeout=2)
    rounds(options.rounds)
    gc.collect()
    ends()
    gc.collect()
    torch.cuda.empty_cache()
    bandwidth(options.gib)
    print("regions work")


if __name__ == "__main__":
    main()
