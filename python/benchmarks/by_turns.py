#!/usr/bin/env python3
"""Compares the time of PyTorch on memory from weirpool with that on its own allocator, by turns in one process.

    pip install weirpool
    python3 benchmarks/by_turns.py

The training and the requests are those of train_and_serve.py and, with `--models`, of models.py, which run each allocator in a
process of its own, and report memory. Times of processes differ by a third on a shared host. Here each step of the training, each request,
and each batch of requests to the four models runs once with either allocator, in random order, so that the host's load affects both.

The time of a step or of a batch ends when the device has completed it. A request's time is that of the host: it submits
requests more slowly than the device completes them. Answers must be equal, bit for bit.
"""

import argparse
import ctypes
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Sets variables that CUDA needs before its first use.
import train_and_serve
import torch

import weirpool.torch
from train_and_serve import DEVICE
from weirpool.torch._build import build

STEPS, REQUESTS, STREAMS = 20, 200, 4
# Batches of requests to the four models, and the requests of a batch to each model.
BATCHES, BATCH = 10, 3
ALLOCATORS = ["PyTorch", "weirpool"]
# The host waits for the device after this many requests. Otherwise memory would grow without bound on a slower device.
BETWEEN_WAITS = 10


def install():
    """Installs weirpool beside PyTorch's own allocator. Returns a function that switches between them."""
    switch = ctypes.CDLL(build("switch_allocator", Path(__file__).with_name("switch_allocator.cpp")))
    switch.use_own.argtypes = [ctypes.c_bool]
    switch.find_own()
    weirpool.torch.use()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: run this on a machine with a GPU and a CUDA build of PyTorch")
    torch.cuda.init()
    torch.cuda.synchronize()
    switch.initialize_own(torch.cuda.device_count())
    return lambda name: switch.use_own(name == "PyTorch")


class Training:
    """Trains a model, one step at a time."""

    def __init__(self):
        self.model = train_and_serve.Transformer().to(DEVICE)
        self.optimizer = train_and_serve.optimizer_of(self.model)
        self.jobs = [()] * STEPS

    def run(self, _number):
        train_and_serve.train_once(self.model, self.optimizer)
        # Frees the gradients while their allocator is in use.
        self.optimizer.zero_grad()
        torch.cuda.synchronize()


class Serving:
    """Serves requests on several streams, while the host runs ahead."""

    def __init__(self, model):
        self.model = model
        self.jobs = train_and_serve.requests(REQUESTS)
        self.streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        self.arrivals, self.departures = torch.cuda.current_stream(), torch.cuda.Stream()

    @torch.inference_mode()
    def run(self, number, batch, length):
        stream = self.streams[number % STREAMS]
        return train_and_serve.serve_one(self.model, (batch, length), self.arrivals, stream, self.departures)


class Models:
    """Serves four models at once, with a Python thread and a stream each."""

    def __init__(self):
        # Needs torchvision and transformers.
        import models

        self.serve_all, self.services = models.serve_all, models.services()
        self.jobs = [()] * BATCHES
        self.streams = [torch.cuda.Stream() for _ in self.services]
        self.threads = ThreadPoolExecutor(len(self.services))

    def run(self, number):
        return self.serve_all(self.threads, self.services, self.streams, BATCH, number * len(self.services))


def round_of(work, use, order):
    """Runs each job once with either allocator. Returns the time of each allocator in seconds. Exits if answers differ."""
    took, answers = dict.fromkeys(ALLOCATORS, 0.0), {name: [] for name in ALLOCATORS}
    for number, job in enumerate(work.jobs):
        for name in order.sample(ALLOCATORS, len(ALLOCATORS)):
            use(name)
            # The inputs of a request are random.
            torch.manual_seed(number)
            start = time.perf_counter()
            answers[name].append(work.run(number, *job))
            took[name] += time.perf_counter() - start
        if number % BETWEEN_WAITS == BETWEEN_WAITS - 1:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    first, second = ([one.item() if torch.is_tensor(one) else one for one in answers[name]] for name in ALLOCATORS)
    if first != second:
        sys.exit("the answers differ")
    return took


def compare(name, work, use, seconds):
    order = random.Random(1)
    # The first round loads kernels, and takes memory from the device.
    round_of(work, use, order)
    rounds, start = [], time.perf_counter()
    while len(rounds) < 3 or time.perf_counter() - start < seconds:
        rounds.append(round_of(work, use, order))
    times = {of: statistics.median(took[of] for took in rounds) for of in ALLOCATORS}
    ratios = [took["weirpool"] / took["PyTorch"] for took in rounds]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"{name:12}{len(rounds):8}", *(f"{times[of]:11.3f} s" for of in ALLOCATORS), f"{statistics.mean(ratios):8.3f} ± {error:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", action="store_true", help="also serve the four models of models.py")
    parser.add_argument("--seconds", type=float, default=60, help="time of each comparison")
    arguments = parser.parse_args()
    use = install()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; medians, and the mean of the ratios with its standard error\n")
    print(f"{'':12}{'rounds':>8}", *(f"{name:>13}" for name in ALLOCATORS), f"{'ratio':>8}")
    training = Training()
    compare("training", training, use, arguments.seconds)
    compare("serving", Serving(training.model), use, arguments.seconds)
    if arguments.models:
        compare("four models", Models(), use, arguments.seconds)


if __name__ == "__main__":
    main()
