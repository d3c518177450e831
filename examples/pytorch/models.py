#!/usr/bin/env python3
"""Compares PyTorch on memory from weirpool with PyTorch on its own allocator, with real models.

    cargo build --release --features cuda --example pytorch
    python3 examples/pytorch/models.py

Four Python threads work at the same time, each on a stream of its own: Llama answers prompts, GPT-2 searches with beams,
BERT is trained, and ResNet-50 classifies batches. All weights are random. Needs `transformers` and `torchvision`.

The allocators take turns, each run in a process of its own: PyTorch's, PyTorch's with expandable segments, and weirpool.
The figures are medians. With `--record DIR` each model runs alone on PyTorch's allocator, and its allocations are written
to DIR, for `weirpool replay`.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from weirpool_torch import use_weirpool

DEVICE = "cuda"
ALLOCATORS = ["pytorch", "expandable", "weirpool"]


def llama():
    """Answers batches of prompts of different lengths."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    sizes = random.Random(1)

    @torch.inference_mode()
    def work(rounds):
        for _ in range(rounds):
            tokens = torch.randint(32000, (sizes.randint(1, 8), sizes.randint(16, 900)), device=DEVICE)
            generate(model, tokens, max_new_tokens=32, do_sample=False)

    return work


def beams():
    """Searches with four beams."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).to(DEVICE, torch.bfloat16).eval()
    sizes = random.Random(2)

    @torch.inference_mode()
    def work(rounds):
        for _ in range(rounds):
            tokens = torch.randint(50000, (sizes.randint(1, 6), sizes.randint(32, 700)), device=DEVICE)
            generate(model, tokens, max_new_tokens=48, num_beams=4, do_sample=False)

    return work


def generate(model, tokens, **options):
    """Generates exactly `max_new_tokens` tokens for each sequence."""
    least = options["max_new_tokens"]
    mask = torch.ones_like(tokens)
    model.generate(tokens, attention_mask=mask, min_new_tokens=least, pad_token_id=0, **options)


def bert():
    """Trains with mixed precision, at a different sequence length in each step."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=8)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    sizes = random.Random(3)

    def work(rounds):
        for _ in range(rounds):
            tokens = torch.randint(30000, (8, 32 * sizes.randint(1, 16)), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def resnet():
    """Classifies batches of images of four sizes."""
    from torchvision.models import resnet50

    model = resnet50().to(DEVICE).eval()
    sizes = random.Random(4)

    @torch.inference_mode()
    def work(rounds):
        for _ in range(rounds):
            side = sizes.choice([160, 192, 224, 256])
            model(torch.rand(sizes.randint(1, 48), 3, side, side, device=DEVICE))

    return work


MODELS = {llama: 10, beams: 6, bert: 40, resnet: 120}


def run(arguments):
    """Runs all models at once in this process. Prints one line of JSON."""
    library = use_weirpool(arguments.library, trees=False) if arguments.allocator == "weirpool" else None
    torch.manual_seed(1)
    works = [(make(), rounds(arguments, count)) for make, count in MODELS.items()]
    # Loads kernels.
    for work, _ in works:
        work(1)
    torch.cuda.synchronize()
    failures = []

    def on_a_stream(work, count):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                work(count)
                torch.cuda.current_stream().synchronize()
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=on_a_stream, args=pair) for pair in works]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    if failures:
        raise failures[0]
    peak = library.weirpool_peak_reserved(0) if library else torch.cuda.max_memory_reserved()
    waited = library.weirpool_waited_us(0) / 1e6 if library else 0
    print(json.dumps({"time": took, "peak": peak, "waited": waited, "gpu": torch.cuda.get_device_name()}), flush=True)


def rounds(arguments, count):
    return max(1, int(count * arguments.work))


def record(arguments):
    folder = Path(arguments.record)
    folder.mkdir(parents=True, exist_ok=True)
    for make, count in MODELS.items():
        torch.cuda.memory._record_memory_history(max_entries=4_000_000, context=None, stacks="python")
        make()(rounds(arguments, count))
        torch.cuda.synchronize()
        torch.cuda.memory._dump_snapshot(str(folder / f"{make.__name__}.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.empty_cache()


def compare(arguments):
    runs = {allocator: [] for allocator in ALLOCATORS}
    for number in range(arguments.rounds):
        for at in range(len(ALLOCATORS)):
            allocator = ALLOCATORS[(number + at) % len(ALLOCATORS)]
            runs[allocator].append(in_a_process(arguments, allocator))
    print(f"{runs['weirpool'][0]['gpu']}, PyTorch {torch.__version__}; medians of {arguments.rounds} by turns\n")
    print(f"{'':24}{'time':>10}{'least':>10}{'most':>10}{'peak reserved':>16}{'waited on host':>18}")
    for allocator, results in runs.items():
        times, peaks, waits = ([r[name] for r in results] for name in ["time", "peak", "waited"])
        print(
            f"{allocator:24}{statistics.median(times):>8.2f} s{min(times):>8.2f} s{max(times):>8.2f} s"
            f"{statistics.median(peaks) / 2**30:>12.2f} GiB{statistics.median(waits):>16.3f} s"
        )


def in_a_process(arguments, allocator):
    command = [sys.executable, __file__, "--allocator", allocator, "--library", arguments.library, "--work", str(arguments.work)]
    environment = dict(os.environ)
    if allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if child.returncode != 0:
        sys.exit(f"{allocator}: the run exited with {child.returncode}; its messages are above")
    return json.loads(child.stdout.splitlines()[-1])


def main():
    built = os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[2] / "target")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=ALLOCATORS, help="run only this one, and print JSON")
    parser.add_argument("--library", default=str(Path(built) / "release/examples/libpytorch.so"))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each allocator")
    parser.add_argument("--work", type=float, default=1.0, help="how much each model does; 1 is some seconds")
    parser.add_argument("--record", metavar="DIR", help="write the allocations of each model there instead")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: run this on a machine with a GPU and a CUDA build of PyTorch")
    if arguments.record:
        record(arguments)
    else:
        (run if arguments.allocator else compare)(arguments)


if __name__ == "__main__":
    main()
