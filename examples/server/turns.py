#!/usr/bin/env python3
"""Two servers whose weights do not fit together take turns on one GPU, under a broker.

    cargo build --release -p weirpool-server -p weirpool-cli --features weirpool-server/cuda
    examples/server/turns.py --requests 200 --pause 0.02 --lease 1670MiB -- --device cuda --capacity 4GiB --layers 24 --width 1024 --heads 16 \
      --vocabulary 50257 --context 512 --streams 1 --sleep-after 30ms --timeout 60s

Each server has a client that sends a request after a random pause. The script prints the waits, and fails if a request fails
or an answer differs from that of the same request before. Options after `--` are those of both servers.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PORT = 8100


def ready(server):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT + server}/readyz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def ask(server, seed):
    """Returns the time of the answer in seconds, and its tokens."""
    tokens = random.Random(seed).choices(range(256), k=16)
    body = json.dumps({"prompt": tokens, "max_tokens": 8, "temperature": 0}).encode()
    url = f"http://127.0.0.1:{PORT + server}/v1/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=120) as answer:
        tokens = json.load(answer)["choices"][0]["token_ids"]
    return time.monotonic() - begin, tokens


def client(server, requests, pause, expected, waits, failures):
    choice = random.Random(server)
    for _ in range(requests):
        seed = choice.randrange(4)
        try:
            wait, tokens = ask(server, seed)
            waits.append(wait)
            if tokens != expected[server, seed]:
                failures.append(f"another answer of server {server}")
        except (OSError, ValueError, KeyError) as error:
            failures.append(repr(error))
        time.sleep(choice.expovariate(1 / pause))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", default="target/release", help="the folder of the programs")
    parser.add_argument("--lease", default="2300MiB", help="the memory that the broker leases")
    parser.add_argument("--requests", type=int, default=100, help="the requests of each client")
    parser.add_argument("--pause", type=float, default=0.08, help="the mean pause between them, in seconds")
    parser.add_argument("options", nargs="*", help="options of both servers")
    options = parser.parse_args()
    # Only this user can change it, which a broker expects.
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "broker.sock")
        lease = [f"{options.programs}/weirpool", "broker", "--capacity", options.lease, "--socket", socket]
        running = [subprocess.Popen(lease)]
        while not os.path.exists(socket) and running[0].poll() is None:
            time.sleep(0.05)
        for server in range(2):
            listen = ["--listen", f"127.0.0.1:{PORT + server}", "--broker", socket, "--seed", str(server)]
            running.append(subprocess.Popen([f"{options.programs}/weirpool-server", *listen, *options.options]))
        try:
            while not all(ready(server) for server in range(2)):
                if any(process.poll() is not None for process in running):
                    sys.exit("a program ended")
                time.sleep(0.1)
            expected = {(server, seed): ask(server, seed)[1] for server in range(2) for seed in range(4)}
            waits, failures = [], []
            clients = [
                threading.Thread(target=client, args=(n, options.requests, options.pause, expected, waits, failures))
                for n in range(2)
            ]
            for thread in clients:
                thread.start()
            for thread in clients:
                thread.join()
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()
    waits.sort()
    shown = [f"{name} {waits[int(at * (len(waits) - 1))] * 1e3:.0f} ms" for name, at in (("median", 0.5), ("99 %", 0.99), ("longest", 1))]
    print(f"{len(waits)} answers, {len(failures)} failures; {', '.join(shown)}")
    if failures:
        sys.exit("\n".join(failures[:5]))


if __name__ == "__main__":
    main()
