"""Regions: memory that is suspended and resumed as one, at the same addresses."""

import warnings

from . import _native
from ._errors import Suspended
from ._service import Active, _awaited, _handle, _name, _running_loop, _seconds, of_device


def _blocked(begin):
    """Waits on this thread, which must not run an event loop."""
    if _running_loop() is not None:
        raise RuntimeError("waiting would block the event loop of this thread; use `await` or `async with`")
    return begin(None).block()


class Change:
    """A suspension or a resumption, which begins once it is awaited, or by `blocking()`.

        await region.suspend()
        region.suspend().blocking()     # blocks this thread, not other threads

    A task that is cancelled before the memory moves has no effect. After that the operation runs to its end.
    """

    def __init__(self, name, begin):
        self._name, self._begin = name, begin
        self._has_begun = False

    async def _wait(self):
        self._has_begun = True
        return await _awaited(self._begin)

    def __await__(self):
        return self._wait().__await__()

    def blocking(self):
        """Waits for the end, and blocks this thread but no other. Signals are handled meanwhile.

        On the thread of a running event loop it raises `RuntimeError`.
        """
        self._has_begun = True
        return _blocked(self._begin)

    def __del__(self):
        if not self._has_begun:
            warnings.warn(f"{self._name} was never awaited", RuntimeWarning, stacklevel=2, source=self)


class Entered:
    """A context that holds regions resident, and resumes them first if they are suspended: `async with`, or `with`."""

    def __init__(self, native, limits, value):
        self._native, self._limits, self._value = native, limits, value
        self._inside = None

    def _begin(self, told):
        return _native.NativeRegion.enter(self._native, told=told, **self._limits)

    def _hold(self, inside):
        if self._inside is not None:
            inside.leave()
            raise RuntimeError("the context was entered already; call entered() for each use")
        self._inside = inside
        return self._value

    def _leave(self):
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.leave()

    async def __aenter__(self):
        return self._hold(await _awaited(self._begin))

    async def __aexit__(self, kind, error, trace):
        self._leave()

    def __enter__(self):
        if _running_loop() is None:
            return self._hold(self._begin(None).block())
        try:
            return self._hold(_native.NativeRegion.try_enter(self._native))
        except Suspended as error:
            raise RuntimeError("resuming would block the event loop of this thread; use `async with`") from error

    def __exit__(self, kind, error, trace):
        self._leave()


def _limits(deadline, timeout, priority):
    return {"deadline": _seconds("deadline", deadline), "timeout": _seconds("timeout", timeout), "priority": priority}


class Region:
    """Memory of a pool that is suspended and resumed as one, at the same addresses.

        kv = weirpool.region("kv")
        with kv.active():
            cache = torch.empty(shape, device="cuda")   # lies in the region
        await kv.suspend()                              # its memory is the pool's; the contents are on the host
        await kv.resume(timeout=30)                     # waits in the pool's queue; same addresses, same contents
        async with kv.entered():                        # for a request: resumes it if needed, and keeps it resident
            graph.replay()

    It lives for as long as this object or memory of it does. Each call makes a region of its own, also with the same name.
    """

    def __init__(self, pool, name, *, keep="host", tag=None, chunk=None, pin_ahead=None):
        sizes = {"chunk_bytes": chunk, "pin_ahead": pin_ahead}
        sizes = {key: _native.size(size) for key, size in sizes.items() if size is not None}
        self._native = _native.NativeRegion(pool._native, name, keep, tag=_name(tag), **sizes)

    @property
    def name(self):
        """The name, as errors say it."""
        return self._native.name()

    @property
    def is_suspended(self):
        """Whether the region is suspended, or about to be."""
        return self._native.is_suspended()

    def stats(self):
        """Returns the figures in bytes: `used` in live tensors, `addresses` that are reserved, `resident` on the device, `on_host`; and `is_suspended`."""
        return self._native.figures()

    def active(self, stream=None):
        """Returns a context in which allocations of this thread come from the region, which stays resident meanwhile.

        With `stream`, those that other threads make on this stream come from it too. Allocations in a captured graph, and in a
        `torch.cuda.MemPool`, come from the memory of that graph or pool. The context must not span an `await`.

        Entering it raises `Suspended` if the region is suspended, or about to be while nothing holds it.
        """
        return Active(self._native.activate, _handle(stream), self)

    def entered(self, *, deadline=None, timeout=None, priority=0):
        """Returns a context that holds the region resident, and resumes it first if it is suspended: `async with`, or `with`.

        The terms, in seconds, are those of `resume`, whose errors it raises. A task that is inside must not enter again, nor await a suspension: each would wait for
        the other. Enter several regions by [`entered_all`]. On the thread of a running event loop, `with` raises `RuntimeError` if it would have to wait.
        """
        return Entered([self._native], _limits(deadline, timeout, priority), self)

    def suspend(self):
        """Suspends the region: `await`, or `blocking()`. Returns the bytes that were given back to the pool, 0 if it was suspended already.

        It waits until nothing holds the region, and for all work of the device; then it copies the contents to the host if they are kept. From then on
        its tensors can be dropped, and nothing else: the pool does not see what PyTorch does with them.

        Raises `HostFull` if the host has no memory for the copies, and `DeviceFailed` for an error of the device, or while a graph is being captured. The
        region is resident then, and nothing is lost.
        """
        return suspend_all([self])

    def resume(self, *, deadline=None, timeout=None, priority=0):
        """Resumes the region: `await`, or `blocking()`. Nothing happens if it is resident.

        It waits in the pool's queue for all of its memory at once, for up to `deadline` or `timeout` seconds. A `deadline` also orders
        the queue, and each step of `priority` makes the request due 1 s earlier.

        Raises `DeadlineExceeded` and the other refusals of a reservation, and `DeviceFailed`. The region is suspended then, and its contents are on the host still.
        """
        return resume_all([self], deadline=deadline, timeout=timeout, priority=priority)

    def __repr__(self):
        figures = self.stats()
        state = "suspended" if figures["is_suspended"] else "resident"
        return f"<weirpool.Region {self.name!r}: {state}, {figures['used']} bytes used>"


def _native_of(regions):
    regions = list(regions)
    for region in regions:
        if not isinstance(region, Region):
            raise TypeError(f"expected regions, and not a value of type {type(region).__name__}")
    if not regions:
        raise ValueError("there is no region in the list")
    return [region._native for region in regions]


def suspend_all(regions):
    """Suspends regions of one pool as one: all of them, or none. See [`Region.suspend`]."""
    native = _native_of(regions)
    return Change("a suspension", lambda told: _native.NativeRegion.suspend(native, told=told))


def resume_all(regions, *, deadline=None, timeout=None, priority=0):
    """Resumes regions of one pool as one, with one position in the queue for the memory of all. See [`Region.resume`]."""
    native, limits = _native_of(regions), _limits(deadline, timeout, priority)
    return Change("a resumption", lambda told: _native.NativeRegion.resume(native, told=told, **limits))


def entered_all(regions, *, deadline=None, timeout=None, priority=0):
    """Returns a context that holds regions of one pool resident, and resumes them first, as one. See [`Region.entered`]."""
    regions = list(regions)
    return Entered(_native_of(regions), _limits(deadline, timeout, priority), regions)


def region(name, *, keep="host", tag=None, chunk=None, pin_ahead=None, device=0):
    """Makes a region of the pool of a device: memory that is suspended and resumed as one, at the same addresses.

    `keep` says where the contents are while it is suspended: `"host"` for pinned memory, to which copies run at full speed; `"pageable"` for
    plain memory of the process; `"nothing"` for caches, whose contents are lost. `tag` is charged for the memory. `chunk` is the smallest allocation of the device
    in bytes, or a text; 32 MiB by default. `pin_ahead` is the memory of the host that is pinned now, for `keep="host"`: to pin it at the first suspension
    takes seconds.

    Raises `InvalidRequest` if the device has no virtual memory, and `ValueError` for other values of `keep`.
    """
    return of_device(device).region(name, keep=keep, tag=tag, chunk=chunk, pin_ahead=pin_ahead)
