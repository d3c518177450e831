#!/usr/bin/env python3
"""Compares `torch.compile(mode="reduce-overhead")` on memory from weirpool with the same mode on PyTorch's own allocator.

    pip install weirpool
    python3 tests/gpu/graph_trees.py

The mode records trees of graphs that share one pool. Each allocator runs in a process of its own, which

- calls a model of three compiled parts 100 times, with other work in between. The middle part is one of two, so the tree has
  branches, and the batch has one of three sizes;
- trains it, so that graphs of the backward pass follow those of the forward pass while tensors of the forward pass are alive;
- drops everything, and checks that the memory of the graphs is released;
- measures steps without other work.

Answers, losses and gradients must be equal between the allocators, bit for bit.
"""

import argparse
import collections
import gc
import json
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import weirpool
import weirpool.torch
from train_and_serve import DEVICE, WIDTH, fingerprint

import torch
from torch import nn
from torch.nn import functional as F

CALLS, STEPS, ROUNDS = 100, 60, 7
BATCHES = [8, 16, 24]

# The functions of PyTorch that its trees call, and that a pluggable allocator takes part in.
FUNCTIONS = [
    "_cuda_beginAllocateCurrentThreadToPool",
    "_cuda_endAllocateToPool",
    "_cuda_releasePool",
    "_cuda_getCheckpointState",
    "_cuda_setCheckpointPoolState",
    "_cuda_checkPoolLiveAllocations",
    "_cuda_cudaCachingAllocator_raw_delete",
    "_cuda_clearCublasWorkspaces",
    "_cuda_memorySnapshot",
    "_free_And_Remove_DeleterFn",
    "_has_Standard_Deleter",
    "_construct_storage_from_data_pointer",
]


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Branching(nn.Module):
    """Three parts, each a graph of its own. The middle one is one of two."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right, self.last = Part(), Part(), Part(), Part()

    def forward(self, x, is_left):
        x = self.first(x)
        torch._dynamo.graph_break()
        x = self.left(x) if is_left else self.right(x)
        torch._dynamo.graph_break()
        return self.last(x)


def other_work(held, number):
    """Allocates and overwrites blocks of many sizes on this stream and on another one, and keeps a few of them."""
    side = other_work.side
    side.wait_stream(torch.cuda.current_stream())
    for size in [1 << 9, 1 << 16, 3 << 18, 1 << 21, 5 << 20]:
        held.append(torch.full((size // 4,), float("nan"), device=DEVICE))
        with torch.cuda.stream(side):
            held.append(torch.full((size // 4 + number,), float("inf"), device=DEVICE))
    del held[: max(0, len(held) - 40)]
    torch.cuda.current_stream().wait_stream(side)


def schedule(number):
    """The left branch is replayed before the right one is recorded, for each size of the batch in turn."""
    return BATCHES[number // 8 % 3], number % 8 < 4 or number % 3 == 0


@torch.no_grad()
def called(model):
    run = torch.compile(model, mode="reduce-overhead", dynamic=True)
    inputs = [torch.randn(schedule(number)[0], WIDTH, device=DEVICE) for number in range(CALLS)]
    held, fingerprints = [], []
    for number, x in enumerate(inputs):
        torch.compiler.cudagraph_mark_step_begin()
        answer = run(x, schedule(number)[1])
        other_work(held, number)
        fingerprints.append(fingerprint(answer))
    return [number.item() for number in fingerprints]


def trained(model):
    run = torch.compile(model, mode="reduce-overhead", dynamic=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    held, fingerprints = [], []
    for number in range(STEPS):
        batch, is_left = schedule(number)
        x = torch.randn(batch, WIDTH, device=DEVICE)
        torch.compiler.cudagraph_mark_step_begin()
        loss = (run(x, is_left) - x.flip(0)).square().mean()
        other_work(held, number)
        loss.backward()
        other_work(held, number)
        fingerprints.append(fingerprint(loss.detach().view(1)))
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        fingerprints += [fingerprint(gradient) for gradient in gradients]
        optimizer.step()
        optimizer.zero_grad()
        del loss, gradients
    return [number.item() for number in fingerprints]


@torch.no_grad()
def timed(model):
    """Returns the median time of a step in microseconds: eager, and replayed."""
    run = torch.compile(model, mode="reduce-overhead", dynamic=True)
    x = torch.randn(BATCHES[0], WIDTH, device=DEVICE)

    def replay():
        torch.compiler.cudagraph_mark_step_begin()
        run(x, True)

    times = collections.defaultdict(list)
    for _ in range(ROUNDS):
        for name, step in [("eager", lambda: model(x, True)), ("replay", replay)]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / STEPS * 1e6)
    return {name: statistics.median(all_times[1:]) for name, all_times in times.items()}


def count_calls():
    """Counts the calls that the trees make from Python."""
    calls = collections.Counter()

    def counted(name, function):
        def call(*arguments, **named):
            calls[name] += 1
            return function(*arguments, **named)

        return call

    for name in FUNCTIONS:
        if hasattr(torch._C, name):
            setattr(torch._C, name, counted(name, getattr(torch._C, name)))
    return calls


def in_graphs(is_weirpool):
    """Returns the bytes that are set aside for graphs."""
    if is_weirpool:
        return weirpool.statistics()["in_graphs"]
    segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0))


def released(is_weirpool):
    """Drops all graphs. Returns the bytes that are still set aside for them."""
    from torch._inductor import cudagraph_trees

    torch._dynamo.reset()
    cudagraph_trees.reset_cudagraph_trees()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return settled(lambda: in_graphs(is_weirpool))


def settled(count):
    """Returns 0 once the count of bytes is 0, or the count after ten seconds."""
    deadline = time.monotonic() + 10
    while (left := count()) > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
        torch.cuda.synchronize()
    return left


def in_a_pool(is_weirpool):
    """Allocates outside captures from a pool of PyTorch's. Returns the bytes set aside meanwhile, and afterwards."""
    before = in_graphs(is_weirpool)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(4 << 20, device=DEVICE)
    meanwhile = in_graphs(is_weirpool) - before
    assert inside.sum().item() == 4 << 20
    del inside, pool
    gc.collect()
    return meanwhile, in_graphs(is_weirpool) - before


def tried(name, results, function):
    """Stores the function's result, or the reason why it failed, and goes on."""
    start = time.perf_counter()
    try:
        results[name] = function()
    except Exception:
        results.setdefault("errors", {})[name] = traceback.format_exc()
        traceback.print_exc()
    print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def run(arguments):
    """Runs one allocator in this process. Prints one line of JSON."""
    is_weirpool = arguments.allocator == "weirpool"
    if is_weirpool:
        weirpool.torch.use()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: run this on a machine with a GPU and a CUDA build of PyTorch")
    import torch._inductor.config as inductor

    if hasattr(inductor, "deterministic"):
        inductor.deterministic = True
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    other_work.side = torch.cuda.Stream()
    model = Branching().to(DEVICE)
    calls = count_calls()
    results = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "trees": inductor.triton.cudagraph_trees}
    tried("answers", results, lambda: called(model))
    tried("in_graphs", results, lambda: in_graphs(is_weirpool))
    tried("times", results, lambda: timed(model))
    tried("left_after_calls", results, lambda: released(is_weirpool))
    tried("gradients", results, lambda: trained(model))
    tried("in_graphs_of_training", results, lambda: in_graphs(is_weirpool))
    tried("left_after_training", results, lambda: released(is_weirpool))
    if is_weirpool:
        results["pending"] = settled(lambda: weirpool.statistics()["pending"])
    results["peak"] = torch.cuda.max_memory_reserved()
    results["calls"] = calls
    print(json.dumps(results), flush=True)
    if is_weirpool:
        tried("mem_pool", results, lambda: in_a_pool(is_weirpool))
        print(json.dumps(results), flush=True)


def in_a_process(arguments, allocator):
    command = [sys.executable, __file__, "--allocator", allocator]
    print("running:", *command[1:], file=sys.stderr)
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = child.stdout.splitlines()
    results = json.loads(lines[-1]) if lines else {}
    if child.returncode != 0:
        results.setdefault("errors", {})["process"] = f"exit code {child.returncode}; its messages are above"
    return results


def compare(arguments):
    """Runs both allocators and prints the results side by side. Exits with 1 if they differ, or if the memory of graphs was not released."""
    own, pooled = in_a_process(arguments, "pytorch"), in_a_process(arguments, "weirpool")
    print(f"{own.get('gpu')}, PyTorch {own.get('torch')}, trees: {own.get('trees')}, {pooled.get('trees')}\n")
    print(f"{'':36}{'PyTorch':>12}{'weirpool':>12}")
    for name, title in [("eager", "eager call"), ("replay", "replayed call")]:
        times = [r.get("times", {}).get(name, float("nan")) for r in [own, pooled]]
        print(f"{title:36}" + "".join(f"{time:>9.1f} us" for time in times))
    sizes = [
        ("in_graphs", "set aside for graphs of calls"),
        ("in_graphs_of_training", "set aside for graphs of training"),
        ("left_after_calls", "left after calls"),
        ("left_after_training", "left after training"),
        ("peak", "peak reserved"),
    ]
    for name, title in sizes:
        print(f"{title:36}" + "".join(f"{r.get(name, float('nan')) / 2**20:>8.1f} MiB" for r in [own, pooled]))
    is_well = bool(pooled.get("trees"))
    for name, title in [("answers", "answers"), ("gradients", "losses and gradients")]:
        is_equal = bool(own.get(name)) and own.get(name) == pooled.get(name)
        is_well &= is_equal
        words = "equal" if is_equal else "DIFFERENT"
        print(f"{title + ', between the allocators':36}{len(own.get(name, [])):>12}{words:>12}")
    print(f"freed memory that stays pending: {pooled.get('pending')} bytes")
    is_well &= pooled.get("pending") == 0
    used, left = pooled.get("mem_pool", [0, 0])
    print(f"torch.cuda.use_mem_pool: {used / 2**20:.0f} MiB set aside, {left} bytes after it")
    is_well &= used > 0 and left == 0
    for name in FUNCTIONS:
        print(f"{name:46}" + "".join(f"{r.get('calls', {}).get(name, 0):>8}" for r in [own, pooled]))
    for r, name in [(own, "PyTorch"), (pooled, "weirpool")]:
        for where, error in r.get("errors", {}).items():
            is_well = False
            print(f"{name}, {where}: {error}")
    is_well &= pooled.get("left_after_calls") == 0 and pooled.get("left_after_training") == 0
    sys.exit(0 if is_well else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=["pytorch", "weirpool"], help="run only this allocator, and print JSON")
    arguments = parser.parse_args()
    (run if arguments.allocator else compare)(arguments)


if __name__ == "__main__":
    main()
