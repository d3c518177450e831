"""The checks of `python -m weirpool.torch --selftest`. Each is a function whose docstring is its name. It returns a detail to print."""

import gc
import os
import pickle
import subprocess
import sys
import tempfile

import torch
import torch.multiprocessing as processes

import weirpool
import weirpool.torch

MIB = 1 << 20
CHECKS: list = []


class NotRun(Exception):
    """The check cannot run on this machine."""


def check(function):
    CHECKS.append(function)
    return function


def expect(is_true, *words):
    if not is_true:
        raise AssertionError(" ".join(map(str, words)))


def fresh():
    """Frees what earlier checks left behind."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def in_a_process(code, *arguments):
    """Runs a program on weirpool in a process of its own. Returns its output."""
    code = "import weirpool.torch; weirpool.torch.use()\n" + code
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-300:]}")
    expect(not done.stderr.strip(), f"on stderr: {done.stderr[-300:]}")
    return done.stdout.strip()


@check
def tensors():
    """tensors are computed on the GPU"""
    expect(torch.ones(MIB, device="cuda").sum().item() == MIB)
    expect(weirpool.statistics()["reserved"] > 0, "the memory did not come from weirpool")
    expect(torch.empty(0, device="cuda").data_ptr() == 0)


@check
def class_is_compiled():
    """the class for this version of PyTorch is compiled"""
    expect(weirpool.torch.is_used() == "full", "there is no compiler, so the plain allocator is used")
    expect(torch.cuda.get_allocator_backend() == "weirpool")


@check
def cudnn_benchmark():
    """torch.backends.cudnn.benchmark and a convolution"""
    torch.backends.cudnn.benchmark = True
    try:
        return torch.nn.Conv2d(8, 16, 3).cuda()(torch.randn(4, 8, 64, 64, device="cuda")).shape
    finally:
        torch.backends.cudnn.benchmark = False


@check
def figures():
    """memory_allocated, memory_reserved and their peaks"""
    fresh()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.empty(100, dtype=torch.uint8, device="cuda")
    large = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    expect(torch.cuda.memory_allocated() - before == 512 + 64 * MIB, torch.cuda.memory_allocated() - before)
    expect(torch.cuda.memory_reserved() >= torch.cuda.memory_allocated())
    del large
    expect(torch.cuda.memory_allocated() - before == 512)
    expect(torch.cuda.max_memory_allocated() - before == 512 + 64 * MIB)
    expect(torch.cuda.max_memory_reserved() >= reserved and torch.cuda.max_memory_reserved() >= 64 * MIB)
    torch.cuda.reset_peak_memory_stats()
    expect(torch.cuda.max_memory_allocated() - before == 512)
    del kept
    expect(torch.cuda.memory_allocated() == before)


@check
def stats():
    """memory_stats and memory_summary have PyTorch's keys"""
    fresh()
    torch.cuda.reset_accumulated_memory_stats()
    requested = torch.empty(1000, dtype=torch.uint8, device="cuda")
    found = torch.cuda.memory_stats()
    kinds = ["allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"]
    for kind in kinds:
        for pool in ["all", "small_pool", "large_pool"]:
            for metric in ["current", "peak", "allocated", "freed"]:
                expect(f"{kind}.{pool}.{metric}" in found, f"no {kind}.{pool}.{metric}")
    for name in ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size"]:
        expect(name in found, f"no {name}")
    expect(found["allocation.all.allocated"] == found["allocation.small_pool.allocated"] == 1, found["allocation.all.allocated"])
    expect(found["allocated_bytes.all.allocated"] == 1024 and found["requested_bytes.all.allocated"] == 1000)
    expect(found["active_bytes.all.current"] == found["allocated_bytes.all.current"] > 0)
    split = found["inactive_split_bytes.all.current"]
    expect(0 <= split <= found["reserved_bytes.all.current"] - found["allocated_bytes.all.current"])
    del requested
    expect(torch.cuda.memory_stats()["allocation.all.freed"] == 1)
    expect("Allocated memory" in torch.cuda.memory_summary())
    expect(all(figure >= 0 for name, figure in found.items() if name != "max_split_size"), "a figure is below 0")
    return f"{len(found)} figures"


@check
def accelerator():
    """torch.accelerator has the same figures"""
    if not hasattr(torch, "accelerator") or not hasattr(torch.accelerator, "memory_allocated"):
        raise NotRun("this version of PyTorch has no torch.accelerator.memory_allocated")
    expect(torch.accelerator.memory_allocated() == torch.cuda.memory_allocated())
    torch.accelerator.empty_cache()


@check
def history():
    """_record_memory_history and _dump_snapshot, read by memory_viz"""
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        mapped = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        del mapped
        torch.cuda.empty_cache()
        kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        dropped = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        del dropped
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            torch.cuda.memory._dump_snapshot(path)
            with open(path, "rb") as file:
                snapshot = pickle.load(file)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    entries = snapshot["device_traces"][0]
    actions = [(entry["action"], entry["size"]) for entry in entries]
    for wanted in [("alloc", 3 * MIB), ("alloc", 5 * MIB), ("free_requested", 5 * MIB), ("free_completed", 5 * MIB)]:
        expect(wanted in actions, f"no {wanted} in {actions}")
    for wanted in ("segment_map", "segment_unmap"):
        size = sum(size for action, size in actions if action == wanted)
        expect(size >= 256 * MIB, f"{size} bytes of {wanted}")
    frames = next(entry["frames"] for entry in entries if entry["size"] == 3 * MIB)
    expect(any(frame["name"] == "history" for frame in frames), "the stack of the allocation is missing")
    times = [entry["time_us"] for entry in entries]
    expect(times == sorted(times) and times[0] > 1.6e15, "times are not in order, or not of this clock")
    blocks = {block["address"]: block for segment in snapshot["segments"] for block in segment["blocks"]}
    block = blocks[kept.data_ptr()]
    expect(block["state"] == "active_allocated" and block["requested_size"] == 3 * MIB, block)
    expect(any(frame["name"] == "history" for frame in block["frames"]), "the stack of the block is missing")
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            expect(block["address"] == address, "blocks of a segment do not adjoin")
            address += block["size"]
        expect(address == segment["address"] + segment["total_size"], "blocks do not fill their segment")
    expect(len(_memory_viz.segsum(snapshot)) > 0 and "html" in _memory_viz.trace_plot(snapshot))
    expect("html" in _memory_viz.segment_plot(snapshot))
    reserved = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot() if segment["device"] == 0)
    expect(reserved == torch.cuda.memory_reserved(0), f"segments of {reserved} bytes, and {torch.cuda.memory_reserved(0)} reserved")
    return f"{len(entries)} entries, {len(blocks)} blocks"


@check
def profiler():
    """torch.profiler sees allocations"""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    total = sum(max(event.self_device_memory_usage, 0) for event in profiled.key_averages())
    expect(total >= 2 * MIB, f"{total} bytes")


@check
def empty_cache():
    """empty_cache returns 1 GiB to the device"""
    fresh()
    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    large.fill_(1)
    del large
    before = torch.cuda.mem_get_info()[0]
    torch.cuda.empty_cache()
    back = torch.cuda.mem_get_info()[0] - before
    expect(back >= 1 << 30, f"{back >> 20} MiB given back")
    return f"{back >> 20} MiB given back"


@check
def mem_get_info():
    """mem_get_info and the pool agree"""
    fresh()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    kept = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    taken, grown = free - torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved() - reserved
    expect(taken == grown and kept.numel() <= grown + reserved, f"the device gave {taken} bytes, and the pool grew by {grown}")


@check
def out_of_memory():
    """a request that cannot fit raises torch.OutOfMemoryError"""
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: seen.append((device, size, total, free)))
    ooms = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        words = str(error)
    else:
        raise AssertionError("4 TiB were allocated")
    expect("Tried to allocate 4096.00 GiB" in words and "total capacity of" in words and "is free" in words, words)
    expect(torch.cuda.memory_stats()["num_ooms"] == ooms + 1)
    expect(len(seen) == 1 and seen[0][:2] == (0, 1 << 42) and seen[0][2] > seen[0][3] > 0, seen)
    try:
        torch.empty(1 << 61, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    expect(torch.ones(4, device="cuda").sum().item() == 4, "no memory after the error")
    return words[:90]


@check
def fraction():
    """set_per_process_memory_fraction limits"""
    fresh()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            expect(torch.cuda.get_per_process_memory_fraction() == 0.1)
        torch.empty(int(total * 0.05), dtype=torch.uint8, device="cuda")
        try:
            torch.empty(int(total * 0.15), dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("more than the fraction was allocated")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(int(total * 0.15), dtype=torch.uint8, device="cuda")
    fresh()


@check
def record_stream():
    """record_stream keeps memory from another stream's work"""
    side = torch.cuda.Stream()
    for round_ in range(20):
        source = torch.full((4 * MIB,), float(round_), device="cuda")
        target = torch.empty_like(source)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            target.copy_(source)
        source.record_stream(side)
        del source
        torch.full((4 * MIB,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        expect((target == round_).all().item(), f"round {round_}: the memory was overwritten")


@check
def mem_pool():
    """MemPool, and a MemPool with an allocator of its own"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(MIB, device="cuda")
    expect(kept.sum().item() == MIB)
    segments = torch.cuda.memory_snapshot(pool.id) if hasattr(pool, "snapshot") else []
    expect(any(block["address"] == kept.data_ptr() for segment in segments for block in segment["blocks"]), "not in its segments")
    del kept
    del pool
    gc.collect()


@check
def graph():
    """a graph is captured and replayed"""
    source = torch.ones(MIB, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (source * 2).sum()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = (source * 2).sum()
    for factor in range(1, 4):
        source.fill_(factor)
        torch.full((8 * MIB,), -1.0, device="cuda")
        captured.replay()
        expect(result.item() == 2 * factor * MIB)


@check
def graph_sizes():
    """graphs of ascending sizes share one pool"""
    fresh()
    before, pool, graphs = weirpool.statistics()["in_graphs"], torch.cuda.graph_pool_handle(), []
    for size in range(1, 17):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, pool=pool):
            torch.zeros(size << 21, device="cuda")
        graphs.append(captured)
    used = (weirpool.statistics()["in_graphs"] - before) >> 20
    return f"{used} MiB for a need of 128"


@check
def graph_side_stream():
    """temporaries of side streams in a graph use their memory again"""
    fresh()
    side, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    total = torch.empty(16 * MIB, device="cuda")
    before = weirpool.statistics()["in_graphs"]
    with torch.cuda.graph(captured):
        main = torch.cuda.current_stream()
        for _ in range(20):
            temporary = torch.empty(16 * MIB, device="cuda")
            side.wait_stream(main)
            with torch.cuda.stream(side):
                total.add_(temporary)
            temporary.record_stream(side)
            main.wait_stream(side)
            del temporary
    captured.replay()
    torch.cuda.synchronize()
    used = (weirpool.statistics()["in_graphs"] - before) >> 20
    expect(used <= 128, f"{used} MiB for a need of 64")
    return f"{used} MiB for a need of 64"


@check
def reduce_overhead():
    """torch.compile(mode="reduce-overhead")"""
    if importlib_missing("triton"):
        raise NotRun("triton is not installed")
    compiled = torch.compile(lambda a: (a @ a).relu().sum(), mode="reduce-overhead")
    source = torch.randn(256, 256, device="cuda")
    wanted = (source @ source).relu().sum().item()
    for _ in range(4):
        found = compiled(source).item()
    expect(abs(found - wanted) <= 1e-3 * abs(wanted), found, wanted)
    torch._dynamo.reset()


def importlib_missing(name):
    import importlib.util

    return importlib.util.find_spec(name) is None


@check
def pinned():
    """pinned memory and copies that do not block"""
    source = torch.ones(MIB).pin_memory()
    expect(source.to("cuda", non_blocking=True).sum().item() == MIB)


@check
def raw():
    """caching_allocator_alloc and caching_allocator_delete"""
    address = torch.cuda.caching_allocator_alloc(MIB)
    torch.cuda.caching_allocator_delete(address)
    expect(address != 0)


def _receive(queue, answers):
    import weirpool.torch

    weirpool.torch.use()
    for tensor in iter(queue.get, None):
        tensor.mul_(2)
        torch.cuda.synchronize()
        total = tensor.double().sum().item()
        del tensor
        gc.collect()
        answers.put(total)


@check
def between_processes():
    """tensors are shared through torch.multiprocessing"""
    context = processes.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, answers))
    child.start()
    try:
        offset = torch.arange(1000, device="cuda", dtype=torch.float32)
        large = torch.ones(40 * MIB, device="cuda")
        view = large[MIB:3 * MIB]
        for tensor in [offset, large, view]:
            wanted = 2 * tensor.double().sum().item()
            queue.put(tensor)
            expect(answers.get(timeout=120) == wanted, "the other process read other values")
            expect(tensor.double().sum().item() == wanted, "the other process wrote elsewhere")
        queue.put(None)
    finally:
        child.join(30)
        is_alive = child.is_alive()
        if is_alive:
            child.kill()
    expect(not is_alive and child.exitcode == 0, f"the other process ended with {child.exitcode}")
    expect(len(os.listdir("/proc/self/fd")) < 200, "descriptors are left open")


@check
def foreign_handle():
    """a handle of another allocator is a typed error"""
    # Device, handle, size, offset, counter, its offset, event, and that there is none.
    foreign = (0, b"\x07" * 64, 16, 0, b"none", 0, b"\0" * 64, False)
    try:
        torch.UntypedStorage._new_shared_cuda(*foreign)
    except RuntimeError as error:
        expect("weirpool.torch.use() in both" in str(error), error)
    else:
        raise AssertionError("the handle was opened")


@check
def peers():
    """copies to another GPU, contiguous or not"""
    if torch.cuda.device_count() < 2:
        raise NotRun("there is one GPU")
    source = torch.randn(4096, 4096, device="cuda:0")
    for copy, wanted in [(source.to("cuda:1"), source), (source.t().to("cuda:1"), source.t())]:
        torch.cuda.synchronize(1)
        expect((copy.cpu() == wanted.cpu()).all().item(), "the copy differs")
        back = copy.to("cuda:0")
        expect((back == wanted).all().item(), "the copy back differs")
    later = torch.randn(64 * MIB, device="cuda:0")
    expect((later.to("cuda:1").cpu() == later.cpu()).all().item(), "memory that was mapped later is not accessible")
    expect(torch.cuda.memory_allocated(1) > 0)


@check
def fork():
    """a forked process ends cleanly, and gets an error instead of memory"""
    code = """
import os, torch
kept = torch.ones(1 << 20, device="cuda")
child = os.fork()
if child == 0:
    try:
        torch.ones(4, device="cuda")
        os._exit(2)
    except RuntimeError:
        pass
    del kept
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), kept.sum().item())
"""
    expect(in_a_process(code) == "0 1048576.0")


@check
def process_end():
    """a process ends cleanly with live tensors, streams and graphs"""
    code = """
import torch
kept = torch.ones(1 << 20, device="cuda")
side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = kept * 2
with torch.cuda.stream(side):
    other = torch.ones(1 << 20, device="cuda")
module = torch.nn.Linear(64, 64).cuda()
torch.late = [kept, other, result, module, side, graph]
print("done")
"""
    expect(in_a_process(code) == "done")


@check
def use_is_too_late():
    """use() after CUDA was used is a clear error"""
    code = """
import torch
torch.ones(4, device="cuda")
import weirpool.torch
try:
    weirpool.torch.use()
except weirpool.torch.CudaInUseError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    expect("before the first tensor" in done.stdout, done.stdout + done.stderr[-300:])


@check
def unchanged_program():
    """python -m weirpool runs an unchanged program"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as file:
            file.write("import torch\ntorch.ones(4, device='cuda')\nprint(torch.cuda.get_allocator_backend())\n")
        done = subprocess.run([sys.executable, "-m", "weirpool", path], capture_output=True, text=True, timeout=120)
    expect(done.stdout.strip() == "weirpool", done.stdout + done.stderr[-300:])


@check
def cupy():
    """CuPy takes its memory from the same pool"""
    if importlib_missing("cupy"):
        raise NotRun("CuPy is not installed")
    import cupy as library

    from weirpool import cupy as on_cupy

    on_cupy.use()
    before = weirpool.statistics()["live_blocks"]
    ours = library.arange(1 << 20, dtype=library.float32)
    expect(weirpool.statistics()["live_blocks"] > before)
    stream = library.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(10):
            temporary = ours * 2
            del temporary
    stream.synchronize()
    expect(float(ours.sum()) == float(torch.from_dlpack(ours).sum().item()))
    try:
        library.empty(1 << 42, dtype=library.uint8)
    except library.cuda.memory.OutOfMemoryError:
        pass
    else:
        raise AssertionError("4 TiB were allocated")
    del ours, stream
    gc.collect()
    torch.cuda.synchronize()
    library.cuda.set_allocator(None)


@check
def numba():
    """Numba takes its memory from the same pool"""
    if importlib_missing("numba") or importlib_missing("numba_cuda"):
        raise NotRun("Numba for CUDA is not installed")
    code = """
import numpy
from weirpool import numba as on_numba
on_numba.use()
from numba import cuda
import weirpool
array = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
assert weirpool.statistics()["live_blocks"] > 0
assert array.copy_to_host().sum() == numpy.arange(1 << 20, dtype=numpy.float32).sum()
del array
print("done")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    expect(done.stdout.strip() == "done", done.stdout + done.stderr[-400:])
