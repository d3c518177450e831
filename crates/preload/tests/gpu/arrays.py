"""Programs of frameworks: the same arithmetic in rounds, with arrays of each round's own. Prints a sum, the time and, where the
framework tells it, the most memory. Arguments: the framework, rounds, and MiB of an array."""
import sys
import time

framework, rounds, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
n = mib << 18  # elements of 4 bytes


def torch_rounds():
    import torch
    total = 0.0
    for i in range(rounds):
        x = torch.arange(n, device="cuda", dtype=torch.float32) % 1000 + i
        y = x * 2 + 1
        z = torch.sqrt(y)
        total += (z.sum() / n).item()
        del x, y, z
    a = torch.randn(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    total += (a @ a).abs().sum().item()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        total += (a @ a.T).abs().sum().item()
    return total


def cupy_rounds(pool=None):
    import cupy
    if pool == "none":
        cupy.cuda.set_allocator(None)
    if pool == "async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    total = 0.0
    for i in range(rounds):
        x = cupy.arange(n, dtype=cupy.float32) % 1000 + i
        y = x * 2 + 1
        z = cupy.sqrt(y)
        total += float(z.sum() / n)
        del x, y, z
    return total


def jax_rounds():
    import jax
    import jax.numpy as jnp
    step = jax.jit(lambda x: jnp.sqrt(x * 2 + 1))
    total = 0.0
    for i in range(rounds):
        x = jnp.arange(n, dtype=jnp.float32) % 1000 + i
        z = step(x)
        total += float(z.sum() / n)
        del x, z
    return total


def numba_rounds():
    import numpy
    from numba import cuda
    total = 0.0
    host = (numpy.arange(n) % 1000).astype(numpy.float32)
    for i in range(rounds):
        x = cuda.to_device(host + i)
        y = cuda.device_array_like(x)
        y.copy_to_device(x)
        total += float(y.copy_to_host()[i])
        del x, y
    return total


def rmm_rounds():
    import rmm
    from rmm.pylibrmm.stream import Stream
    rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    stream = Stream()
    total = 0.0
    for i in range(rounds):
        data = bytes([i % 251]) * (n // 16)
        buffer = rmm.DeviceBuffer.to_device(data, stream)
        other = rmm.DeviceBuffer(size=n, stream=stream)
        other.copy_from_device(buffer, stream) if hasattr(other, "copy_from_device") else None
        total += sum(buffer.copy_to_host(stream=stream)[:100].tolist())
        del buffer, other
    return total


programs = {
    "torch": torch_rounds,
    "cupy": cupy_rounds,
    "cupy-none": lambda: cupy_rounds("none"),
    "cupy-async": lambda: cupy_rounds("async"),
    "jax": jax_rounds,
    "numba": numba_rounds,
    "rmm": rmm_rounds,
}
begin = time.perf_counter()
result = programs[framework]()
print(f"sum {result:.6f}")
print(f"time {time.perf_counter() - begin:.3f} s")
