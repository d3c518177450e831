"""An inference service whose requests wait for memory instead of failing, beside the same service on PyTorch's own allocator.

    python service.py                       # both, one after the other
    python service.py --allocator weirpool  # one of them
    python service.py --cpu                 # without a GPU: the waiting is real, the memory is simulated

A transformer with random weights answers prompts of different lengths. The clients ask for twice the memory that the service has. On weirpool each request
reserves what it needs, waits for that in the pool's fair queue, and then runs without a failure. On PyTorch's allocator a request that finds no memory fails.

With aiohttp installed, requests go over HTTP; without it, the clients call the handler in the same process.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time

GIB = 1 << 30


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=["weirpool", "torch", "both"], default="both")
    parser.add_argument("--memory", type=float, default=12, metavar="GIB", help="the memory of the service [default: 12]")
    parser.add_argument("--load", type=float, default=2, help="the memory that clients ask for at once, as a multiple [default: 2]")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--samples", type=int, default=16, help="answers to each prompt")
    parser.add_argument("--context", type=int, default=2048, help="the longest prompt, in tokens")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each answer")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--deadline", type=float, default=60, help="the longest wait of a request, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http", choices=["auto", "no"], default="auto")
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


class Model:
    """A decoder of transformer blocks with a cache of keys and values for each request."""

    def __init__(self, torch, options):
        self.torch, self.options = torch, options
        self.device = "cpu" if options.cpu else "cuda"
        self.dtype = torch.float32 if options.cpu else torch.bfloat16
        generator = torch.Generator(device=self.device).manual_seed(options.seed)
        width = options.width

        def weights(*shape):
            return (torch.randn(*shape, generator=generator, device=self.device) * 0.02).to(self.dtype)

        self.embedding = weights(32000, width)
        self.layers = [[weights(width, 3 * width), weights(width, width), weights(width, 4 * width), weights(4 * width, width)] for _ in range(options.layers)]
        self.local = threading.local()

    def stream(self):
        """Returns the context of this thread's stream."""
        if self.options.cpu:
            return self.torch.inference_mode()
        if not hasattr(self.local, "stream"):
            self.local.stream = self.torch.cuda.Stream()
        return self.torch.cuda.stream(self.local.stream)

    def generate(self, length, seed):
        """Answers a prompt. Returns the number of tokens."""
        torch, options = self.torch, self.options
        with torch.inference_mode(), self.stream():
            generator = torch.Generator().manual_seed(seed)
            prompt = torch.randint(0, 32000, (options.samples, length), generator=generator).to(self.device)
            shape = (options.samples, options.heads, length + options.tokens, options.width // options.heads)
            caches = [tuple(torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(2)) for _ in self.layers]
            ids, position = prompt, 0
            for _ in range(options.tokens):
                logits = self.step(ids, caches, position)
                position += ids.shape[1]
                ids = logits.argmax(-1, keepdim=True)
            ids.cpu()
        return options.samples * options.tokens

    def step(self, ids, caches, position):
        functional, options = self.torch.nn.functional, self.options
        batch, length = ids.shape
        head = options.width // options.heads
        hidden = self.embedding[ids]
        for (attention, output, up, down), (keys, values) in zip(self.layers, caches):
            query, key, value = (functional.layer_norm(hidden, (options.width,)) @ attention).chunk(3, dim=-1)
            query, key, value = (part.view(batch, length, options.heads, head).transpose(1, 2) for part in (query, key, value))
            keys[:, :, position : position + length] = key
            values[:, :, position : position + length] = value
            end = position + length
            mixed = functional.scaled_dot_product_attention(query, keys[:, :, :end], values[:, :, :end], is_causal=length > 1)
            hidden = hidden + mixed.transpose(1, 2).reshape(batch, length, options.width) @ output
            hidden = hidden + functional.gelu(functional.layer_norm(hidden, (options.width,)) @ up) @ down
        return hidden[:, -1] @ self.embedding.T


class Service:
    """Answers requests on one of the allocators."""

    def __init__(self, options):
        self.options, self.name = options, options.allocator
        memory = int(options.memory * GIB)
        if self.name == "weirpool":
            import weirpool

            self.weirpool = weirpool
            if not options.cpu:
                import weirpool.torch

                weirpool.torch.use(capacity=memory)
        import torch

        if self.name == "torch" and not options.cpu:
            torch.cuda.set_per_process_memory_fraction(memory / torch.cuda.get_device_properties(0).total_memory)
        self.torch = torch
        self.model = Model(torch, options)
        self.need_of_longest = self.measured()
        if self.name == "weirpool":
            self.pool = weirpool.Pool.simulated(memory) if options.cpu else weirpool.Pool.of_device(0)
            self.pool.tag("long").set_weight(1)
            self.pool.tag("short").set_weight(1)

    def measured(self):
        """Returns the memory that the longest request takes beyond the weights, from a trial."""
        if self.options.cpu:
            self.model.generate(8, 0)
            return int(self.options.memory * GIB / 4)
        cuda = self.torch.cuda
        self.model.generate(self.options.context, 0)
        cuda.synchronize()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        self.model.generate(self.options.context, 0)
        cuda.synchronize()
        return cuda.max_memory_allocated() - before

    def need(self, length):
        """Returns the bytes that a request reserves: a quarter more than its part of the trial, for free bytes that are not contiguous, and room for libraries."""
        part = length / self.options.context
        return int(self.need_of_longest * part * 1.25) + (64 << 20)

    async def answer(self, length, seed):
        """Returns the number of tokens, or raises an error."""
        if self.name == "torch":
            return await asyncio.get_running_loop().run_in_executor(None, self.model.generate, length, seed)
        tag = "long" if length > self.options.context // 2 else "short"
        async with self.pool.reserve(self.need(length), tag=tag, deadline=self.options.deadline) as memory:
            return await memory.run(self.model.generate, length, seed)

    async def handle(self, length, seed):
        """Returns a status and a body, as over HTTP."""
        try:
            return 200, {"tokens": await self.answer(length, seed)}
        except MemoryError as error:
            return 503, {"reason": str(error), "retry_after": getattr(error, "retry_after", None)}
        except self.torch.OutOfMemoryError as error:
            return 503, {"reason": str(error).split("\n")[0]}


def application(service):
    """Returns the service for aiohttp."""
    from aiohttp import web

    async def generate(request):
        body = await request.json()
        status, answer = await service.handle(body["length"], body["seed"])
        retry_after = answer.get("retry_after")
        headers = {} if retry_after is None else {"Retry-After": str(max(1, round(retry_after)))}
        return web.json_response(answer, status=status, headers=headers)

    app = web.Application()
    app.router.add_post("/generate", generate)
    return app


async def load(service, ask):
    """Keeps as many requests under way as ask for the multiple of the memory. Returns the figures."""
    options = service.options
    lengths = random.Random(options.seed)
    prompts = [lengths.randint(options.context // 4, options.context) for _ in range(options.requests)]
    mean = sum(map(service.need, prompts)) / len(prompts)
    clients = max(1, round(options.load * options.memory * GIB / mean))
    queue = list(enumerate(prompts))[::-1]
    times, tokens, failed, reasons = [], 0, 0, []

    async def client():
        nonlocal tokens, failed
        while queue:
            seed, length = queue.pop()
            begin = time.perf_counter()
            status, answer = await ask(length, seed)
            if status == 200:
                times.append(time.perf_counter() - begin)
                tokens += answer["tokens"]
            else:
                failed += 1
                reasons.append(answer.get("reason", str(status)))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - begin
    times.sort()
    return {
        "allocator": service.name,
        "clients": clients,
        "requests": options.requests,
        "failed": failed,
        "tokens_per_s": round(tokens / took, 1),
        "p50_s": round(times[len(times) // 2], 3) if times else None,
        "p99_s": round(times[min(len(times) - 1, int(len(times) * 0.99))], 3) if times else None,
        "took_s": round(took, 2),
        "need_of_longest_gib": round(service.need_of_longest / GIB, 3),
        "first_reason": reasons[0][:300] if reasons else None,
    }


async def run(options):
    service = Service(options)
    try:
        import aiohttp
    except ImportError:
        aiohttp = None
    if aiohttp is None or options.http == "no":
        return {"front": "in process", **await load(service, service.handle)}
    from aiohttp import web

    runner = web.AppRunner(application(service))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(length, seed):
            async with session.post(f"http://127.0.0.1:{port}/generate", json={"length": length, "seed": seed}) as answer:
                return answer.status, await answer.json()

        figures = await load(service, ask)
    await runner.cleanup()
    return {"front": "aiohttp", **figures}


def main():
    options = arguments()
    if options.allocator != "both":
        print(json.dumps(asyncio.run(run(options))))
        return 0
    rows = []
    for name in ("torch", "weirpool"):
        # Each in a process of its own: PyTorch has one allocator in a process.
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--allocator", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return done.returncode
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'allocator':<10} {'failed':>12} {'tokens/s':>10} {'p50 s':>8} {'p99 s':>8} {'clients':>8}  front")
    for row in rows:
        failed = f"{row['failed']} of {row['requests']}"
        cells = [row["tokens_per_s"], row["p50_s"], row["p99_s"]]
        print(f"{row['allocator']:<10} {failed:>12} " + " ".join(f"{str(cell):>{width}}" for cell, width in zip(cells, (10, 8, 8))) + f" {row['clients']:>8}  {row['front']}")
        if row["first_reason"]:
            print(f"           first failure: {row['first_reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
