#!/usr/bin/env bash
# Builds with CUDA and checks the ops on a GPU: tests/gpu/check.sh [FOLDER OF LOGS] [OPTIONS OF PIP ...]
#
# Wants nvcc, a C++ compiler, CMake and Python 3.10 with headers. Without a network, the packages of pyproject.toml must be
# there, pip must be told so (--no-build-isolation --no-deps), and CMAKE_ARGS must name a prepared llama.cpp:
# -DDFLASH2_LLAMA_CPP_SOURCE=DIR, made by python cpp/llama_cpp/prepare.py DIR. DFLASH2_DEVICE: the device, CUDA0.
# It takes about 5 minutes on 16 cores, nearly all of them the build. Runs every step, and fails if one did.
set -uo pipefail
cd "$(dirname "$0")/../.."

logs=${1:-build/gpu-check}
shift $(($# > 0 ? 1 : 0))
mkdir -p "$logs"
export PYTHONUNBUFFERED=1
export DFLASH2_DEVICE=${DFLASH2_DEVICE:-CUDA0}
export PYTHONPATH=tests:tests/gpu:tests/bench${PYTHONPATH:+:$PYTHONPATH}
# Kernels for this machine's GPU only, and none for long contexts, which take longest to compile.
export CMAKE_ARGS="-DGGML_CUDA=on -DGGML_CUDA_FA=off -DCMAKE_CUDA_ARCHITECTURES=native ${CMAKE_ARGS:-}"
failed=0

step() {
    local name=$1 limit=$2 start=$SECONDS result=passed
    shift 2
    if ! timeout "$limit" "$@" > "$logs/$name.log" 2>&1; then
        result=FAILED
        failed=1
        tail -n 30 "$logs/$name.log"
    fi
    echo "== $name: $result, $((SECONDS - start)) s of at most $limit; $logs/$name.log"
}

# What is to be read in any case
show() {
    [ -f "$logs/$1.log" ] && tail -n 40 "$logs/$1.log"
}

step device 10 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
show device
step build 330 python3 -m pip install --verbose "$@" ".[test]"
step doctor 10 dflash2 doctor
show doctor
# The tests of the CPU ops, on the device; what a composed graph gives for equal logits is the device's own affair.
step op-parity 50 python3 -m pytest -p on_device -q -k "not composed and not broken" tests/ops/test_ops_conv.py \
    tests/ops/test_ops_topk.py tests/ops/test_ops_score.py
step drafts 40 env NVIDIA_TF32_OVERRIDE=0 python3 -m pytest -q tests/gpu/drafts.py
show drafts
step op-speed 30 python3 -m bench_device
show op-speed
exit "$failed"
