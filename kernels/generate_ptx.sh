#!/usr/bin/env bash
# Compiles kernels/allreduce.cu to kernels/ptx/allreduce.ptx, which is committed. NVCC names the compiler (default: nvcc). It must be of
# CUDA 13.0, since other releases generate other PTX.
set -euo pipefail
cd "$(dirname "$0")"
"${NVCC:-nvcc}" -ptx -arch=compute_90 -O3 -std=c++17 -I. -Iinclude allreduce.cu -o ptx/allreduce.ptx
