"""Tensors that processes share, on memory from weirpool.

    from weirpool.torch import sharing
    shared = sharing.share(tensor)            # a copy in memory of its own, which other processes can open
    peer = sharing.Connection(socket)         # a connected socket of type SOCK_SEQPACKET
    peer.send(shared)                         # sent once this stream's work on it is complete
    tensor = peer.receive()                   # in the other process: the same bytes, no copy
    shared.wait()                             # waits until the other processes have released it
"""

import ctypes
import json
import math

import torch

from .. import library_path

LABEL = 1024


def _load():
    library = ctypes.CDLL(library_path())
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
    return library


_library = _load()


def _stream():
    return torch.cuda.current_stream().cuda_stream


class _Memory:
    """Owns shared memory. A tensor over it keeps it."""

    def __init__(self, address, size):
        self.address = address
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }

    def __del__(self):
        _library.weirpool_ipc_free(self.address, _stream())


def _tensor(memory, dtype, shape):
    return torch.as_tensor(memory, device="cuda").view(dtype).view(shape)


class Shared:
    """A tensor that can be sent to other processes: `tensor`."""

    def __init__(self, like):
        size = max(1, like.numel() * like.element_size())
        address = _library.weirpool_ipc_allocate(like.device.index or 0, size)
        if address == 0:
            raise RuntimeError("no memory to share: the reason is on stderr")
        self.address = address
        size -= size % like.element_size()
        self.tensor = _tensor(_Memory(address, size), like.dtype, like.shape)

    def wait(self):
        """Waits until every process has released the tensor."""
        if _library.weirpool_ipc_wait(self.address) != 0:
            raise RuntimeError("a process did not release the tensor: the reason is on stderr")


def share(tensor):
    """Copies a tensor into memory that other processes can open."""
    shared = Shared(tensor)
    shared.tensor.copy_(tensor)
    return shared


class Connection:
    """A connection to another process of the same user, on the same device."""

    def __init__(self, socket, device=0):
        self.number = _library.weirpool_ipc_open(device, socket.detach())
        if self.number == 0:
            raise RuntimeError("no connection: the reason is on stderr")

    def send(self, shared):
        tensor = shared.tensor
        label = json.dumps({"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)})
        sent = _library.weirpool_ipc_send(self.number, shared.address, label.encode(), _stream())
        if sent != 0:
            raise RuntimeError("the tensor was not sent: the reason is on stderr")

    def receive(self):
        """Waits for a tensor. It is released when the last tensor over its memory is gone."""
        size, label = ctypes.c_uint64(), ctypes.create_string_buffer(LABEL + 1)
        address = _library.weirpool_ipc_receive(self.number, ctypes.byref(size), label, len(label))
        if address == 0:
            raise EOFError("no further tensor was received: the reason is on stderr")
        memory = _Memory(address, size.value)
        # The other process belongs to the same user, but may still send an invalid label.
        said = json.loads(label.value)
        dtype, shape = getattr(torch, said["dtype"]), [int(length) for length in said["shape"]]
        if not isinstance(dtype, torch.dtype) or min(shape, default=0) < 0:
            raise ValueError(f"the peer describes no tensor: {said}")
        if math.prod(shape) * torch.empty((), dtype=dtype).element_size() != size.value:
            raise ValueError(f"the peer's tensor has {size.value} bytes, and not {said}")
        return _tensor(memory, dtype, shape)

    def close(self):
        _library.weirpool_ipc_close(self.number)
        self.number = 0
