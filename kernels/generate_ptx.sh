#!/usr/bin/env bash
# Compiles kernels/cuda/kernels.cu to kernels/ptx/kernels.ptx, which runs on compute capability 8.0 and later, and assembles that for 9.0. Both
# are committed. NVCC names the compiler (default: nvcc), with ptxas beside it. They must be of CUDA 13.0, since other releases generate others.
# No fused multiply-add: the bits are those of a CPU. cuda/ep.cu has no committed image yet; that it compiles is checked.
set -euo pipefail
cd "$(dirname "$0")"
nvcc=$(command -v "${NVCC:-nvcc}")
mkdir -p ptx cubin
ptxas=$(dirname "$nvcc")/ptxas
compile() { "$nvcc" -ptx -arch=compute_80 -O3 -std=c++17 -fmad=false -I. -Iinclude "$1" -o "$2"; }
compile cuda/kernels.cu ptx/kernels.ptx
"$ptxas" -arch=sm_90 -O3 ptx/kernels.ptx -o cubin/kernels.sm_90.cubin

checked=$(mktemp -d)
trap 'rm -r "$checked"' EXIT
compile cuda/ep.cu "$checked/ep.ptx"
"$ptxas" -arch=sm_90 -O3 "$checked/ep.ptx" -o "$checked/ep.cubin"
