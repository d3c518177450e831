"""The exceptions of requests for memory."""

from typing import Optional

__all__ = [
    "AllocError",
    "Closed",
    "DeadlineExceeded",
    "Deadlocked",
    "DeviceFailed",
    "Exhausted",
    "ForeignMemory",
    "HostFull",
    "InvalidRequest",
    "LimitReached",
    "LoadShed",
    "NotReserved",
    "OutOfMemory",
    "QueueFull",
    "Stopping",
    "Suspended",
    "TooLarge",
]


class AllocError(Exception):
    """A request for memory failed. Nothing was taken, and the pool is as usable as before.

    `retry_after` is the time in seconds after which a retry is likely to succeed, or `None` if it cannot be estimated.
    """

    def __init__(self, message: str = "", retry_after: Optional[float] = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type, tuple[str, Optional[float]]]:
        return type(self), (str(self), self.retry_after)


class OutOfMemory(AllocError, MemoryError):
    """There is not enough memory: now, or at all (`TooLarge`)."""


class Exhausted(OutOfMemory):
    """There is not enough memory now, for a request that does not wait."""


class QueueFull(OutOfMemory):
    """As many requests wait as the queue limit of the pool or of the tag allows."""


class DeadlineExceeded(OutOfMemory):
    """The deadline or timeout of the request is over."""


class LoadShed(OutOfMemory):
    """The expected wait exceeds the deadline, so the request did not wait at all."""


class TooLarge(OutOfMemory):
    """The request exceeds the pool's capacity or the limit of its tag, and can never succeed."""


class LimitReached(OutOfMemory):
    """The tag holds as much as its limit allows, for a request that does not wait."""


class Deadlocked(OutOfMemory):
    """No waiting request can be granted, and no memory is on its way back."""


class NotReserved(OutOfMemory):
    """The reservation has less memory left, or not in one piece; the message says which."""


class HostFull(OutOfMemory):
    """The host has no memory for the copies of a region, which stays resident. Nothing is lost."""


class Suspended(AllocError, RuntimeError):
    """The memory is in a region that is suspended, or about to be: resume it first."""


class Stopping(AllocError, RuntimeError):
    """The pool admits no more requests, because its service ends. Another server may answer."""


class Closed(AllocError, RuntimeError):
    """The pool was closed. It grants no more memory."""


class DeviceFailed(AllocError, RuntimeError):
    """The device failed."""


class InvalidRequest(AllocError, ValueError):
    """The request can never succeed as it is."""


class ForeignMemory(ValueError):
    """The memory does not belong to the pool, or has another owner there."""
