#!/usr/bin/env python3
"""Shares tensors between two processes on memory from weirpool.

    pip install weirpool
    python3 tests/gpu/sharing.py

The parent shares a tensor; the child, a new process, doubles it in place; the parent sees that. Then it prints the time of a round
trip and the result of PyTorch's own way, and checks that all tensors were equal.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import time


import torch
import weirpool.torch
from weirpool.torch import sharing

ROUNDS = 50


def child(descriptor):
    peer = sharing.Connection(socket.socket(fileno=descriptor))
    while True:
        try:
            tensor = peer.receive()
        except EOFError:
            return
        tensor.mul_(2)
        del tensor  # released once the kernel is complete


def parent():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, "--child", str(theirs.fileno())]
    importer = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    peer = sharing.Connection(ours)
    times = []
    for dtype, shape in [(torch.float32, (1024, 1024)), (torch.float16, (64, 3, 224, 224)), (torch.int64, (7,))]:
        tensor = torch.randint(0, 100, shape, device="cuda").to(dtype)
        shared = sharing.share(tensor)
        for round_ in range(ROUNDS):
            shared.tensor.copy_(tensor)
            torch.cuda.synchronize()
            start = time.perf_counter()
            peer.send(shared)
            shared.wait()
            times.append(time.perf_counter() - start)
            assert torch.equal(shared.tensor, tensor * 2), f"{dtype} {shape}, round {round_}"
    print(f"{len(times)} tensors sent, doubled and released: {statistics.median(times) * 1e6:.0f} us at the median")
    try:
        torch.ones(4, device="cuda").untyped_storage()._share_cuda_()
        print("PyTorch's own way: a handle was made")
    except RuntimeError as error:
        print(f"PyTorch's own way: {str(error).splitlines()[0]}")
    peer.close()
    assert importer.wait(timeout=60) == 0
    print("all tensors were equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    weirpool.torch.use()
    if arguments.child is None:
        parent()
    else:
        child(arguments.child)


if __name__ == "__main__":
    main()
