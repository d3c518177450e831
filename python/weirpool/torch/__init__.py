"""PyTorch on memory from weirpool.

    import weirpool.torch
    weirpool.torch.use()                  # before CUDA is used

From then until the process ends, PyTorch allocates from weirpool. Its own figures, snapshots, graphs and errors work as with its own allocator:
`python -m weirpool.torch --selftest` runs the table.

PyTorch's class of allocators has functions that differ between its versions, so `allocator.cpp` is compiled for the installed one at first use,
which takes some seconds and a C++ compiler. The result is kept in a private folder of the user ([`cache_folder`]). Without a compiler, a plain
allocator is installed, and one line on stderr says what does not work.
"""

import atexit
import ctypes
import os
import sys
from typing import Optional, Union

from .. import _native, configure, library_path
from . import _build
from ._build import BuildError, cache_folder

__all__ = ["BuildError", "CudaInUseError", "cache_folder", "is_used", "use"]


class CudaInUseError(RuntimeError):
    """CUDA is in use already, so PyTorch's allocator cannot be replaced."""


class _Installed:
    """What `use` has installed."""

    def __init__(self):
        self.kind = None
        self.extension = None


_installed = _Installed()


def is_used() -> Optional[str]:
    """Returns `"full"` if PyTorch allocates from weirpool, `"plain"` if it does so without the compiled class, or `None`."""
    return _installed.kind


def use(
    *,
    capacity: Union[int, str, None] = None,
    remapping: Union[float, str, None] = None,
    sealing: Union[int, str, None] = None,
    timeout: Optional[float] = None,
    broker: Optional[str] = None,
    keep_streams: bool = True,
    compiled: bool = True,
) -> None:
    """Makes PyTorch allocate from weirpool, from now until the process ends. Further calls have no effect.

    Call it before or after `import torch`, and before CUDA is used. The first five settings are those of [`weirpool.configure`]. PyTorch never
    destroys the streams of its own pool, so a free on one of them needs no event of its own; with `keep_streams=False` they are treated
    as streams that may be destroyed. With `compiled=False` the plain allocator is installed even if there is a compiler.

    Raises [`CudaInUseError`] if PyTorch has used CUDA already.
    """
    if _installed.kind is not None:
        return
    import torch

    if torch.version.cuda is None:
        raise RuntimeError(f"PyTorch {torch.__version__} is built without CUDA; install a build with CUDA")
    configure(capacity=capacity, remapping=remapping, sealing=sealing, timeout=timeout, broker=broker)
    if torch.cuda.is_initialized():
        raise CudaInUseError(
            "PyTorch has used CUDA already, so its allocator cannot be replaced; call weirpool.torch.use() before the first tensor on a GPU "
            "and before torch.cuda.init(), for example at the top of the program"
        )
    reason = "it was not requested"
    if compiled:
        reason = _install_class()
    if reason is None:
        _installed.kind = "full"
    else:
        _install_plain()
        _installed.kind = "plain"
        if compiled:
            print(
                f"weirpool: {reason}. PyTorch's figures, snapshots, graph trees, peer access, sharing between processes and torch.OutOfMemoryError "
                "do not work without it",
                file=sys.stderr,
            )
    if keep_streams:
        _keep_streams()


def _library():
    """Returns the functions in C."""
    return ctypes.CDLL(library_path())


def _keep_streams():
    """Registers streams that PyTorch takes from its own pool as never destroyed."""
    import torch

    keep, create = _library().weirpool_keep_stream, torch.cuda.Stream.__new__
    keep.argtypes, keep.restype = [ctypes.c_int, ctypes.c_void_p], None

    def create_and_keep(cls, device=None, priority=0, **names):
        stream = create(cls, device, priority, **names)
        if cls is torch.cuda.Stream and not names:
            keep(stream.device_index, stream.cuda_stream)
        return stream

    torch.cuda.Stream.__new__ = create_and_keep


def _install_class():
    """Installs the class that has all functions of PyTorch's allocator. Returns None, or the reason on failure."""
    try:
        extension = ctypes.CDLL(_build.build("allocator"))
    except (OSError, BuildError) as error:
        return str(error)
    extension.weirpool_install.argtypes, extension.weirpool_install.restype = [ctypes.c_char_p], ctypes.c_char_p
    reason = extension.weirpool_install(os.fsencode(library_path()))
    if reason is not None and b"already initialized" in reason:
        raise CudaInUseError("PyTorch has used CUDA already, or another allocator is installed; call weirpool.torch.use() before both")
    if reason is None:
        _installed.extension = extension
        atexit.register(_native.stop_sharing)
        return None
    return reason.decode()


def _install_plain():
    """Installs the allocator that needs no compiler."""
    import torch
    import torch._inductor.config as inductor

    path = library_path()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "weirpool_alloc_or_throw", "weirpool_free")
    library = _library()
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
    # Trees of graphs need checkpoints. Without them, `torch.compile(mode="reduce-overhead")` records single graphs.
    inductor.triton.cudagraph_trees = False
