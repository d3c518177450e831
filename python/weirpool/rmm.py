"""RMM on memory from weirpool: a memory resource.

    from weirpool import rmm as on_rmm
    on_rmm.use()
"""

import rmm

from . import _raw

__all__ = ["resource", "use"]


def resource(device=0):
    """Returns a memory resource of the pool of a device."""

    def allocate(size, stream):
        address = _raw.allocate(size, device, _handle(stream))
        if address == 0 and size > 0:
            raise MemoryError(f"weirpool has no {size} bytes; the reason is on stderr")
        return address

    def deallocate(address, size, stream):
        _raw.free(address, size, device, _handle(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def use(device=0):
    """Makes RMM allocate from weirpool on a device."""
    rmm.mr.set_per_device_resource(device, resource(device))


def _handle(stream):
    """Returns the handle of a stream of RMM. Versions before 24.12 pass none, and mean the default stream."""
    protocol = getattr(stream, "__cuda_stream__", None)
    return protocol()[1] if protocol else 0
