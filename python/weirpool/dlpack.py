"""Blocks of weirpool as DLPack tensors, for every library that takes them: PyTorch, CuPy, JAX.

    from weirpool import dlpack
    library = dlpack.load()
    memory = dlpack.Memory(library, (1024, 1024), "float32")
    tensor = torch.from_dlpack(memory)                    # no copy: the same address
    del memory                                            # the tensor keeps the block
    taken = dlpack.Taken(library, tensor)                 # a tensor of another library as a block of the pool

A consumer names the stream that it uses the tensor on (`__dlpack__(stream=...)`), and that stream waits for the block's earlier
uses. Once the consumer drops the tensor, the memory is reused in the order of that stream, which must still exist: PyTorch never destroys its
streams; a `cupy.cuda.Stream` has to be kept until the arrays that were made on it are dropped.
"""

import ctypes

from . import library_path

TYPES = {
    "bool": (6, 8), "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
}
CUDA = 2
NAMES = {0: b"dltensor", 1: b"dltensor_versioned"}
USED = {0: b"used_dltensor", 1: b"used_dltensor_versioned"}

_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _python))
# A capsule that is being destroyed must not be referenced, so it is passed by its address.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _python))


def load():
    """Returns the functions in C, which the classes here call."""
    library = ctypes.CDLL(library_path())
    number, word, pointer = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
    for name, arguments, result in [
        ("stream", [word, word], pointer),
        ("allocate", [word, word, number], number),
        ("address", [number], number),
        ("free", [number], word),
        ("kernel", [number, word, word, ctypes.c_uint32, number], word),
        ("read", [number, pointer, number], word),
        ("export", [number, pointer, ctypes.c_uint8, ctypes.c_uint8, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t, word], pointer),
        ("release", [pointer, word], None),
        ("import", [word, word, pointer, word], number),
    ]:
        function = getattr(library, f"weirpool_dlpack_{name}")
        function.argtypes, function.restype = arguments, result
    # Releases the tensor of a capsule that was never consumed.
    library.destroyers = {version: _destroyer(library, version) for version in NAMES}
    return library


def _destroyer(library, version):
    def destroy(capsule):
        if _is_valid(capsule, NAMES[version]):
            library.weirpool_dlpack_release(_pointer(capsule, NAMES[version]), version)

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)


class _Block:
    def __init__(self, library, device, number):
        if number == 0:
            raise RuntimeError("no block: the reason is on stderr")
        self.library, self.device, self.number = library, device, number

    def __del__(self):
        if hasattr(self, "number"):
            self.library.weirpool_dlpack_free(self.number)

    @property
    def address(self):
        return self.library.weirpool_dlpack_address(self.number)

    def kernel(self, stream, stamp, cycles, is_sum=False):
        """Writes stamp, stamp + 1, ... as 32-bit words, or adds the stamp to each, on a stream of the pool."""
        if self.library.weirpool_dlpack_kernel(self.number, stream, is_sum, stamp, cycles) != 0:
            raise RuntimeError("no kernel: the reason is on stderr")

    def read(self, size):
        data = ctypes.create_string_buffer(size)
        if self.library.weirpool_dlpack_read(self.number, data, size) != 0:
            raise RuntimeError("not read: the reason is on stderr")
        return data.raw


class Memory(_Block):
    """A block with a shape and a type."""

    def __init__(self, library, shape, dtype, device=0, stream=0):
        self.shape, self.dtype = tuple(shape), dtype
        size = TYPES[dtype][1] // 8
        for dimension in self.shape:
            size *= dimension
        super().__init__(library, device, library.weirpool_dlpack_allocate(device, stream, size))

    def __dlpack_device__(self):
        return CUDA, self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("weirpool exports without a copy")
        if stream in (-1, 2):
            raise BufferError("weirpool needs the stream of the consumer, to know when the memory can be reused")
        if stream == 0:
            raise ValueError("stream 0 is ambiguous: 1 is the legacy default stream")
        version = int(max_version is not None and max_version[0] >= 1)
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        code, bits = TYPES[self.dtype]
        tensor = self.library.weirpool_dlpack_export(self.number, stream or 1, code, bits, shape, len(self.shape), version)
        if not tensor:
            raise BufferError("not exported: the reason is on stderr")
        return _new(tensor, NAMES[version], ctypes.cast(self.library.destroyers[version], ctypes.c_void_p))


class Taken(_Block):
    """A tensor of another library as a block of a stream of the pool. The tensor is kept until the block's work is complete."""

    def __init__(self, library, tensor, stream=0):
        device = tensor.__dlpack_device__()[1]
        handle = library.weirpool_dlpack_stream(device, stream)
        try:
            capsule = tensor.__dlpack__(stream=handle, max_version=(1, 0))
        except TypeError:
            capsule = tensor.__dlpack__(stream=handle)
        version = int(_is_valid(id(capsule), NAMES[1]))
        pointer = _pointer(id(capsule), NAMES[version])
        _rename(id(capsule), USED[version])
        super().__init__(library, device, library.weirpool_dlpack_import(device, stream, pointer, version))
