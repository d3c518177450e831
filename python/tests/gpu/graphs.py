#!/usr/bin/env python3
"""Compares PyTorch's CUDA graphs on memory from weirpool with graphs on PyTorch's own allocator.

    pip install weirpool
    python3 tests/gpu/graphs.py

Each allocator runs in a process of its own. Each process

- captures a step of a small transformer with `torch.cuda.graph`, and replays it 100 times, with other work in between
  that takes all the memory it can get. Each answer must be that of the eager step, bit for bit;
- captures two graphs that share a pool;
- deletes the graphs, and checks that their memory is released;
- compiles a layer with `torch.compile(mode="reduce-overhead")`, and calls it 100 times in the same way;
- measures eager steps and replays by turns.

Answers must be equal between the allocators as well.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import weirpool
import weirpool.torch
from train_and_serve import DEVICE, VOCABULARY, WIDTH, Layer, Transformer, fingerprint

import torch
import torch._inductor.config

REPLAYS, ROUNDS, STEPS = 100, 7, 50


def bits(numbers):
    return numbers.contiguous().view(torch.int32)


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


def step(model, tokens):
    return model(tokens)[:, -1].clone()


@torch.inference_mode()
def replayed(model, in_graphs):
    """Replays graphs with other work in between. Returns fingerprints of the answers."""
    static = torch.zeros(4, 64, dtype=torch.long, device=DEVICE)
    inputs = [torch.randint(VOCABULARY, (4, 64), device=DEVICE) for _ in range(REPLAYS)]
    expected = [step(model, tokens) for tokens in inputs]
    before = in_graphs()
    # Loads kernels and libraries, as PyTorch's documentation requires.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model, static)
    torch.cuda.current_stream().wait_stream(side)

    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        answer = step(model, static)
    # The second graph uses the same memory, and reads the first one's answer, so the two are replayed in turn.
    with torch.cuda.graph(second, pool=first.pool()):
        doubled = answer * 2

    held, fingerprints = [], []
    for number, (tokens, eager) in enumerate(zip(inputs, expected)):
        other_work(held, number)
        static.copy_(tokens)
        first.replay()
        second.replay()
        if not torch.equal(bits(answer), bits(eager)):
            sys.exit(f"replay {number} differs from the eager step")
        if not torch.equal(bits(doubled), bits(eager * 2)):
            sys.exit(f"replay {number} of the second graph differs")
        fingerprints.append(fingerprint(answer))
    fingerprints = [number.item() for number in fingerprints]
    used = in_graphs()
    del held
    # A replay may still run when its graph is deleted.
    first.replay()
    del first, second, answer, doubled
    gc.collect()
    torch.cuda.synchronize()
    deadline = time.monotonic() + 10
    while in_graphs() > before and time.monotonic() < deadline:
        time.sleep(0.01)
        torch.cuda.synchronize()
    return fingerprints, used, in_graphs() - before


@torch.no_grad()
def compiled(layer):
    """Calls a compiled layer with other work in between. Returns fingerprints, or the reason why there is no compiler."""
    # On both allocators; graph_trees.py is about the trees.
    torch._inductor.config.triton.cudagraph_trees = False
    is_later = torch.ones(64, 64, dtype=torch.bool, device=DEVICE).triu(1)
    inputs = [torch.randn(4, 64, WIDTH, device=DEVICE) for _ in range(REPLAYS)]
    try:
        run = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
        for _ in range(3):
            run(inputs[0], is_later)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if any(word in text for word in ["triton", "Triton", "compiler", "gcc", "Python.h"]):
            return [], text.splitlines()[0][:200]
        raise
    held, fingerprints = [], []
    for number, numbers in enumerate(inputs):
        other_work(held, number)
        fingerprints.append(fingerprint(run(numbers, is_later)))
    return [number.item() for number in fingerprints], None


@torch.inference_mode()
def timed(model):
    """Returns the median times of an eager step and of a replay in microseconds, measured by turns."""
    static = torch.zeros(1, 16, dtype=torch.long, device=DEVICE)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(model, static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(model, static)
    times = {"eager": [], "graph": []}
    for _ in range(ROUNDS):
        for name, run in [("eager", lambda: step(model, static)), ("graph", graph.replay)]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                run()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / STEPS * 1e6)
    return {name: statistics.median(all_times[1:]) for name, all_times in times.items()}


def run(arguments):
    """Runs one allocator in this process. Prints one line of JSON."""
    is_weirpool = arguments.allocator == "weirpool"
    if is_weirpool:
        weirpool.torch.use()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: run this on a machine with a GPU and a CUDA build of PyTorch")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    other_work.side = torch.cuda.Stream()
    in_graphs = (lambda: weirpool.statistics()["in_graphs"]) if is_weirpool else (lambda: 0)

    model, layer = Transformer().to(DEVICE).eval(), Layer().to(DEVICE).eval()
    answers, used, left = replayed(model, in_graphs)
    times = timed(model)
    compiled_answers, missing = ([], "left out") if arguments.no_compile else compiled(layer)
    results = {"answers": answers, "compiled": compiled_answers, "missing": missing}
    figures = {"in_graphs": used, "left_in_graphs": left}
    versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps(versions | figures | times | results), flush=True)


def in_a_process(arguments, allocator):
    command = [sys.executable, __file__, "--allocator", allocator]
    command += ["--no-compile"] if arguments.no_compile else []
    print("running:", *command[1:], file=sys.stderr)
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if child.returncode != 0:
        sys.exit(f"the run exited with {child.returncode}; its messages are above")
    return json.loads(child.stdout.splitlines()[-1])


def compare(arguments):
    """Runs both allocators and prints the results side by side. Exits with 1 if they differ, or if a graph's memory was not released."""
    own, pooled = in_a_process(arguments, "pytorch"), in_a_process(arguments, "weirpool")
    print(f"{own['gpu']}, PyTorch {own['torch']}\n")
    print(f"{'':34}{'PyTorch':>12}{'weirpool':>12}")
    for name in ["eager", "graph"]:
        print(f"{name + ' step':34}" + "".join(f"{r[name]:>9.1f} us" for r in [own, pooled]))
    print(f"{'replays equal to eager steps':34}" + "".join(f"{len(r['answers']):>12}" for r in [own, pooled]))
    is_well = True
    for name, title in [("answers", "graphs"), ("compiled", "reduce-overhead")]:
        is_equal = own[name] == pooled[name]
        is_well &= is_equal
        words = "equal" if is_equal else "DIFFERENT"
        print(f"{title + ', between the allocators':34}{len(own[name]):>12}{words:>12}")
    for r, name in [(own, "PyTorch"), (pooled, "weirpool")]:
        if r["missing"]:
            print(f"torch.compile was not run on {name}: {r['missing']}")
    print(f"memory of the graphs: {pooled['in_graphs'] / 2**20:.0f} MiB, {pooled['left_in_graphs']} bytes after they were deleted")
    is_well &= pooled["in_graphs"] > 0 and pooled["left_in_graphs"] == 0
    sys.exit(0 if is_well else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=["pytorch", "weirpool"], help="run only this allocator, and print JSON")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    (run if arguments.allocator else compare)(arguments)


if __name__ == "__main__":
    main()
