#!/bin/bash
# Every program here by turns without and with the pool, on one GPU, and three of them together. Needs nvcc, PyTorch, CuPy and
# JAX; RMM and Numba where they are installed. WEIRPOOL is the command; OUT is a folder for the results.
# PART=together leaves out the timed programs of frameworks.
#   cargo build --release && WEIRPOOL=$PWD/target/release/weirpool OUT=/tmp crates/preload/tests/gpu/run.sh
set -u
cd "$(dirname "$0")"
sources=$PWD work=$(mktemp -d) weirpool=${WEIRPOOL:-weirpool}
mkdir -p "${OUT:=/tmp}"
exec >"$OUT/run.log" 2>&1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
ldd --version | head -1
cd "$work"
built=()
build() { nvcc -O2 -arch=sm_90 "${@:2}" "$sources/$1.cu" & built+=($!); }
build semantics -o semantics -lcuda
build streams -o streams
build streams -o streams-per-thread --default-stream per-thread
build pairs -o pairs
build sample -o sample
build sample -o sample-shared -cudart shared
build peers -o peers
wait "${built[@]}"
off() { timeout 40 "$@" 2>&1 | tail -n 5; }
on() { timeout 40 "$weirpool" run ${options:-} -- "$@" 2>&1 | tail -n 5; }
# both TURNS PROGRAM ...: without and with the pool, by turns.
both() {
  local turns=$1
  shift
  echo "== ${name:-$*}"
  for _ in $(seq "$turns"); do echo "-- off"; off "$@"; echo "-- on"; on "$@"; done
}
arrays() { local turns=$1; shift; both "$turns" python3 "$sources/arrays.py" "$@"; }
echo "== semantics: differences"
timeout 60 ./semantics >without 2>&1
timeout 60 "$weirpool" run --quiet -- ./semantics >with 2>&1
wc -l <without
diff without with && echo none
both 1 ./streams 2000
both 1 ./streams-per-thread 2000
if [ -n "${PAIR:-}" ]; then
  echo "== a pair beside the pool's own"
  timeout 30 "$PAIR"
  timeout 30 "$weirpool" run --quiet -- "$PAIR"
fi
timed() {
  both 2 ./sample 512 400 0
  both 2 ./sample 512 400 1
  both 1 ./sample-shared 512 400 0
  both 1 ./pairs
  name="RMM's async resource" arrays 1 rmm 100 16
  name="CuPy, own pool" arrays 1 cupy 100 16
  name="CuPy, no pool" arrays 2 cupy-none 100 16
  name="CuPy, MemoryAsyncPool" arrays 1 cupy-async 100 16
  name="PyTorch, own allocator" arrays 1 torch 100 16
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  name="PyTorch, no caching" arrays 2 torch 100 16
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
  export PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync
  name="PyTorch, cudaMallocAsync" arrays 1 torch 100 16
  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  name="PyTorch, expandable segments" arrays 1 torch 100 16
  unset PYTORCH_CUDA_ALLOC_CONF
  export XLA_PYTHON_CLIENT_ALLOCATOR=platform
  name="JAX, platform" arrays 2 jax 100 16
  unset XLA_PYTHON_CLIENT_ALLOCATOR
  name="Numba" arrays 1 numba 50 16

  # These are not timed, and run side by side.
  checks=()
  check() { { "${@:2}"; } >"$work/check-$1" 2>&1 & checks+=($!); }
  check peers both 1 ./peers
  # With two GPUs.
  [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ] || check nccl both 1 python3 "$sources/nccl.py" 20 64
  check graphs both 1 python3 "$sources/graphs.py"
  options="--memory plain" check plain both 1 python3 "$sources/ipc.py"
  check exported on python3 "$sources/ipc.py"
  options="--limit 8GiB" check limit both 1 python3 "$sources/nvml.py"
  trace() {
    "$weirpool" run --quiet --record "$work/trace.csv" -- python3 "$sources/arrays.py" cupy-async 100 16
    "$weirpool" replay "$work/trace.csv" | tail -n 12
  }
  check trace trace
  wait "${checks[@]}"
  for result in "$work"/check-*; do echo "== ${result##*/}"; cat "$result"; done
}
[ "${PART:-all}" = together ] || timed

# Each takes what it needs in a round as a whole: they hold 4 GiB together, and no two fit in 0.6 of it.
echo "== three together: 1.5, 1.5 and 1 GiB in each of 200 rounds of at least 10 ms, of which a broker leases 0.6"
"$weirpool" broker --capacity 2460MiB --socket "$work/gpu0.sock" &
broker=$!
sleep 1
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
shared() {
  timeout 80 "$weirpool" run --wait 30s --broker "$work/gpu0.sock" --tag "$1" --reserve "$2" -- "${@:3}"
  echo "$1 ended with $?"
}
together=()
shared torch 1537MiB python3 "$sources/rounds.py" torch 200 1.5 10 "$work/go" & together+=($!)
shared cupy 1537MiB python3 "$sources/rounds.py" cupy 200 1.5 10 "$work/go" & together+=($!)
shared sample 1028MiB ./sample 512 200 0 1024 10 "$work/go" & together+=($!)
for _ in $(seq 60); do [ "$(ls "$work"/go.* 2>/dev/null | wc -l)" = 3 ] && break; sleep 0.5; done
touch "$work/go"
for _ in $(seq 8); do sleep 0.5; nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; done | sort -n | tail -n 1 | sed 's/$/ MiB of the GPU used at most, contexts included/'
"$weirpool" top --once --socket "$work/gpu0.sock"
wait "${together[@]}"
kill $broker
