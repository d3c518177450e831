"""Memory for services: pools, reservations that are awaited, tags, evictable tensors, the live page."""

import asyncio
import contextvars
import functools
import inspect
import json
import math
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from . import _native
from ._errors import Exhausted, ForeignMemory, LimitReached, OutOfMemory

# Longer than any loop runs. The timer keeps the future of a request alive for as long as its loop is open.
_FOREVER = 365 * 24 * 3600


def _sizes(size):
    if isinstance(size, (list, tuple)):
        if not size:
            raise ValueError("a reservation in several pieces needs at least one size")
        return [_native.size(piece) for piece in size]
    return [_native.size(size)]


def _seconds(name, value):
    """Checks a duration."""
    if value is not None and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
        raise ValueError(f"{name} is a number of seconds from 0 up, and not {value!r}")
    return value


def _handle(stream):
    """Returns the handle of a stream: of PyTorch, of CuPy, of a simulated device, or a number."""
    if stream is None or isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            handle = getattr(stream, name)
            return handle() if callable(handle) else int(handle)
    raise TypeError(f"{type(stream).__name__} is not a stream: expected a torch.cuda.Stream, a cupy.cuda.Stream, or a handle")


def _settle(future):
    """Runs in the loop once a request has its outcome."""
    if not future.done():
        future.set_result(None)


def _nothing(future):
    """Is never due: the timer only keeps its argument."""


def _weak(loop):
    """Returns a weak reference to a loop, so that a request that waits does not keep it alive."""
    try:
        return weakref.ref(loop)
    except TypeError:
        return lambda: loop


def _name(tag):
    """Returns the name of a tag, which may be given by its account."""
    if tag is None or isinstance(tag, str):
        return tag
    if isinstance(tag, Tag):
        return tag.name
    raise TypeError(f"a tag is a text, and not a value of type {type(tag).__name__}")


def _running_loop():
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _awaited(begin):
    """Waits for the outcome of a request, which `begin` makes: it is given what to tell, and returns the request. Returns the outcome.

    The request is cancelled with the task, and with its loop.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    told = (_weak(loop), weakref.ref(future), _settle)
    keep = loop.call_later(_FOREVER, _nothing, future)
    wait = None
    try:
        wait = begin(told)
        await future
        return wait.take()
    except BaseException:
        # Also when the task is cancelled, or destroyed with its loop.
        if wait is not None:
            wait.cancel()
        raise
    finally:
        keep.cancel()


class Reserve:
    """A request for a reservation, which waits in the queue of its pool once it is entered or awaited.

        async with weirpool.reserve("2GiB", tag="chat", deadline=2.0) as memory: ...
        memory = await weirpool.reserve("2GiB")       # until memory.release()
        with weirpool.reserve("2GiB") as memory: ...  # blocks this thread, not other threads
        memory = weirpool.reserve("2GiB").try_now()   # never waits

    A task that is cancelled while it waits gives up its position in the queue.
    """

    def __init__(self, pool, size, *, tag=None, deadline=None, timeout=None, priority=0):
        self._pool = pool
        self._sizes = _sizes(size)
        self._terms = {"tag": _name(tag), "priority": priority}
        self._limits = {"deadline": _seconds("deadline", deadline), "timeout": _seconds("timeout", timeout)}
        self._entered = None

    def _begin(self, told):
        return self._pool.wait(self._sizes, told=told, **self._terms, **self._limits)

    async def _wait(self):
        return Memory(await _awaited(self._begin))

    def __await__(self):
        return self._wait().__await__()

    def try_now(self):
        """Reserves memory that is available now. Raises `OutOfMemory` if there is too little."""
        return Memory(self._pool.try_reserve(self._sizes, **self._terms))

    def blocking(self):
        """Waits in the queue, and blocks this thread but no other. Signals are handled meanwhile.

        On the thread of a running event loop it raises `RuntimeError` if it would have to wait.
        """
        if _running_loop() is not None:
            try:
                return self.try_now()
            except (Exhausted, LimitReached) as error:
                raise RuntimeError("waiting would block the event loop of this thread; use `async with` or `await`") from error
        return Memory(self._begin(None).block())

    def _enter(self, memory):
        self._entered = memory
        return memory

    def _check(self):
        if self._entered is not None:
            raise RuntimeError("the request was entered already; call reserve() for each use")

    def _exit(self):
        memory, self._entered = self._entered, None
        if memory is not None:
            memory.release()

    async def __aenter__(self):
        self._check()
        memory = await self
        try:
            self._check()
        except RuntimeError:
            memory.release()
            raise
        return self._enter(memory)

    async def __aexit__(self, kind, error, trace):
        self._exit()

    def __enter__(self):
        self._check()
        memory = self.blocking()
        try:
            self._check()
        except RuntimeError:
            memory.release()
            raise
        return self._enter(memory)

    def __exit__(self, kind, error, trace):
        self._exit()


@functools.lru_cache(maxsize=None)
def _executor():
    """Returns the threads of `Memory.run`."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="weirpool-run")


class Memory:
    """A reservation: memory that no other request can take, until it is released."""

    def __init__(self, native):
        self._native = native

    @property
    def size(self):
        """The bytes of the reservation, allocated or not."""
        return self._native.size()

    @property
    def left(self):
        """The bytes that are not allocated."""
        return self._native.left()

    @property
    def tag(self):
        """The tag that is charged, or None."""
        return self._native.tag()

    def active(self, stream=None):
        """Returns a context in which allocations draw from the reservation: all of this thread, on any stream.

        With `stream`, those that other threads make on this stream draw from it too, such as PyTorch's threads for the backward pass.

        The context must not span an `await`; the guide lists the cases that are detected.
        """
        return Active(self._native.activate, _handle(stream), self)

    async def run(self, function, /, *args, **kwargs):
        """Calls a function in a worker thread, where its allocations draw from the reservation. Returns its result.

        The threads are the package's own, at most 64 at once, so that handlers that block the loop's executor do not delay it. If the awaiting task is cancelled, a call that has begun goes on, and the reservation lasts until it ends.
        """
        if inspect.iscoroutinefunction(function):
            raise TypeError("run() calls a plain function in a thread; in an async function, put the steps that allocate inside `with memory.active():`")
        context = contextvars.copy_context()
        call = functools.partial(context.run, self._call, function, args, kwargs)
        return await asyncio.get_running_loop().run_in_executor(_executor(), call)

    def _call(self, function, args, kwargs):
        with self.active():
            try:
                return function(*args, **kwargs)
            except StopIteration as error:
                # A future takes no StopIteration.
                raise RuntimeError("the function raised StopIteration") from error

    def split(self, size):
        """Moves bytes that are not allocated into a reservation of their own, and returns that."""
        return Memory(self._native.split(_native.size(size)))

    def release(self):
        """Returns the memory to the pool, once no active context uses it. Live blocks become ordinary ones."""
        self._native.release()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.release()

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        self.release()

    def __repr__(self):
        if self._native.is_released():
            return "<weirpool.Memory: released>"
        return f"<weirpool.Memory: {self.left} of {self.size} bytes left, tag {self.tag}>"


class Active:
    """A context in which allocations draw from a reservation, or are charged to a tag."""

    def __init__(self, begin, stream, value):
        self._begin, self._stream, self._value = begin, stream, value
        self._activation = None
        self._watch = None
        self._is_spanned = False

    def __enter__(self):
        if self._activation is not None:
            raise RuntimeError("the context was entered already; call active() for each use")
        self._thread = threading.get_ident()
        self._is_spanned = False
        # A name may have parts of no character.
        name = threading.current_thread().name.encode(errors="replace").decode()
        self._activation = self._begin(name, self._stream)
        loop = _running_loop()
        if loop is not None:
            self._watch = _call_next(loop, self._suspended)
        return self._value

    def _suspended(self):
        """Runs in the loop: the step of the task that entered is over, so the context spans an await."""
        if self._activation is not None:
            self._is_spanned = True
            self._activation.end()

    def __exit__(self, kind, error, trace):
        activation, self._activation = self._activation, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        if activation is None:
            return
        activation.end()
        if kind is not None:
            return
        if self._is_spanned:
            raise RuntimeError(
                "active() spans an await: allocations after it did not draw from the reservation; "
                "use `await memory.run(function)`, or end the context before the await"
            )
        if self._thread != threading.get_ident():
            raise RuntimeError("active() was entered on another thread, whose allocations drew from the reservation")


def _call_next(loop, function):
    """Calls a function in the loop as soon as the current step of its task is over, if that is possible."""
    ready = getattr(loop, "_ready", None)
    if not isinstance(ready, deque):
        # Tasks that are ready already run before it.
        return loop.call_soon(function)
    handle = asyncio.Handle(function, (), loop)
    # Before tasks that are ready already. Only the thread of the loop removes entries.
    ready.appendleft(handle)
    return handle


class Tag:
    """The account of a tag with a pool: weight, limits, figures. Names stay in memory until the process ends."""

    def __init__(self, pool, name):
        self._pool, self.name = pool, name

    def set_weight(self, weight):
        """Sets the weight in the queue. While several tags wait, each gets bytes by its weight.

        All tags without a weight, which 0 sets, and requests without a tag share one weight of 1.
        """
        if not isinstance(weight, int) or not 0 <= weight < 1 << 32:
            raise ValueError(f"a weight is a whole number from 0 up to 4294967295, and not {weight!r}")
        self._pool.set_weight(self.name, weight)
        return self

    def set_limit(self, limit):
        """Sets the most bytes that the tag may hold; None for any number. Requests beyond it wait outside the queue."""
        self._pool.set_limit(self.name, None if limit is None else _native.size(limit))
        return self

    def set_queue_limit(self, requests=None, size=None):
        """Sets how many requests of the tag may wait, and for how many bytes; None for any number."""
        self._pool.set_tag_queue_limit(self.name, requests, None if size is None else _native.size(size))
        return self

    def active(self, stream=None):
        """Returns a context in which allocations of this thread outside reservations are charged to the tag."""
        return Active(functools.partial(self._pool.activate_tag, self.name), _handle(stream), self)

    def stats(self):
        """Returns the figures of the tag."""
        return json.loads(self._pool.tag_figures(self.name))

    def __repr__(self):
        return f"<weirpool.Tag {self.name!r}>"


class Page:
    """The live page of a pool, on the loopback interface. It is served until it is closed, or the process ends."""

    def __init__(self, native):
        self._native = native

    @property
    def url(self):
        """The address to open in a browser."""
        return f"http://127.0.0.1:{self._native.port()}/"

    def close(self):
        """Ends the service."""
        self._native.close()

    def __repr__(self):
        return f"<weirpool.Page: {self.url}>"

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()


class Pool:
    """A pool: of a device, or simulated."""

    def __init__(self, native):
        self._native = native

    @classmethod
    def of_device(cls, device=0):
        """Returns the pool of a device, from which PyTorch allocates. It is created on the first call."""
        return cls(_native.NativePool.of_device(device))

    @classmethod
    def simulated(cls, memory, *, queue_limit=None, load_shedding=False, fail_deadlocks_after=None, broker=None):
        """Returns a pool of a simulated device in real time, for tests without a GPU."""
        native = _native.NativePool.simulated(
            _native.size(memory),
            queue_limit=queue_limit,
            load_shedding=load_shedding,
            fail_deadlocks_after=fail_deadlocks_after,
            broker=broker,
        )
        return cls(native)

    def reserve(self, size, *, tag=None, deadline=None, timeout=None, priority=0):
        """Returns a request for a reservation: `async with`, `await`, `with`, or `try_now()`.

        `size` is a number of bytes, a text such as `"2GiB"`, or a list of these, one for each block that must fit at any time. A `deadline` in
        seconds orders the queue, and is the longest wait; a `timeout` is only the longest wait. Each step of `priority` makes the request due 1 s earlier.
        """
        return Reserve(self._native, size, tag=tag, deadline=deadline, timeout=timeout, priority=priority)

    def tag(self, name):
        """Returns the account of a tag."""
        return Tag(self._native, name)

    def set_queue_limit(self, requests=None, size=None):
        """Sets how many requests may wait, and for how many bytes; None for any number."""
        self._native.set_queue_limit(requests, None if size is None else _native.size(size))

    def expected_wait(self, size):
        """Estimates how long a request would wait, in seconds; None before enough requests have waited."""
        return self._native.expected_wait(_native.size(size))

    def stats(self):
        """Returns the figures of the pool, of each tag, and of the requests that wait."""
        return json.loads(self._native.figures())

    def holders(self):
        """Returns who holds the memory, as the messages of failed allocations list it: reservations, tags, streams with their threads, and requests that wait."""
        return self._native.holders()

    @property
    def capacity(self):
        """The most bytes that the pool may reserve."""
        return self._native.capacity()

    def __repr__(self):
        return f"<weirpool.Pool: capacity {self.capacity}>"

    def region(self, name, *, keep="host", tag=None, chunk=None, pin_ahead=None):
        """Makes a region: memory that is suspended and resumed as one. See [`weirpool.region`]."""
        from ._regions import Region

        return Region(self, name, keep=keep, tag=tag, chunk=chunk, pin_ahead=pin_ahead)

    def evictable(self, memory):
        """Takes a tensor of PyTorch, or a block of a simulated pool, and lets the pool take it back before a request waits.

        The tensor must be the only one over its memory; it is empty afterwards. Raises `ForeignMemory` if its memory does not belong to the pool.
        """
        if isinstance(memory, _native.NativeBlock):
            return SimulatedEvictable(memory.evictable(self._native))
        return _tensor_entry(self._native, memory)

    def serve_page(self, port=0, title=None):
        """Serves the live page on the loopback interface; on any free port by default."""
        return Page(self._native.serve_page(port, title))

    def stop_admitting(self):
        """Fails requests that wait and new ones, from now on with `Stopping`. Reservations go on, and pages end."""
        self._native.stop_admitting()

    def drain(self, timeout=None):
        """Blocks this thread until all memory is free. Raises `TimeoutError` after `timeout` seconds.

        Call `stop_admitting` first. In an event loop, `await asyncio.to_thread(pool.drain, 30)`.
        """
        if _running_loop() is not None:
            raise RuntimeError("waiting would block the event loop of this thread; use `await asyncio.to_thread(pool.drain)`")
        until = None if timeout is None else time.monotonic() + _seconds("timeout", timeout)
        while True:
            # Signals are handled between the slices.
            left = math.inf if until is None else max(0, until - time.monotonic())
            try:
                return self._native.drain(min(left, 0.05))
            except TimeoutError:
                if left <= 0.05:
                    raise

    def close(self):
        """Fails all requests, from now on with `Closed`, also allocations from reservations. Live memory stays valid."""
        self._native.close()

    def stream(self):
        """Creates a stream of a simulated device."""
        return self._native.stream()

    def allocate(self, size, *, stream=None, timeout=None):
        """Allocates memory of a simulated device, as PyTorch does on a GPU. Waits at most `timeout` seconds; 5 by default."""
        return self._native.allocate(_native.size(size), stream=stream, timeout=timeout)


class SimulatedEvictable:
    """A block of a simulated pool that the pool may take back. It has the functions of `Evictable`."""

    def __init__(self, native):
        self._native = native

    def get(self):
        """Returns the block, which is not evicted before its `free()`, and evictable again then; or None if it was evicted."""
        return self._native.get()

    @property
    def is_present(self):
        """Whether the memory was not evicted so far."""
        return self._native.is_present()


class Evictable:
    """A tensor that the pool may take back before a request waits."""

    def __init__(self, native, tensor):
        self._native = native
        self._shape, self._stride = tuple(tensor.shape), tensor.stride()
        self._offset, self._dtype, self._device = tensor.storage_offset(), tensor.dtype, tensor.device
        self._bytes = tensor.untyped_storage().nbytes()
        self._storage = None
        self._lock = threading.Lock()

    def get(self):
        """Returns the tensor, or None if it was evicted. Its memory is not evicted before the tensor is gone; then it is evictable again.

        The current stream waits for the work that used the memory before.
        """
        import torch

        with self._lock:
            storage = None
            if self._storage is not None:
                storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
            if storage is None:
                storage = self._restore(torch)
            if storage is None:
                return None
        tensor = torch.empty(0, dtype=self._dtype, device=self._device)
        return tensor.set_(storage, self._offset, self._shape, self._stride)

    def _restore(self, torch):
        from torch.multiprocessing.reductions import StorageWeakRef

        # Before the block is taken: this initializes CUDA, and may allocate.
        with torch.cuda.device(self._device):
            if not self._native.hand_over():
                return None
            try:
                storage = torch.UntypedStorage(self._bytes, device=self._device)
            finally:
                was_taken = self._native.was_taken()
            if not was_taken:
                # Another allocator served it, such as a torch.cuda.MemPool.
                raise RuntimeError("PyTorch did not take the memory over; call get() outside torch.cuda.use_mem_pool()")
        self._storage = StorageWeakRef(storage)
        return storage

    @property
    def is_present(self):
        """Whether the memory was not evicted so far."""
        return not self._native.is_gone()


def _expect_tensor(value):
    """Checks that a value is a tensor, without an import of PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        raise TypeError(f"expected a tensor of PyTorch, and not a value of type {type(value).__name__}")
    return torch


def _tensor_entry(pool, tensor):
    torch = _expect_tensor(tensor)
    if tensor.requires_grad:
        raise ValueError("the tensor is part of a graph of gradients; call detach() first, and drop the original")
    if tensor.device.type != "cuda":
        raise ForeignMemory(f"the tensor is on {tensor.device}, whose memory does not belong to a pool")
    if _is_shared(torch, tensor):
        raise ValueError("other tensors use the memory, such as views of it; drop them first, or pass a clone")
    address, stream = tensor.untyped_storage().data_ptr(), torch.cuda.current_stream(tensor.device).cuda_stream
    native = pool.entry_at(address, stream)
    entry = Evictable(native, tensor)
    try:
        # Frees the memory into the entry. The tensor that the caller may still have is empty from now on.
        storage = tensor.untyped_storage()
        tensor.set_(torch.UntypedStorage(0, device=tensor.device), 0, (0,), (1,))
        storage.resize_(0)
    except BaseException:
        native.forget(address)
        raise
    return entry


def _is_shared(torch, tensor):
    """Returns whether other tensors have a tensor's memory."""
    # Compared with a tensor that is known to be alone. A view keeps the tensor that it was made of, which the program may have too.
    alone = torch.empty(1) if tensor._base is None else torch.empty(1).view(1)
    return _owners(torch, tensor) > _owners(torch, alone)


def _owners(torch, tensor):
    """Returns a number that grows with each further tensor over the memory, and each further reference to the tensor that a view was made of."""
    owners = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return owners + (0 if tensor._base is None else sys.getrefcount(tensor._base))


@functools.lru_cache(maxsize=None)
def of_device(device=0):
    """Returns the pool of a device."""
    return Pool.of_device(device)


def reserve(size, *, device=0, tag=None, deadline=None, timeout=None, priority=0):
    """Returns a request for a reservation on a device; see [`Pool.reserve`]."""
    return of_device(device).reserve(size, tag=tag, deadline=deadline, timeout=timeout, priority=priority)


def tag(name, device=0):
    """Returns the account of a tag with the pool of a device."""
    return of_device(device).tag(name)


def evictable(tensor):
    """Takes a tensor, and lets the pool take its memory back before a request waits; see [`Pool.evictable`]."""
    _expect_tensor(tensor)
    device = tensor.device
    if device.type != "cuda":
        raise ForeignMemory(f"the memory is on {device}, and does not belong to a pool")
    return of_device(device.index or 0).evictable(tensor)


def stats(device=0):
    """Returns the figures of a device's pool, of each tag, and of the requests that wait."""
    return of_device(device).stats()


def serve_page(port=0, device=0, title=None):
    """Serves the live page of a device's pool on the loopback interface."""
    return of_device(device).serve_page(port, title)


def set_queue_limit(requests=None, size=None, device=0):
    """Sets how many requests may wait for memory of a device, and for how many bytes."""
    of_device(device).set_queue_limit(requests, size)
