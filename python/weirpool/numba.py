"""Numba on memory from weirpool: an external memory manager.

    from weirpool import numba as on_numba
    on_numba.use()                        # before Numba uses CUDA

Numba names no stream when it allocates and frees, so both are in the order of the legacy default stream, as its own streams are. Memory that a stream
of another library uses must be kept until that work is complete.
"""

import ctypes

from numba import cuda

from . import _raw

__all__ = ["Manager", "use"]

class Manager(cuda.HostOnlyCUDAMemoryManager):
    """Allocates device memory from weirpool, and host memory as Numba does."""

    @property
    def interface_version(self):
        return 1

    def initialize(self):
        """The pool of a device is created by its first allocation."""

    def memalloc(self, size):
        device = self.context.device.id
        address = _raw.allocate(size, device, 0)
        if address == 0 and size > 0:
            raise MemoryError(f"weirpool has no {size} bytes on device {device}; the reason is on stderr")
        pointer = ctypes.c_void_p(address)
        return cuda.MemoryPointer(self.context, pointer, size, finalizer=lambda: _raw.free(address, size, device, 0))

    def get_memory_info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
            raise RuntimeError("the driver does not report its memory")
        return cuda.MemoryInfo(free.value, total.value)

    def get_ipc_handle(self, memory):
        raise NotImplementedError("memory of weirpool is virtual, so it has no such handle; use weirpool.torch.sharing")


def use():
    """Makes Numba allocate from weirpool. Call it before Numba uses CUDA."""
    cuda.set_memory_manager(Manager)
