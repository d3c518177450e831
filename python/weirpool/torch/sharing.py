"""Tensors that processes share, on memory from weirpool.

    shared = weirpool_sharing.share(library, tensor)     # a copy in memory of its own, which other processes can open
    peer = weirpool_sharing.Connection(library, socket)  # a connected socket of type SOCK_SEQPACKET
    peer.send(shared)                                    # sent once this stream's work on it is complete
    tensor = peer.receive()                              # in the other process: the same bytes, no copy
    shared.wait()                                        # waits until the other processes have released it

`library` is the one that `weirpool_torch.use_weirpool` returns, built with the features `cuda` and `ipc`. PyTorch's own way does not work
with a pluggable allocator: `Tensor.share_memory_` and queues of `torch.multiprocessing` end with "CUDAPluggableAllocator does not yet support
shareIpcHandle" (PyTorch 2.11).
"""

import ctypes
import json
import math

import torch

LABEL = 1024


def _declare(library):
    number, text = ctypes.c_uint64, ctypes.c_char_p
    for name, arguments, result in [
        ("allocate", [ctypes.c_int, number], number),
        ("free", [number, ctypes.c_void_p], ctypes.c_int),
        ("open", [ctypes.c_int, ctypes.c_int], number),
        ("close", [number], None),
        ("send", [number, number, text, ctypes.c_void_p], ctypes.c_int),
        ("wait", [number], ctypes.c_int),
        ("receive", [number, ctypes.POINTER(number), text, ctypes.c_size_t], number),
    ]:
        function = getattr(library, f"weirpool_ipc_{name}")
        function.argtypes, function.restype = arguments, result


def _stream():
    return torch.cuda.current_stream().cuda_stream


class _Memory:
    """Owns shared memory. A tensor over it keeps it."""

    def __init__(self, library, address, size):
        self.library, self.address = library, address
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }

    def __del__(self):
        self.library.weirpool_ipc_free(self.address, _stream())


def _tensor(memory, dtype, shape):
    return torch.as_tensor(memory, device="cuda").view(dtype).view(shape)


class Shared:
    """A tensor that can be sent to other processes: `tensor`."""

    def __init__(self, library, like):
        _declare(library)
        size = max(1, like.numel() * like.element_size())
        address = library.weirpool_ipc_allocate(like.device.index or 0, size)
        if address == 0:
            raise RuntimeError("no memory to share: the reason is on stderr")
        self.library, self.address = library, address
        size -= size % like.element_size()
        self.tensor = _tensor(_Memory(library, address, size), like.dtype, like.shape)

    def wait(self):
        """Waits until every process has released the tensor."""
        if self.library.weirpool_ipc_wait(self.address) != 0:
            raise RuntimeError("a process did not release the tensor: the reason is on stderr")


def share(library, tensor):
    """Copies a tensor into memory that other processes can open."""
    shared = Shared(library, tensor)
    shared.tensor.copy_(tensor)
    return shared


class Connection:
    """A connection to another process of the same user, on the same device."""

    def __init__(self, library, socket, device=0):
        _declare(library)
        self.library = library
        self.number = library.weirpool_ipc_open(device, socket.detach())
        if self.number == 0:
            raise RuntimeError("no connection: the reason is on stderr")

    def send(self, shared):
        tensor = shared.tensor
        label = json.dumps({"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)})
        sent = self.library.weirpool_ipc_send(self.number, shared.address, label.encode(), _stream())
        if sent != 0:
            raise RuntimeError("the tensor was not sent: the reason is on stderr")

    def receive(self):
        """Waits for a tensor. It is released when the last tensor over its memory is gone."""
        size, label = ctypes.c_uint64(), ctypes.create_string_buffer(LABEL + 1)
        address = self.library.weirpool_ipc_receive(self.number, ctypes.byref(size), label, len(label))
        if address == 0:
            raise EOFError("no further tensor was received: the reason is on stderr")
        memory = _Memory(self.library, address, size.value)
        # The other process belongs to the same user, but may still send an invalid label.
        said = json.loads(label.value)
        dtype, shape = getattr(torch, said["dtype"]), [int(length) for length in said["shape"]]
        if not isinstance(dtype, torch.dtype) or min(shape, default=0) < 0:
            raise ValueError(f"the peer describes no tensor: {said}")
        if math.prod(shape) * torch.empty((), dtype=dtype).element_size() != size.value:
            raise ValueError(f"the peer's tensor has {size.value} bytes, and not {said}")
        return _tensor(memory, dtype, shape)

    def close(self):
        self.library.weirpool_ipc_close(self.number)
        self.number = 0
