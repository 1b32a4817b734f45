#!/usr/bin/env bash
# Compiles kernels/cuda/kernels.cu and ep.cu to PTX, which runs on compute capability 8.0 and later, and assembles that for 9.0: kernels/ptx and
# kernels/cubin, which are committed. NVCC names the compiler (default: nvcc), with ptxas beside it. They must be of CUDA 13.0, since other releases
# generate others. No fused multiply-add: the bits are those of a CPU.
set -euo pipefail
cd "$(dirname "$0")"
nvcc=$(command -v "${NVCC:-nvcc}")
mkdir -p ptx cubin
ptxas=$(dirname "$nvcc")/ptxas
generate() {
  "$nvcc" -ptx -arch=compute_80 -O3 -std=c++17 -fmad=false -I. -Iinclude "cuda/$1.cu" -o "ptx/$1.ptx"
  "$ptxas" -arch=sm_90 -O3 "ptx/$1.ptx" -o "cubin/$1.sm_90.cubin"
}
generate ep &
generate kernels
wait "$!"
