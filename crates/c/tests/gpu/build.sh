#!/usr/bin/env bash
# Builds the programs of this folder for a GPU into the folder OUT, with the static library: they need a driver, and nothing else.
#   CUDA_HOME     a toolkit: nvcc, the runtime, CCCL; PyPI's nvidia-cuda-nvcc, -runtime, -cccl, -crt and nvidia-nvvm have one
#   CCCL_INCLUDE  headers of another CCCL
#   RMM           the folder `cpp` of a copy of RMM, whose own tests are built too; RMM_FLAGS, RMM_OBJECTS: what they need besides
#                 (headers of rapids-logger, NVTX and GoogleTest; RMM's objects and those of GoogleTest)
#   OUT=/tmp/programs CUDA_HOME=/usr/local/cuda crates/c/tests/gpu/build.sh && /tmp/programs/pool && /tmp/programs/resource
set -euo pipefail
cd "$(dirname "$0")"
sources=$PWD root=$PWD/../../../..
cargo build --manifest-path "$root/Cargo.toml" --release -p weirpool-c
library=${CARGO_TARGET_DIR:-$root/target}/release/libweirpool_c.a
mkdir -p "${OUT:?a folder for the programs}"
cuda=${CUDA_HOME:-/usr/local/cuda}
cccl=${CCCL_INCLUDE:-$cuda/include/cccl}
runtime=$(find "$cuda"/lib* -name libcudart_static.a | head -n 1)
linked=("$library" "$runtime" -Wl,--gc-sections -lpthread -ldl -lrt -lm)
cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -I "$sources/../../include" -isystem "$cuda/include" pool.c -o "$OUT/pool" "${linked[@]}"
"$cuda/bin/nvcc" -std=c++17 -O2 -arch="${ARCH:-sm_90}" -I "$sources/../../include" -isystem "$cccl" -L "$(dirname "$runtime")" resource.cu -o "$OUT/resource" "$library" -Xlinker --gc-sections -lpthread -ldl -lm
if [ -n "${RMM:-}" ]; then
  rmm=(-std=c++20 -O1 -I "$sources/../../include" -I "$RMM/include" -I "$RMM/tests" -I "$RMM/tests/mr" -isystem "$cccl" -isystem "$cuda/include")
  for part in "$sources/rmm" "$RMM/tests/device_scalar_tests" "$RMM/tests/device_uvector_tests"; do
    # shellcheck disable=SC2086
    c++ "${rmm[@]}" ${RMM_FLAGS:-} -c "$part.cpp" -o "$OUT/$(basename "$part").o"
  done
  # shellcheck disable=SC2086
  c++ "$OUT"/{rmm,device_scalar_tests,device_uvector_tests}.o ${RMM_OBJECTS:-} -o "$OUT/rmm" "${linked[@]}"
  rm "$OUT"/*.o
fi
strip "$OUT"/{pool,resource} ${RMM:+"$OUT/rmm"}
