#!/usr/bin/env python3
"""Compares PyTorch on memory from weirpool with PyTorch on its own allocator.

    pip install weirpool
    python3 benchmarks/train_and_serve.py

A small transformer is trained, and then serves requests of different sizes on several streams. This runs three
times: with PyTorch's allocator; with weirpool; and with weirpool and too little memory for all streams, which must
wait for each other's memory. Each run is a separate process, because an allocator is chosen before CUDA is used. Losses
and answers must be equal, bit for bit.

Single runs differ by 15 % on a shared host. With `--rounds N` the first two take turns, N times, and the figures are medians.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time

# Must be set before CUDA is used. Without it cuBLAS does not give the same bits on several streams.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional as F

import weirpool
import weirpool.torch

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 4096, 512, 8, 6, 768
DEVICE = "cuda"

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attend(self, x, is_later):
        batch, length, _ = x.shape
        parts = self.project(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        weights = scores.masked_fill(is_later, float("-inf")).softmax(-1)
        return self.merge((weights @ values).transpose(1, 2).flatten(2))

    def forward(self, x, is_later):
        x = x + self.attend(self.before_attention(x), is_later)
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(length, device=DEVICE))
        is_later = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)
        for layer in self.layers:
            x = layer(x, is_later)
        return self.head(self.norm(x))


def train(model, steps):
    """Trains the model to count: each sequence has a random start and a constant small step. Returns the losses."""
    optimizer = optimizer_of(model)
    losses = [train_once(model, optimizer) for _ in range(steps)]
    optimizer.zero_grad()
    return [loss.item() for loss in losses]


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=5e-4)


def train_once(model, optimizer):
    """Trains one step. Returns the loss, which the device has yet to compute."""
    first = torch.randint(VOCABULARY, (8, 1), device=DEVICE)
    by = torch.randint(1, 8, (8, 1), device=DEVICE)
    tokens = (first + by * torch.arange(129, device=DEVICE)) % VOCABULARY
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.inference_mode()
def serve(model, requests, arrivals, streams, departures):
    """Serves each request on the next stream, while the host runs ahead. Returns a fingerprint of each answer."""
    fingerprints = []
    for number, request in enumerate(requests):
        stream = streams[number % len(streams)]
        fingerprints.append(serve_one(model, request, arrivals, stream, departures))
    torch.cuda.synchronize()
    return [fingerprint.item() for fingerprint in fingerprints]


def serve_one(model, request, arrivals, stream, departures):
    """Serves a request on a stream. Returns the fingerprint of the answer, which the device has yet to compute."""
    with torch.cuda.stream(arrivals):
        tokens = torch.randint(VOCABULARY, request, device=DEVICE)
    stream.wait_stream(arrivals)
    tokens.record_stream(stream)
    with torch.cuda.stream(stream):
        answer = model(tokens)[:, -1]
    departures.wait_stream(stream)
    answer.record_stream(departures)
    with torch.cuda.stream(departures):
        return fingerprint(answer)


def fingerprint(numbers):
    """Returns a number that depends on all bits. It is a sum of integers, so the order of addition does not matter."""
    bits = numbers.contiguous().view(torch.int32).flatten().long()
    return (bits * torch.arange(1, 2 * len(bits), 2, device=DEVICE)).sum()


def requests(count):
    sizes = random.Random(1)
    return [(sizes.choice([1, 2, 4, 8, 16]), sizes.randint(32, LONGEST)) for _ in range(count)]


def timed(work, *arguments):
    torch.cuda.synchronize()
    start = time.perf_counter()
    answer = work(*arguments)
    torch.cuda.synchronize()
    return answer, time.perf_counter() - start


def run(arguments):
    """Runs one variant in this process. Returns its figures."""
    if arguments.capacity:
        os.environ["WEIRPOOL_CAPACITY"] = arguments.capacity
    is_weirpool = arguments.allocator == "weirpool"
    if is_weirpool:
        weirpool.torch.use(keep_streams=not arguments.ask_for_streams)
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: run this on a machine with a GPU and a CUDA build of PyTorch")
    torch.use_deterministic_algorithms(True)
    # A read of memory that was not written must show in the results.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)

    model = Transformer().to(DEVICE)
    streams = [torch.cuda.Stream() for _ in range(arguments.streams)]
    work = (model, requests(arguments.requests), torch.cuda.current_stream(), streams, torch.cuda.Stream())
    # The first run of each loads kernels and takes memory from the device.
    losses = train(model, 2)
    more_losses, training = timed(train, model, arguments.steps)
    answers, serving_first = timed(serve, *work)
    more_answers, serving = timed(serve, *work)

    figures = dict.fromkeys(weirpool.statistics()) if not is_weirpool else weirpool.statistics()
    # Both allocators count these in the same way.
    figures |= {"peak_reserved": torch.cuda.max_memory_reserved(), "peak_used": torch.cuda.max_memory_allocated()}
    results = {"losses": losses + more_losses, "answers": answers + more_answers}
    times = {"training": training, "serving_first": serving_first, "serving": serving}
    versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return versions | figures | times | results


def in_a_process(run, arguments, **changes):
    """Runs one variant in a child, and returns its figures. The child is forked before CUDA is used, so that it need not
    import PyTorch again, which takes seconds."""
    arguments = argparse.Namespace(**(vars(arguments) | changes))
    processes = multiprocessing.get_context("fork")
    receiver, sender = processes.Pipe(duplex=False)
    child = processes.Process(target=lambda: sender.send(run(arguments)))
    print("running:", *(f"{name}={value}" for name, value in changes.items()), file=sys.stderr)
    child.start()
    sender.close()
    try:
        figures = receiver.recv()
    except EOFError:
        figures = None
    child.join()
    if child.exitcode != 0 or figures is None:
        sys.exit(f"the run exited with {child.exitcode}; its messages are above")
    return figures


def compare(arguments):
    """Runs all three variants and prints the results side by side. Exits with 1 if they differ, or if an allocation failed."""
    os.environ.pop("WEIRPOOL_CAPACITY", None)
    runs = [[], [], []]
    for number in range(arguments.rounds):
        for at in range(2):
            which = (number + at) % 2
            runs[which].append(in_a_process(run, arguments, allocator=["pytorch", "weirpool"][which], capacity=None))
    # A little more than the peak of used memory. The rest of the reserved memory only avoids waits.
    used, reserved = runs[1][0]["peak_used"], runs[1][0]["peak_reserved"]
    capacity = arguments.capacity or str(used + max((reserved - used) // 4, 64 << 20))
    runs[2].append(in_a_process(run, arguments, allocator="weirpool", capacity=capacity))

    every = [run for of_one in runs for run in of_one]
    own, pooled, little = runs = [medians(of_one) for of_one in runs]
    print(f"{own['gpu']}, PyTorch {own['torch']}; little memory: WEIRPOOL_CAPACITY={capacity}")
    print(f"the first two: medians of {arguments.rounds} by turns\n" if arguments.rounds > 1 else "")
    print(f"{'':24}{'PyTorch':>14}{'weirpool':>14}{'little memory':>14}")
    gib, s, count = (lambda n: f"{n / 2**30:.2f} GiB"), (lambda n: f"{n:.3f} s"), str
    rows = [
        ("peak reserved", "peak_reserved", gib),
        ("peak used", "peak_used", gib),
        ("training", "training", s),
        ("serving, first", "serving_first", s),
        ("serving, again", "serving", s),
        ("waits on the host", "waits", count),
        ("  together", "waited_us", lambda n: s(n / 1e6)),
        ("waits on the device", "device_waits", count),
        ("chunks mapped elsewhere", "remaps", count),
        ("failures", "failures", count),
    ]
    for title, name, words in rows:
        print(f"{title:24}" + "".join(f"{'-' if r[name] is None else words(r[name]):>14}" for r in runs))
    same = ["losses", "answers"]
    for name in same:
        marks = ["equal" if r[name] == own[name] else "DIFFERENT" for r in runs[1:]]
        print(f"{name:24}{len(own[name]):>14}" + "".join(f"{mark:>14}" for mark in marks))
    print(f"\nloss: {own['losses'][0]:.3f} at the start, {own['losses'][-1]:.3f} at the end")
    if little["waits"] + little["device_waits"] == 0:
        print("no request had to wait in the last run: try a smaller --capacity, or more --streams")
    is_well = all(r[name] == own[name] and not r["failures"] for r in every for name in same)
    sys.exit(0 if is_well else 1)


def medians(runs):
    """Returns the medians of the numbers of several runs, and all other values of the first."""

    def median(name, first):
        is_number = isinstance(first, (int, float))
        return type(first)(statistics.median(run[name] for run in runs)) if is_number else first

    return {name: median(name, first) for name, first in runs[0].items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=["pytorch", "weirpool"], help="run only this variant, and print JSON")
    parser.add_argument("--capacity", help="the most that weirpool may reserve, such as 2GiB; applies to the third run if all run")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--requests", type=int, default=200, help="requests to serve, twice")
    parser.add_argument("--ask-for-streams", action="store_true", help="have weirpool treat PyTorch's streams as ones that may be destroyed")
    parser.add_argument("--rounds", type=int, default=1, help="turns of the first two; the figures are medians")
    parser.add_argument("--streams", type=int, default=4, help="streams for the requests")
    arguments = parser.parse_args()
    if arguments.allocator:
        print(json.dumps(run(arguments)))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
