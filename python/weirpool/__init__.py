"""A stream-ordered GPU memory pool for PyTorch, CuPy and others.

    import weirpool.torch
    weirpool.torch.use()                  # before CUDA is used
    weirpool.statistics()                 # figures of the pool of device 0

    async with weirpool.reserve("2GiB", tag="chat", deadline=2.0) as memory:
        answer = await memory.run(generate, prompt)      # draws from the reservation, and never waits

Importing this package imports no other library, and uses no GPU.
"""

import atexit
from pathlib import Path
from typing import Optional, Union

from . import _native
from ._errors import (
    AllocError,
    Closed,
    DeadlineExceeded,
    Deadlocked,
    DeviceFailed,
    Exhausted,
    ForeignMemory,
    HostFull,
    InvalidRequest,
    LimitReached,
    LoadShed,
    NotReserved,
    OutOfMemory,
    QueueFull,
    Stopping,
    Suspended,
    TooLarge,
)
from ._native import __version__
from ._regions import Region, entered_all, region, resume_all, suspend_all
from ._service import Evictable, Memory, Page, Pool, Reserve, SimulatedEvictable, Tag, evictable, reserve, serve_page, set_queue_limit, stats, tag

__all__ = [
    "AllocError",
    "Closed",
    "DeadlineExceeded",
    "Deadlocked",
    "DeviceFailed",
    "Evictable",
    "Exhausted",
    "ForeignMemory",
    "HostFull",
    "InvalidRequest",
    "LimitReached",
    "LoadShed",
    "Memory",
    "NotReserved",
    "OutOfMemory",
    "Page",
    "Pool",
    "QueueFull",
    "Region",
    "Reserve",
    "SimulatedEvictable",
    "Stopping",
    "Suspended",
    "Tag",
    "TooLarge",
    "__version__",
    "configure",
    "entered_all",
    "evictable",
    "library_path",
    "region",
    "reserve",
    "resume_all",
    "serve_page",
    "set_queue_limit",
    "statistics",
    "stats",
    "suspend_all",
    "tag",
]

# Before the interpreter ends: then no thread may call Python any more.
atexit.register(_native.stop_waiting)

_SETTINGS = {
    "capacity": "WEIRPOOL_CAPACITY",
    "remapping": "WEIRPOOL_REMAPPING",
    "sealing": "WEIRPOOL_SEALING",
    "timeout": "WEIRPOOL_TIMEOUT_MS",
    "broker": "WEIRPOOL_BROKER",
}


def configure(
    *,
    capacity: Union[int, str, None] = None,
    remapping: Union[float, str, None] = None,
    sealing: Union[int, str, None] = None,
    timeout: Optional[float] = None,
    broker: Optional[str] = None,
) -> None:
    """Sets how pools are created, in place of environment variables. Call it before the first allocation.

    `capacity` is the most memory that the pool of each device may reserve: bytes, or a text such as `"6GiB"`. `remapping` is the share of time
    that may go into mapping free memory elsewhere, or `"always"` or `"never"`. `sealing` is when the event of a free is recorded:
    `"every-free"`, `"on-demand"`, or after this many freed bytes, such as `"4MiB"`. `timeout` is how long an allocation waits for memory
    before it fails, in seconds. `broker` is the path of the socket of a broker, which leases memory to the pools of several processes.

    Settings that are `None` stay as they are. Raises `ValueError` for an invalid value, and `RuntimeError` if a pool exists already.
    """
    if timeout is not None and not 0 <= timeout < float("inf"):
        raise ValueError(f"timeout is a number of seconds from 0 up, and not {timeout!r}")
    values = {"capacity": capacity, "remapping": remapping, "sealing": sealing, "broker": broker}
    values["timeout"] = None if timeout is None else round(timeout * 1000)
    for name, value in values.items():
        if value is not None:
            try:
                _native.configure(_SETTINGS[name], str(value))
            except ValueError as error:
                raise ValueError(str(error).replace(_SETTINGS[name], name)) from None


def statistics(device: int = 0) -> dict[str, int]:
    """Returns the figures of a device's pool by name: bytes, numbers and microseconds. Without a pool they are 0."""
    return _native.statistics(device)


def library_path() -> str:
    """Returns the path of the shared object, whose C functions allocators of other libraries call."""
    return str(Path(_native.__file__).resolve())
