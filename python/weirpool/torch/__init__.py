"""Makes PyTorch allocate from weirpool.

    import weirpool_torch
    library = weirpool_torch.use_weirpool("target/release/examples/libpytorch.so")  # before CUDA is used

With `trees=True`, the default, `torch.compile(mode="reduce-overhead")` works as with PyTorch's own allocator. Its trees of graphs
need functions that PyTorch's pluggable allocators do not have, so the first use compiles `graph_trees.cpp` for the installed
PyTorch, which takes some seconds and a C++ compiler. If that fails, the reason is printed, the trees are turned
off (`torch._inductor.config.triton.cudagraph_trees = False`), and everything else works as before.

A free on a stream that may be destroyed records an event at once. With `keep_streams=True` the streams that PyTorch takes from
its own pool, which are never destroyed, need none, and the driver is not asked which stream a handle stands for. Other streams
(`ExternalStream`, or one given by its handle or id) are treated as before.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The figures of a device's pool that weirpool reports, each by a function of the library.
FIGURES = ["reserved", "pending", "in_graphs", "peak_reserved", "peak_used", "waits", "waited_us", "device_waits", "remaps", "failures"]


def default_library():
    """Returns where Cargo puts the library, built or not."""
    built = os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[2] / "target")
    return str(Path(built) / "release/examples/libpytorch.so")


def use_weirpool(path, trees=True, keep_streams=False):
    """Makes PyTorch allocate from weirpool, from now until the process ends. Returns the library."""
    path = str(Path(path).resolve())
    reason = "they were not requested"
    if trees:
        reason = _install_with_trees(path)
    if reason is not None:
        if trees:
            print(f"weirpool: no trees of graphs: {reason}", file=sys.stderr)
        _install_plain(path)
        turn_trees_off()
    library = ctypes.CDLL(path)
    for name in FIGURES:
        function = getattr(library, f"weirpool_{name}")
        function.argtypes, function.restype = [ctypes.c_int], ctypes.c_uint64
    if keep_streams:
        _keep_streams(library)
    return library


def _keep_streams(library):
    """Registers streams that PyTorch takes from its own pool as never destroyed."""
    import torch

    keep, create = library.weirpool_keep_stream, torch.cuda.Stream.__new__
    keep.argtypes, keep.restype = [ctypes.c_int, ctypes.c_void_p], None

    def create_and_keep(cls, device=None, priority=0, **names):
        stream = create(cls, device, priority, **names)
        if cls is torch.cuda.Stream and not names:
            keep(stream.device_index, stream.cuda_stream)
        return stream

    torch.cuda.Stream.__new__ = create_and_keep


def turn_trees_off():
    """Makes `torch.compile(mode="reduce-overhead")` record single graphs: PyTorch's own pluggable allocator refuses trees."""
    import torch._inductor.config as inductor

    inductor.triton.cudagraph_trees = False


def _install_plain(path):
    import torch

    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "weirpool_alloc_or_throw", "weirpool_free")
    library = ctypes.CDLL(path)
    hooks = {
        # Without it `Tensor.record_stream` does nothing, and memory is reused while another stream reads it.
        "set_record_stream_fn": "weirpool_record_stream",
        # Without these, a graph's memory is reused between two replays.
        "set_begin_allocate_to_pool": "weirpool_begin_allocate_to_pool",
        "set_end_allocate_to_pool_fn": "weirpool_end_allocate_to_pool",
        "set_release_pool": "weirpool_release_pool",
    }
    for setter, name in hooks.items():
        function = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        getattr(allocator.allocator(), setter)(function)
    torch.cuda.memory.change_current_allocator(allocator)


def _install_with_trees(path):
    """Installs the allocator with trees. Returns None, or the reason on failure."""
    try:
        extension = ctypes.CDLL(build(Path(path).parent))
    except (OSError, RuntimeError) as error:
        return str(error)
    extension.weirpool_install.argtypes, extension.weirpool_install.restype = [ctypes.c_char_p], ctypes.c_char_p
    reason = extension.weirpool_install(path.encode())
    return None if reason is None else reason.decode()


def build(folder, name="graph_trees"):
    """Compiles an extension, unless there is a build for this version of PyTorch. Returns its path."""
    import torch

    source = Path(__file__).with_name(f"{name}.cpp")
    if not os.access(folder, os.W_OK):
        folder = tempfile.gettempdir()
    built = Path(folder) / f"{name}-{torch.__version__}.so"
    if built.exists() and built.stat().st_mtime >= source.stat().st_mtime:
        return str(built)
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError("there is no C++ compiler; install one, or name it in CXX")
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include/torch/csrc/api/include", *_cuda_includes(root)]
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / f"{name}.so"
        command = [compiler, "-O2", "-std=c++17", "-fPIC", "-shared", str(source), "-o", str(made)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
        command += [f"-I{folder}" for folder in includes]
        command += [f"-L{root / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda", "-ldl", "-Wl,--allow-shlib-undefined"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        # Replaced atomically, because another process may build it too.
        fresh = built.with_suffix(f".{os.getpid()}")
        shutil.copy(made, fresh)
        os.replace(fresh, built)
    return str(built)


def _cuda_includes(torch_root):
    """Returns the folders of CUDA's headers: of a toolkit, or of the packages that PyTorch installs."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    toolkits += [str(Path(nvcc).parent.parent)] if (nvcc := shutil.which("nvcc")) else []
    folders = [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    folders += sorted(torch_root.parent.glob("nvidia/*/include"))
    return [folder for folder in folders if (folder / "cuda_runtime_api.h").exists()] or folders
