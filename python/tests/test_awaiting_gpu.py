"""Reservations, tags and evictable tensors of PyTorch, on a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PROGRAM = """
import asyncio, gc, threading, time
import weirpool, weirpool.torch

MIB = 1 << 20
weirpool.torch.use(capacity="2GiB", timeout=2)
import torch

pool = weirpool.Pool.of_device(0)
def tensor(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
def used():
    return weirpool.stats()["pool"]["used"]["current"]
tensor(1)
"""

PROGRAMS = {
    "allocations_of_an_active_reservation_draw_from_it_and_never_wait": """
with weirpool.reserve("512MiB", tag="chat") as memory:
    rest = weirpool.reserve("1280MiB").try_now()
    with memory.active():
        held = [tensor(128)]
        with torch.cuda.stream(torch.cuda.Stream()):
            held.append(tensor(128))
        assert memory.left == 256 * MIB, memory
        begin = time.monotonic()
        try:
            tensor(300)
        except torch.OutOfMemoryError as error:
            assert "the reservation has no contiguous range" in str(error), error
        else:
            raise AssertionError("it exceeds the reservation")
        assert time.monotonic() - begin < 1
        held.clear()
        torch.cuda.synchronize()
        again = tensor(512)
        del again
    # Outside, it waits, and the error names the holders.
    plain = tensor(64)
    try:
        tensor(600)
    except torch.OutOfMemoryError as error:
        for part in ("Held by", "for tag chat", f"used by thread {threading.get_native_id()} ("):
            assert part in str(error), error
    else:
        raise AssertionError("there is too little memory")
    rest.release()
""",
    "waiting_task_leaves_the_loop_running_and_its_function_draws": """
def work(memory):
    x = torch.randn(2048, 2048, device="cuda")
    for _ in range(8):
        x = torch.tanh(x @ x)
    assert memory.left < memory.size
    return float(x.sum())

async def serve(steps):
    async with weirpool.reserve("700MiB", tag="serve", deadline=30) as memory:
        steps.append(1)
        return await memory.run(work, memory)

async def main():
    steps = []
    tasks = [asyncio.create_task(serve(steps)) for _ in range(12)]
    ticks = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.001)
        ticks += 1
    await asyncio.gather(*tasks)
    assert len(steps) == 12 and ticks > 1

asyncio.run(main())
torch.cuda.synchronize()
# Libraries keep memory that they first asked for in a reservation.
torch._C._cuda_clearCublasWorkspaces()
assert weirpool.tag("serve").stats()["used"]["current"] == 0
""",
    "backward_pass_draws_when_the_context_names_the_stream": """
stream = torch.cuda.current_stream()
weights = torch.randn(4096, 4096, device="cuda", requires_grad=True)
with weirpool.reserve("1GiB") as memory:
    x = torch.randn(4096, 4096, device="cuda")
    with memory.active(stream):
        loss = (x @ weights).relu().sum()
        loss.backward()
    # The gradient was allocated by a thread of PyTorch.
    torch.cuda.synchronize()
    left = memory.left
    weights.grad = None
    torch.cuda.synchronize()
    assert memory.left >= left + 64 * MIB, (left, memory)
    del loss
""",
    "released_reservation_leaves_its_tensors": """
with weirpool.reserve("256MiB") as memory:
    with memory.active():
        x = torch.full((64 * MIB,), 7, dtype=torch.uint8, device="cuda")
before = used()
assert int(x[::4096].sum()) == 7 * (64 * MIB // 4096)
del x
torch.cuda.synchronize()
assert used() <= before - 64 * MIB
""",
    "graph_in_an_active_reservation_keeps_its_own_memory": """
x = torch.ones(1 << 20, device="cuda")
(x * 2 + 1).sum()
torch.cuda.synchronize()
with weirpool.reserve("256MiB") as memory:
    graph = torch.cuda.CUDAGraph()
    with memory.active(), torch.cuda.graph(graph):
        y = (x * 2 + 1).sum()
    graph.replay()
    torch.cuda.synchronize()
    assert float(y) == 3 * (1 << 20), float(y)
del graph, y
""",
    "tag_is_charged_for_tensors_outside_reservations": """
tag = weirpool.tag("tensors").set_limit("256MiB")
with tag.active():
    x = tensor(200)
    assert tag.stats()["used"]["current"] == 200 * MIB
    try:
        tensor(100)
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the tag is at its limit")
del x
assert tag.stats()["used"]["current"] == 0
""",
    "evictable_tensor_is_returned_until_it_is_evicted": """
x = torch.arange(64 * MIB, dtype=torch.int32, device="cuda").view(1024, -1).t()
entry = weirpool.evictable(x)
assert x.numel() == 0 and entry.is_present
assert weirpool.stats()["pool"]["evictable"] == 256 * MIB
with torch.cuda.stream(torch.cuda.Stream()):
    y = entry.get()
    assert y.shape == (65536, 1024) and y.t().is_contiguous()
    assert bool((y.t().flatten() == torch.arange(64 * MIB, dtype=torch.int32, device="cuda")).all())
    assert entry.get().data_ptr() == y.data_ptr()
    assert weirpool.stats()["pool"]["evictable"] == 0
    y += 1
    del y
torch.cuda.synchronize()
z = entry.get()
assert int(z[0, 0]) == 1
del z
big = tensor(1900)
assert not entry.is_present and entry.get() is None
del big, entry
half = tensor(100)
entry = weirpool.evictable(half)
before = used()
del entry
torch.cuda.synchronize()
assert used() <= before - 100 * MIB
""",
    "evictable_refuses_memory_of_others_and_shared_tensors": """
for foreign in (torch.empty(8), torch.empty(8).pin_memory(), bytearray(8)):
    try:
        weirpool.evictable(foreign)
    except (weirpool.ForeignMemory, TypeError):
        pass
    else:
        raise AssertionError(foreign)
x = tensor(4)
view = x[1:]
try:
    weirpool.evictable(x)
except ValueError as error:
    assert "other tensors" in str(error), error
else:
    raise AssertionError("a view shares the memory")
assert view.numel() == 4 * MIB - 1
del view
assert weirpool.evictable(x).is_present
""",
    "cached_allocator_figures_stay_right_around_evictable_memory": """
before = torch.cuda.memory_allocated()
x = tensor(64)
entry = weirpool.evictable(x)
assert torch.cuda.memory_allocated() == before
y = entry.get()
assert torch.cuda.memory_allocated() == before + 64 * MIB
del y, entry, x
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == before
""",
    "page_shows_the_pool": """
import urllib.request
with weirpool.serve_page() as page:
    assert urllib.request.urlopen(page.url, timeout=10).status == 200
""",
    "thread_with_an_active_reservation_may_die": """
memory = weirpool.reserve("256MiB").try_now()
kept = []
def die():
    context = memory.active()
    context.__enter__()
    kept.append((context, tensor(16)))
thread = threading.Thread(target=die)
thread.start(); thread.join()
memory.release()
x = tensor(1700)
""",
}


@pytest.fixture(scope="module")
def started():
    """Starts all programs at once: most of their time is the import of PyTorch."""
    # The class for PyTorch is compiled once, before.
    first = [sys.executable, "-c", PROGRAM]
    subprocess.run(first, cwd=HERE, timeout=300, check=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = {name: subprocess.Popen([sys.executable, "-c", PROGRAM + text], cwd=HERE, **pipes) for name, text in PROGRAMS.items()}
    yield processes
    for process in processes.values():
        process.kill()


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(started, name):
    output, _ = started[name].communicate(timeout=300)
    assert started[name].returncode == 0, output[-5000:]
