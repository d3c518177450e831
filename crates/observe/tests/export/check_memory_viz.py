"""Reads a memory snapshot as PyTorch's tools do, and prints its contents as JSON. Fails where the tools would fail.

The tools require the keys and types of `torch.cuda.memory._snapshot()`; operations of pickle that the viewer's
unpickler supports, with numbers that JavaScript can represent; blocks that tile their segments; and a trace that
leads to the segments, so that it can be undone from its end.
"""

import collections
import json
import pickle
import pickletools
import sys

# The operations in `unpickle` of torch/utils/viz/MemoryViz.js.
KNOWN_TO_THE_VIEWER = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE",
    "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET",
    "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS",
    "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}
FRAME = {"name": str, "filename": str, "line": int}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
SEGMENT = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple,
    "is_expandable": bool, "frames": list, "blocks": list,
}
TRACE = {"action": str, "size": int, "stream": int, "time_us": int, "frames": list}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": str, "max_split_size": int, "garbage_collection_threshold": float,
    "expandable_segments": bool, "pinned_num_register_threads": int, "release_lock_on_cudamalloc": bool,
    "pinned_use_cuda_host_register": bool, "roundup_power2_divisions": dict,
}
STATES = {"active_allocated", "active_pending_free", "inactive"}
ACTIONS = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom", "snapshot",
}


def check_opcodes(data):
    for opcode, argument, position in pickletools.genops(data):
        assert opcode.name in KNOWN_TO_THE_VIEWER, f"{opcode.name} is not known to the viewer"
        if opcode.name == "PROTO":
            assert 2 <= argument <= 4, f"protocol {argument}"
        if opcode.name == "LONG1":
            # The viewer reads more than eight bytes as a BigInt, which cannot be mixed with other numbers.
            assert data[position + 1] <= 8, f"{argument} takes {data[position + 1]} bytes"
            assert -(2**53) < argument < 2**53, f"{argument} is not exact as a number of JavaScript"


def check_keys(thing, keys):
    for key, kind in keys.items():
        assert type(thing.get(key)) is kind, f"{key} of {thing} is not of type {kind.__name__}"
    for frame in thing.get("frames", []):
        assert {key: type(value) for key, value in frame.items()} == FRAME, frame


def check_segment(segment):
    check_keys(segment, SEGMENT)
    at = segment["address"]
    sums = collections.Counter()
    for block in segment["blocks"]:
        check_keys(block, BLOCK)
        assert block["state"] in STATES, block
        assert block["address"] == at and block["size"] > 0, f"{block} does not begin at {at:#x}"
        assert block["requested_size"] <= block["size"], block
        sums[block["state"]] += block["size"]
        sums["requested"] += block["requested_size"] * (block["state"] != "inactive")
        at += block["size"]
    assert at == segment["address"] + segment["total_size"], f"{segment} is not tiled"
    active = sums["active_allocated"] + sums["active_pending_free"]
    assert segment["allocated_size"] == sums["active_allocated"], segment
    assert segment["active_size"] == active, segment
    assert segment["requested_size"] == sums["requested"], segment


def check_trace(trace):
    last = 0
    for entry in trace:
        check_keys(entry, TRACE)
        assert entry["action"] in ACTIONS, entry
        place = "device_free" if entry["action"] == "oom" else "addr"
        assert type(entry.get(place)) is int, f"{entry} has no {place}"
        assert last <= entry["time_us"], f"{entry} is earlier than the entry before it"
        last = entry["time_us"]


class Memory:
    """The mapped spans and the blocks in use there, going back in time."""

    def __init__(self, segments):
        self.spans = {s["address"]: s["address"] + s["total_size"] for s in segments}
        self.blocks = {}
        for segment in segments:
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    self.blocks[block["address"]] = block["state"] == "active_pending_free"

    def unmap(self, start, end):
        around = [(a, b) for a, b in self.spans.items() if a <= start and end <= b]
        assert around, f"{start:#x}..{end:#x} was mapped, but is in no segment"
        (low, high) = around[0]
        del self.spans[low]
        self.spans.update({a: b for a, b in ((low, start), (end, high)) if a < b})
        inside = [address for address in self.blocks if start <= address < end]
        assert not inside, f"a block was at {inside[0]:#x} before its memory was mapped"

    def map(self, start, end):
        for a, b in list(self.spans.items()):
            assert b <= start or end <= a, f"{start:#x}..{end:#x} was mapped twice"
            if b == start or a == end:
                del self.spans[a]
                start, end = min(start, a), max(end, b)
        self.spans[start] = end

    def undo(self, entry):
        action, size, at = entry["action"], entry["size"], entry.get("addr")
        if action in ("segment_map", "segment_alloc"):
            self.unmap(at, at + size)
        elif action in ("segment_unmap", "segment_free"):
            self.map(at, at + size)
        elif action == "free_completed":
            assert at not in self.blocks, f"{entry} is of a block that is in use"
            assert any(a <= at and at + size <= b for a, b in self.spans.items()), f"{entry} is nowhere"
            self.blocks[at] = True
        elif action == "free_requested":
            assert self.blocks.get(at), f"{entry} is of no block that is freed"
            self.blocks[at] = False
        elif action == "alloc":
            assert self.blocks.get(at) is False, f"{entry} is of no block that is in use"
            del self.blocks[at]


def main():
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    check_opcodes(data)
    snapshot = pickle.loads(data)
    assert type(snapshot["segments"]) is list and type(snapshot["device_traces"]) is list
    check_keys(snapshot["allocator_settings"], SETTINGS)
    for segment in snapshot["segments"]:
        check_segment(segment)
    (trace,) = snapshot["device_traces"]
    check_trace(trace)
    memory = Memory(snapshot["segments"])
    for entry in reversed(trace):
        memory.undo(entry)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    json.dump(
        {
            "reserved": sum(segment["total_size"] for segment in snapshot["segments"]),
            "states": collections.Counter(block["state"] for block in blocks),
            "actions": collections.Counter(entry["action"] for entry in trace),
            "places": sorted({
                f"{frame['filename']}:{frame['line']}:{frame['name']}"
                for thing in blocks + trace for frame in thing["frames"]
            }),
            "left": {"segments": len(memory.spans), "blocks": len(memory.blocks)},
            "expandable": sorted({segment["is_expandable"] for segment in snapshot["segments"]}),
        },
        sys.stdout,
    )


main()
