#!/usr/bin/env python3
"""Sums arrays of two GPUs with NCCL, in memory of PyTorch's own allocator and in memory that NCCL registers.

    python3 nccl.py ROUNDS MIB
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def sums(rank, rounds, numbers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29511"))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    registered = torch.full((numbers,), rank + 1.0, device="cuda")
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    # Pools whose memory NCCL registers, where this PyTorch has them.
    pool = torch.cuda.MemPool(backend.mem_allocator) if hasattr(backend, "mem_allocator") else None
    if pool is not None:
        with torch.cuda.use_mem_pool(pool):
            registered = torch.full((numbers,), rank + 1.0, device="cuda")
        backend.register_mem_pool(pool)
    for round in range(rounds):
        fresh = torch.full((numbers,), float(round + rank), device="cuda")
        dist.all_reduce(fresh)
        kept = registered.clone()
        dist.all_reduce(kept)
        dist.all_reduce(registered, op=dist.ReduceOp.MAX)
        if not ((fresh == 2 * round + 1).all() and (registered == 2).all()):
            raise SystemExit(f"rank {rank}: round {round}")
        if round == 0 and not (kept == 3).all():
            raise SystemExit(f"rank {rank}: sum")
    torch.cuda.synchronize()
    print(f"rank {rank}: {rounds} rounds, {'registered' if pool is not None else 'not registered'}", flush=True)
    if pool is not None:
        # The registration ends before the communicator.
        backend.deregister_mem_pool(pool)
        del registered, pool
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(sums, (int(sys.argv[1]), int(sys.argv[2]) << 18), nprocs=2)
