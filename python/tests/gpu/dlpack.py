#!/usr/bin/env python3
"""PyTorch, CuPy and JAX read blocks of weirpool in place, and weirpool takes tensors of PyTorch.

    pip install weirpool
    python3 tests/gpu/dlpack.py

Kernels of weirpool write blocks on streams of the pool, and spin before they do; other libraries read them on their own streams. In
random rounds, tensors are dropped while the work that reads them has not begun, and their memory is written again for the next round. The
same rounds with a wrong stream show that the test detects such mistakes.
"""

import argparse
import os
import random
import threading
import time

# Little more than the blocks that exist at once, so that each round reuses memory of earlier ones.
CAPACITY = 24 << 20
os.environ["WEIRPOOL_CAPACITY"] = str(CAPACITY)

import torch
import weirpool
from weirpool import dlpack
from weirpool.dlpack import Memory, Taken

try:
    import cupy
except ImportError:
    cupy = None
try:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy
except ImportError:
    jax = None

MILLISECOND = 1_500_000  # cycles, about
WORDS = CAPACITY // 4


def expected(count, stamp):
    return torch.arange(count, dtype=torch.int32, device="cuda") + stamp


def whole(library):
    """Allocates all of the capacity, which waits for memory that is on its way back."""
    memory = Memory(library, (WORDS,), "int32")
    assert memory.address


def in_place(library):
    side = torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), side):
        with torch.cuda.stream(stream):
            memory = Memory(library, (1000, 1000), "int32", stream=0)
            memory.kernel(0, 17, 20 * MILLISECOND)
            tensor = torch.from_dlpack(memory)
            assert tensor.data_ptr() == memory.address, "PyTorch made a copy"
            assert tensor.shape == (1000, 1000) and tensor.dtype == torch.int32 and tensor.is_cuda
            del memory
            assert torch.equal(tensor.view(-1), expected(1_000_000, 17)), "PyTorch read before the kernel wrote"
            tensor.add_(1)
            assert torch.equal(tensor.view(-1), expected(1_000_000, 18))
            del tensor
    for name, (code, bits) in dlpack.TYPES.items():
        del code
        memory = Memory(library, (3, 5), name)
        tensor = torch.from_dlpack(memory)
        assert tensor.dtype == getattr(torch, name) and tensor.element_size() * 8 == bits, name
    print(f"PyTorch {torch.__version__}: in place, {len(dlpack.TYPES)} types")
    if cupy is not None:
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
            with stream:
                memory = Memory(library, (1 << 20,), "int32", stream=1)
                memory.kernel(1, 5, 20 * MILLISECOND)
                array = cupy.from_dlpack(memory)
                assert array.data.ptr == memory.address, "CuPy made a copy"
                del memory
                assert bool((array == cupy.arange(1 << 20, dtype=cupy.int32) + 5).all()), "CuPy read too early"
                del array
        print(f"CuPy {cupy.__version__}: in place")
    else:
        print("CuPy: not installed")
    if jax is not None and any(device.platform == "gpu" for device in jax.devices()):
        memory = Memory(library, (1 << 20,), "int32", stream=2)
        memory.kernel(2, 5, 20 * MILLISECOND)
        array = jax.dlpack.from_dlpack(memory)
        assert array.unsafe_buffer_pointer() == memory.address, "JAX made a copy"
        del memory
        assert bool((array == jax.numpy.arange(1 << 20, dtype=jax.numpy.int32) + 5).all()), "JAX read too early"
        del array
        print(f"JAX {jax.__version__}: in place")
    else:
        print("JAX: not installed, or without a GPU")


def lifetimes(library):
    memory = Memory(library, (WORDS,), "int32")
    capsules = [memory.__dlpack__(stream=1), memory.__dlpack__(stream=1, max_version=(1, 0))]
    del memory, capsules
    whole(library)  # unused capsules have released the block
    memory = Memory(library, (WORDS,), "int32")
    tensors = [torch.from_dlpack(memory), torch.from_dlpack(memory)[7:]]
    del memory
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    whole(library)
    for stream in (-1, 0, 2):
        memory = Memory(library, (4,), "int32")
        try:
            memory.__dlpack__(stream=stream)
            raise AssertionError(f"stream {stream} was accepted")
        except (BufferError, ValueError):
            pass
    print("lifetimes: unused capsules, two tensors of one block, another thread, streams that are refused")


class Named:
    """A stream by its handle, for CuPy."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


def of_cupy(stream):
    handle = stream.cuda_stream
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(Named(handle))
    return cupy.cuda.ExternalStream(handle)


class Wrong:
    """Names a stream that is not the consumer's."""

    def __init__(self, memory, stream):
        self.memory, self.stream = memory, stream

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **rest):
        return self.memory.__dlpack__(stream=self.stream, **rest)


def rounds(library, count, seed, wrong=None, waits=False):
    """Returns the number of words that were read wrong, and how often memory was reused. With a wrong stream and `waits`, the host waits
    for the kernels that write, so that only memory that is reused too early is read wrong."""
    choose = random.Random(seed)
    streams = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
    base = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
    wrongs = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    seen, reused, kept, threads = set(), 0, [], []
    for stamp in range(1000, 1000 + count * 7, 7):
        words = choose.randrange(1 << 18, 1 << 20)
        own = choose.randrange(4)
        memory = Memory(library, (words,), "int32", stream=own)
        granule = memory.address >> 21
        reused += granule in seen
        seen.add(granule)
        memory.kernel(choose.randrange(4), stamp, choose.choice([0, MILLISECOND // 10]))
        at = choose.randrange(3 if wrong else 4)
        with torch.cuda.stream(streams[at]):
            source = Wrong(memory, wrong) if wrong else memory
            if cupy is not None and choose.random() < 0.3:
                with of_cupy(streams[at]):
                    array = cupy.from_dlpack(source)
                tensor = torch.from_dlpack(array)
                del array
            else:
                tensor = torch.from_dlpack(source)
            if waits:
                torch.cuda.synchronize()
            torch.cuda._sleep(choose.choice([0, MILLISECOND // 3, MILLISECOND]))
            wrongs[at] += (tensor != base[:words] + stamp).sum()
        del memory, source
        # The reads may not have begun.
        how = choose.random()
        if how < 0.2:
            kept.append(tensor)
        elif how < 0.3:
            thread = threading.Thread(target=list.clear, args=([tensor],))
            threads.append(thread)
            thread.start()
        del tensor
        if len(kept) > 1:
            kept.pop(choose.randrange(len(kept)))
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return sum(int(wrong) for wrong in wrongs), reused


def taken(library, count):
    side = torch.cuda.Stream()
    before = torch.cuda.memory_allocated()
    for round_ in range(count):
        with torch.cuda.stream(side):
            torch.cuda._sleep(MILLISECOND)
            tensor = torch.arange(1 << 18, dtype=torch.int32, device="cuda") + round_
            block = Taken(library, tensor, stream=round_ % 4)
            assert block.address == tensor.data_ptr(), "a copy was made"
            del tensor
            block.kernel((round_ + 1) % 4, 7, MILLISECOND // 10, is_sum=True)
            # This would get the tensor's memory, if that were free.
            torch.full((1 << 18,), -1, dtype=torch.int32, device="cuda")
        words = torch.frombuffer(bytearray(block.read(1 << 20)), dtype=torch.int32)
        assert torch.equal(words, torch.arange(1 << 18, dtype=torch.int32) + round_ + 7), f"round {round_}"
        del block
    deadline = time.monotonic() + 10
    while torch.cuda.memory_allocated() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert torch.cuda.memory_allocated() <= before, "tensors were not released"
    print(f"{count} tensors of PyTorch, written by kernels of weirpool and released")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.zeros(1, device="cuda")
    library = dlpack.load()
    in_place(library)
    lifetimes(library)
    wrong, reused = rounds(library, arguments.rounds, arguments.seed)
    assert wrong == 0, f"{wrong} words were read wrong: memory was reused too early, or read too early"
    assert reused > arguments.rounds // 2, f"memory was reused only {reused} times"
    waits = weirpool.statistics()["device_waits"]
    print(f"{arguments.rounds} rounds: every word right, memory reused {reused} times, {waits} waits on the device")
    whole(library)
    idle = torch.cuda.Stream()
    for waits, mistake in (False, "reads and reuse too early"), (True, "reuse too early"):
        # Memory that is reused too early is read wrong only if the next kernel is fast enough.
        for attempt in range(1, 21):
            wrong, reused = rounds(library, 100, arguments.seed + attempt, idle.cuda_stream, waits)
            if wrong > 0:
                break
        assert wrong > 0, "a wrong stream was not noticed: the test detects nothing"
        print(f"with a wrong stream: {wrong} words of {attempt * 100} rounds wrong, by {mistake}")
    taken(library, 50)
    whole(library)
    print("all memory came back")


if __name__ == "__main__":
    main()
