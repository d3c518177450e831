#!/usr/bin/env python3
"""One pool serves PyTorch, CuPy, RMM and Numba in one process, in stream order.

    pip install weirpool
    python3 tests/gpu/others.py

In random rounds, each library allocates on a stream that others use too, writes after a pause, reads, and frees while none of that has begun.
A library that is not installed is named. The same rounds with memory that names a wrong stream show that the test detects such mistakes.
"""

import argparse
import gc
import random
import subprocess
import sys

import weirpool.torch

MIB = 1 << 20
# Little more than the blocks that exist at once, so that libraries use the memory of each other.
CAPACITY = 32 * MIB
weirpool.torch.use(capacity=CAPACITY, timeout=0.5)

import torch
from weirpool import _raw

MILLISECOND = 1_500_000  # cycles, about


class Named:
    """A stream by its handle."""

    def __init__(self, stream):
        self.handle = stream.cuda_stream

    def __cuda_stream__(self):
        return 0, self.handle


class Misplaced:
    """Memory that is allocated and freed in the order of a stream that has nothing to do with its use."""

    idle = None

    def __init__(self, words, stream):
        self.size = words * 4
        self.address = _raw.allocate(self.size, 0, self.idle.cuda_stream)
        assert self.address
        self.__cuda_array_interface__ = {"shape": (words,), "typestr": "<i4", "data": (self.address, False), "version": 2}

    def __del__(self):
        _raw.free(self.address, self.size, 0, self.idle.cuda_stream)


def with_torch(words, stream):
    with torch.cuda.stream(stream):
        return torch.empty(words, dtype=torch.int32, device="cuda")


def with_cupy():
    import cupy

    from weirpool import cupy as on_cupy

    on_cupy.use()
    external = getattr(cupy.cuda.Stream, "from_external", None)

    def allocate(words, stream):
        with external(Named(stream)) if external else cupy.cuda.ExternalStream(stream.cuda_stream):
            return cupy.empty(words, dtype=cupy.int32)

    return allocate, cupy.cuda.memory.OutOfMemoryError


def with_rmm():
    import rmm
    from rmm.pylibrmm.stream import Stream

    from weirpool import rmm as on_rmm

    on_rmm.use()
    return (lambda words, stream: rmm.DeviceBuffer(size=words * 4, stream=Stream(obj=Named(stream)))), MemoryError


def with_numba():
    from numba import cuda

    from weirpool import numba as on_numba

    on_numba.use()

    def allocate(words, stream):
        assert stream == torch.cuda.default_stream()
        return cuda.device_array(words, dtype="int32")

    return allocate, MemoryError


def libraries():
    """Returns what allocates by library, with the error of each."""
    found = {"PyTorch": (with_torch, torch.OutOfMemoryError)}
    for name, load in ("CuPy", with_cupy), ("RMM", with_rmm), ("Numba", with_numba):
        try:
            found[name] = load()
        except ImportError as error:
            print(f"{name}: not installed ({error})")
    return found


def words_of(memory):
    """Returns a tensor over all of the memory, in place."""
    if isinstance(memory, torch.Tensor):
        return memory
    return torch.as_tensor(memory, device="cuda").view(torch.uint8).view(torch.int32)


def in_turn(found):
    """Each library has nearly all of the memory, which the one before it freed."""
    stream = torch.cuda.default_stream()
    addresses = set()
    for name, (allocate, error) in [*found.items()] * 2:
        before = weirpool.statistics()["used"]
        memory = allocate(CAPACITY * 3 // 4 // 4, stream)
        assert weirpool.statistics()["used"] - before >= CAPACITY * 3 // 4, name
        tensor = words_of(memory)
        addresses.add(tensor.data_ptr())
        tensor.fill_(3)
        assert int(tensor.min()) == int(tensor.max()) == 3, name
        try:
            allocate(CAPACITY // 2 // 4, stream)
        except error:
            pass
        else:
            raise AssertionError(f"{name} has more memory than the pool")
        del tensor, memory
        gc.collect()
    assert len(addresses) == 1, addresses
    print(f"{', '.join(found)}: one pool; each has the memory of the one before, and its own error if there is none")


def rounds(found, count, seed):
    """Returns how many words were read wrong, and how often a library used memory that another one freed."""
    choose = random.Random(seed)
    default = torch.cuda.default_stream()
    streams = [torch.cuda.Stream() for _ in range(3)] + [default]
    wrongs = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    users, moved, kept = {}, 0, []
    for stamp in range(count):
        name = choose.choice([*found])
        at = 3 if name == "Numba" else choose.randrange(4)
        memory = found[name][0](choose.randrange(1 << 18, 1 << 20), streams[at])
        with torch.cuda.stream(streams[at]):
            tensor = words_of(memory)
            granule = tensor.data_ptr() >> 21
            moved += users.get(granule, name) != name
            users[granule] = name
            torch.cuda._sleep(choose.choice([0, MILLISECOND // 10, MILLISECOND]))
            tensor.fill_(stamp)
            torch.cuda._sleep(choose.choice([0, MILLISECOND // 10]))
            wrongs[at] += (tensor != stamp).sum()
        kept.append((memory, tensor))
        del memory, tensor
        if len(kept) > 2:
            kept.pop(choose.randrange(len(kept)))
    kept.clear()
    torch.cuda.synchronize()
    return sum(int(wrong) for wrong in wrongs), moved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrong-stream", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.wrong_stream:
        return with_wrong_stream({"PyTorch": (with_torch, torch.OutOfMemoryError)}, arguments.seed)
    found = libraries()
    in_turn(found)
    wrong, moved = rounds(found, arguments.rounds, arguments.seed)
    assert wrong == 0, f"{wrong} words were read wrong: memory was reused too early"
    assert len(found) == 1 or moved > arguments.rounds // 4, f"memory moved between libraries only {moved} times"
    print(f"{arguments.rounds} rounds: every word right, {moved} times with memory of another library")
    # In a process of its own: memory that is mapped elsewhere while a kernel uses it ends the process.
    command = [sys.executable, __file__, "--wrong-stream", "--seed", str(arguments.seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    noticed = done.stdout.strip() or ("ILLEGAL_ADDRESS" in done.stderr and "an illegal address")
    assert noticed, "a wrong stream was not noticed: the test detects nothing" + done.stderr[-1000:]
    print(f"with memory of a wrong stream: {noticed}")


def with_wrong_stream(found, seed):
    Misplaced.idle = torch.cuda.Stream()
    for attempt in range(1, 21):
        wrong, _ = rounds({**found, "memory of a wrong stream": (Misplaced, None)}, 100, seed + attempt)
        if wrong > 0:
            print(f"{wrong} words of {attempt * 100} rounds wrong")
            return


if __name__ == "__main__":
    main()
