#!/usr/bin/env python3
"""Serves four models at once, on PyTorch's allocator and on weirpool, and compares memory, time and answers.

    pip install weirpool
    pip install torchvision transformers
    python3 benchmarks/models.py --rounds 5

ResNet-50, ViT-B/16, BERT, and GPT-2 with a cache of keys and values have random weights and a Python thread and a stream
each. In each round three processes take turns: PyTorch's allocator, the same with expandable segments, and weirpool. The
figures are medians. Answers must be equal, bit for bit.
"""

import argparse
import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torchvision.models import resnet50, vit_b_16
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import weirpool
import weirpool.torch
from train_and_serve import DEVICE, fingerprint, in_a_process, medians, timed

SETTINGS = {"pytorch": "expandable_segments:False", "expandable": "expandable_segments:True", "weirpool": ""}


class Inputs:
    """Random batches of random sizes. They are the same in each run, whatever other threads do."""

    def __init__(self, seed):
        self.sizes = random.Random(seed)
        self.numbers = torch.Generator(DEVICE).manual_seed(seed)

    def images(self):
        return torch.rand(self.sizes.choice([1, 2, 4, 8, 16, 32]), 3, 224, 224, generator=self.numbers, device=DEVICE)

    def words(self, longest):
        shape = self.sizes.choice([1, 2, 4, 8, 16]), self.sizes.randint(16, longest)
        return torch.randint(30_000, shape, generator=self.numbers, device=DEVICE)


def classify(model, inputs):
    return model(inputs.images())


def encode(model, inputs):
    return model(inputs.words(longest=512)).pooler_output


def generate(model, inputs):
    step = model(inputs.words(longest=256), use_cache=True)
    for _ in range(inputs.sizes.randint(4, 24)):
        token = step.logits[:, -1:].argmax(-1)
        step = model(token, past_key_values=step.past_key_values, use_cache=True)
    return step.logits[:, -1]


def services():
    models = [resnet50(), vit_b_16(), BertModel(BertConfig()), GPT2LMHeadModel(GPT2Config())]
    # The last layer of a new ViT is all zeros.
    models[1].heads = torch.nn.Identity()
    answers = [classify, classify, encode, generate]
    return [partial(answer, model.to(DEVICE).eval()) for answer, model in zip(answers, models)]


@torch.inference_mode()
def serve(answer, inputs, stream, count):
    with torch.cuda.stream(stream):
        fingerprints = [fingerprint(answer(inputs)) for _ in range(count)]
        return [fingerprint.item() for fingerprint in fingerprints]


def serve_all(threads, services, streams, count, first_seed=0):
    inputs = [Inputs(first_seed + number) for number in range(len(services))]
    work = [threads.submit(serve, *one, count) for one in zip(services, inputs, streams)]
    return [one.result() for one in work]


def run(arguments):
    """Runs one allocator in this process. Returns its figures."""
    # Set before CUDA is used, because PyTorch reads it then.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[arguments.allocator]
    is_weirpool = arguments.allocator == "weirpool"
    if is_weirpool:
        weirpool.torch.use(keep_streams=not arguments.ask_for_streams)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    every = services()
    streams = [torch.cuda.Stream() for _ in every]
    torch.cuda.synchronize()
    with ThreadPoolExecutor(len(every)) as threads:
        # The first requests load kernels.
        serve_all(threads, every, streams, 2)
        answers, first = timed(serve_all, threads, every, streams, arguments.requests)
        _, again = timed(serve_all, threads, every, streams, arguments.requests)
    figures = {"first": first, "again": again, "answers": answers, "gpu": torch.cuda.get_device_name()}
    if is_weirpool:
        figures |= weirpool.statistics()
    figures |= {"peak_reserved": torch.cuda.max_memory_reserved(), "peak_used": torch.cuda.max_memory_allocated()}
    return figures


def compare(arguments):
    """Runs all variants in turn and prints the results side by side. Exits with 1 if answers differ, or if an allocation failed."""
    rounds = [{allocator: in_a_process(run, arguments, allocator=allocator) for allocator in SETTINGS} for _ in range(arguments.rounds)]
    columns = [medians([one[allocator] for one in rounds]) for allocator in SETTINGS]
    print(f"{columns[0]['gpu']}, PyTorch {torch.__version__}, medians of {arguments.rounds} by turns\n")
    print(f"{'':20}{'PyTorch':>14}{'expandable':>14}{'weirpool':>14}")
    gib, s = (lambda n: f"{n / 2**30:.2f} GiB"), (lambda n: f"{n:.2f} s")
    rows = [("peak reserved", gib), ("peak used", gib), ("first", s), ("again", s), ("waits", str), ("device waits", str), ("failures", str)]
    for title, words in rows:
        figures = [column.get(title.replace(" ", "_")) for column in columns]
        print(f"{title:20}" + "".join(f"{'-' if figure is None else words(figure):>14}" for figure in figures))
    every = [one for of_round in rounds for one in of_round.values()]
    is_equal = all(one["answers"] == every[0]["answers"] for one in every)
    print(f"\n{sum(map(len, every[0]['answers']))} answers: {'equal' if is_equal else 'DIFFERENT'}")
    sys.exit(0 if is_equal and not any(one.get("failures") for one in every) else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=SETTINGS, help="run only this variant, and print JSON")
    parser.add_argument("--requests", type=int, default=40, help="requests to each model, twice")
    parser.add_argument("--ask-for-streams", action="store_true", help="have weirpool treat PyTorch's streams as ones that may be destroyed")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each; the figures are medians")
    arguments = parser.parse_args()
    if arguments.allocator:
        print(json.dumps(run(arguments)))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
