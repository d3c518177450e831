#!/usr/bin/env python3
"""Writes the samples in this folder: the beginning of a recorded trace, in each format that the replay reads.

    python3 examples/traces/samples/make.py

It needs only Python's standard library, and writes the same files every time. The formats of RMM and PyTorch follow
their sources: `logging_resource_adaptor_impl.cpp`, `THCPModule_memorySnapshot`.
"""

import csv
import gzip
import pickle
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "llama_serve.csv.gz"
STREAMS = (1, 3)
ROWS = 600
SEGMENT, SEGMENT_BYTES = 0x7F8A40000000, 4 << 30


def rows():
    """Yields the first rows of some streams: (microseconds, op, id, bytes, stream)."""
    with gzip.open(SOURCE, "rt") as source:
        for count, row in enumerate(r for r in csv.DictReader(source) if int(r["stream"]) in STREAMS):
            if count == ROWS:
                return
            yield int(row["time_us"]), row["op"], int(row["id"]), int(row["bytes"]), int(row["stream"])


def rounded(size):
    return -(-size // 512) * 512


class Addresses:
    """A pool that reuses the address of a freed block, as the recorded pools did."""

    def __init__(self):
        self.next = SEGMENT + (1 << 20)
        self.free = defaultdict(list)
        self.live = {}

    def of(self, op, id, size):
        if op == "f":
            address, size = self.live.pop(id)
            self.free[rounded(size)].append(address)
            return address, size
        if not self.free[rounded(size)]:
            self.free[rounded(size)].append(self.next)
            self.next += rounded(size)
        self.live[id] = self.free[rounded(size)].pop(), size
        return self.live[id]


def native(trace):
    yield "time_us,op,id,bytes,stream"
    for time_us, op, id, size, stream in trace:
        yield f"{time_us},{op},{id},{size},{stream}"


def rmm(trace):
    """Yields a log that begins just before midnight, after two allocations."""
    begin = (24 * 3600 - 1) * 1_000_000 - trace[0][0]

    def line(time_us, action, pointer, size, stream):
        seconds, us = divmod((begin + time_us) % (24 * 3600 * 1_000_000), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{us:06}"
        pointer = f"{pointer:#x}" if pointer else "(nil)"
        return f"{14057 + stream},{clock},{action},{pointer},{size},{0x55D0C0A01000 + 0x40 * stream:#x}"

    addresses, first = Addresses(), trace[0][0]
    yield "Thread,Time,Action,Pointer,Size,Stream"
    yield line(first, "free", SEGMENT, 4096, 1)
    yield line(first, "free", SEGMENT + 4096, 512, 3)
    yield line(first, "allocate", 0, 0, 1)
    yield line(first, "free", 0, 0, 1)
    yield line(first, "allocate failure", 0, 1 << 40, 3)
    for time_us, op, id, size, stream in trace:
        address, size = addresses.of(op, id, size)
        yield line(time_us, "allocate" if op == "a" else "free", address, size, stream)


def snapshot(trace):
    """Returns a snapshot whose recording began after two allocations. The second device has none."""
    begin = 1_700_000_000_000_000
    frames = [
        {"name": name, "filename": "/srv/llama.py", "line": line}
        for line, name in ((17, "forward"), (42, "attention"), (99, "serve"))
    ]
    stacks = {"alloc": frames, "free_requested": frames[1:], "free_completed": frames[1:]}

    def event(action, address, size, stream, time_us):
        entry = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": 0 if stream is None else 0x55D0C0A01000 + 0x40 * stream,
            "time_us": begin + time_us,
            "compile_context": "N/A",
            "user_metadata": "",
        }
        if action in stacks:
            entry["frames"] = stacks[action]
        return entry

    addresses, first, last = Addresses(), trace[0][0], trace[-1][0]
    events = [
        event("segment_alloc", SEGMENT, SEGMENT_BYTES, 1, first),
        event("free_requested", SEGMENT, 4096, 1, first),
        event("free_completed", SEGMENT, 4096, 1, first),
        event("oom", 1 << 30, 1 << 40, 3, first),
    ]
    for time_us, op, id, size, stream in trace:
        address, size = addresses.of(op, id, size)
        if op == "a":
            events.append(event("alloc", address, size, stream, time_us))
        else:
            events.append(event("free_requested", address, size, stream, time_us))
            events.append(event("free_completed", address, size, stream, time_us))
    events.append(event("snapshot", 0, 0, None, last))

    used = {address: size for address, size in addresses.live.values()}
    used[SEGMENT + 4096] = 512  # allocated before the recording began
    blocks, end = [], SEGMENT
    for address, size in sorted(used.items()) + [(SEGMENT + SEGMENT_BYTES, 0)]:
        if address > end:
            blocks.append(block(end, address - end, 0, "inactive", []))
        if size:
            blocks.append(block(address, rounded(size), size, "active_allocated", frames))
        end = address + rounded(size)
    active = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    segment = {
        "device": 0,
        "address": SEGMENT,
        "total_size": SEGMENT_BYTES,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(used.values()),
        "stream": 0x55D0C0A01040,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": blocks,
    }
    return {
        "segments": [segment],
        "device_traces": [events, [event("snapshot", 0, 0, None, last)]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        "external_annotations": [],
    }


def block(address, size, requested, state, frames):
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }


def main():
    trace = list(rows())
    write = lambda name, lines: (HERE / name).write_text("".join(f"{line}\n" for line in lines))
    write("serve.csv", native(trace))
    write("serve_rmm.csv", rmm(trace))
    # The default protocol of `pickle.dump` up to Python 3.13.
    pickled = pickle.dumps(snapshot(trace), protocol=4)
    (HERE / "serve_torch.pickle.gz").write_bytes(gzip.compress(pickled, 9, mtime=0))


if __name__ == "__main__":
    main()
