"""Allocation by size and stream handle, for libraries that have no class of their own."""

import ctypes

from . import library_path

_library = ctypes.CDLL(library_path())
_library.weirpool_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_library.weirpool_alloc.restype = ctypes.c_void_p
_library.weirpool_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_library.weirpool_free.restype = None


def allocate(size, device, stream):
    """Allocates memory in the order of a stream, and waits until there is some. Returns its address, or 0 with the reason on stderr."""
    return _library.weirpool_alloc(size, device, stream) or 0


def free(address, size, device, stream):
    """Frees memory in the order of a stream, which must still exist."""
    _library.weirpool_free(address, size, device, stream)
