"""CuPy on memory from weirpool.

    from weirpool import cupy as on_cupy
    on_cupy.use()

Arrays are allocated in the order of CuPy's current stream, and their memory is reused in that order. An array keeps its stream.
"""

import cupy

from . import _raw

__all__ = ["allocate", "use"]


class _Memory(cupy.cuda.memory.BaseMemory):
    """Memory of a device's pool."""

    def __init__(self, size):
        self.ptr = 0
        self.size = size
        self.device_id = cupy.cuda.device.get_device_id()
        # Freed on it later, so it must live as long.
        self.stream = cupy.cuda.get_current_stream()
        if size > 0:
            self.ptr = _raw.allocate(size, self.device_id, self.stream.ptr)
            if self.ptr == 0:
                total = cupy.cuda.Device(self.device_id).mem_info[1]
                raise cupy.cuda.memory.OutOfMemoryError(size, total, total)

    def __del__(self):
        if self.ptr:
            _raw.free(self.ptr, self.size, self.device_id, self.stream.ptr)
            self.ptr = 0


def allocate(size):
    """Allocates memory, for `cupy.cuda.set_allocator`."""
    return cupy.cuda.MemoryPointer(_Memory(size), 0)


def use():
    """Makes CuPy allocate from weirpool."""
    cupy.cuda.set_allocator(allocate)
