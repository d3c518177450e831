"""A program that holds memory in each of its rounds, for some ms, and none between. Arguments: the framework, rounds, GiB, ms, and
a file to wait for."""
import os
import sys
import time

framework, rounds, gib, hold, start = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]) / 1e3, sys.argv[5]
n = int(gib * (1 << 30) / 4 / 4)  # four arrays of 4-byte elements
slowest, total = 0.0, 0.0
if framework == "torch":
    import torch
    def one(i):
        arrays = [torch.full((n,), float(i + j), device="cuda") for j in range(4)]
        time.sleep(hold)
        return sum(float(a[-1]) for a in arrays)
else:
    import cupy
    cupy.cuda.set_allocator(None)
    def one(i):
        arrays = [cupy.full((n,), float(i + j), dtype=cupy.float32) for j in range(4)]
        time.sleep(hold)
        return sum(float(a[-1]) for a in arrays)
open(f"{start}.{framework}", "w").close()
while not os.path.exists(start):
    time.sleep(0.01)
begin = time.perf_counter()
for i in range(rounds):
    start = time.perf_counter()
    total += one(i)
    slowest = max(slowest, time.perf_counter() - start)
print(f"sum {total:.0f}, {rounds} rounds, slowest {slowest:.2f} s, time {time.perf_counter() - begin:.1f} s")
