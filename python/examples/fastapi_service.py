"""A FastAPI service whose answers hold memory, and which ends well: no answer breaks when it is terminated under load.

    pip install weirpool fastapi uvicorn
    python fastapi_service.py --port 8000
    curl -X POST http://127.0.0.1:8000/generate

The memory is simulated. On a GPU, call `weirpool.torch.use()` before CUDA is used, and take `weirpool.Pool.of_device(0)`.
"""

import argparse
import asyncio
import contextlib
import math
import time

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

import weirpool

pool = weirpool.Pool.simulated("64MiB", queue_limit=256)


@contextlib.asynccontextmanager
async def lifespan(app):
    yield
    # All answers are complete.
    await asyncio.to_thread(pool.drain, 30)
    pool.close()
    print("all memory was returned", flush=True)


app = FastAPI(lifespan=lifespan)


@app.exception_handler(weirpool.AllocError)
async def refused(request, error):
    if isinstance(error, weirpool.TooLarge):
        return JSONResponse({"reason": str(error)}, status_code=413)
    if isinstance(error, (weirpool.OutOfMemory, weirpool.Stopping)):
        seconds = max(1, math.ceil(error.retry_after or 1))
        return JSONResponse({"reason": str(error)}, status_code=503, headers={"Retry-After": str(seconds)})
    return JSONResponse({"reason": str(error)}, status_code=500)


def step(number):
    """Computes a piece of an answer, with memory that the answer has reserved."""
    block = pool.allocate("64KiB")
    time.sleep(0.002)
    del block
    return f"{number}\n"


@app.post("/generate")
async def generate():
    memory = await pool.reserve("8MiB", tag="chat", deadline=10)

    async def pieces():
        async with memory:
            for number in range(32):
                yield await memory.run(step, number)
            yield "done\n"

    return StreamingResponse(pieces(), media_type="text/plain")


class Server(uvicorn.Server):
    def handle_exit(self, sig, frame):
        # Requests that wait get 503, and answers that run go on. uvicorn then waits for these.
        pool.stop_admitting()
        super().handle_exit(sig, frame)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    Server(uvicorn.Config(app, port=parser.parse_args().port)).run()
