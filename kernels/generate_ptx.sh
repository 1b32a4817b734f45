#!/usr/bin/env bash
# Makes kernels/ptx/allreduce.ptx, which is committed, from kernels/allreduce.cu. NVCC names the compiler (default: nvcc);
# it must be of CUDA 13.0, since another release writes other PTX.
set -euo pipefail
cd "$(dirname "$0")"
"${NVCC:-nvcc}" -ptx -arch=compute_90 -O3 -std=c++17 -I. -Iinclude allreduce.cu -o ptx/allreduce.ptx
