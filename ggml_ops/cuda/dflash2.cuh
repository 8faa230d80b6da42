#pragma once

// CUDA (also HIP and MUSA) forms of the ops of ggml-dflash2.h. The sources use of CUDA C++ and of common.cuh only what
// tests/shim has as well, where they run on the CPU.

#include "common.cuh"

// False for what has to run elsewhere or composed: a table type without a dequantizer in dflash2-tables.cuh.
bool ggml_cuda_dflash2_supported(const ggml_tensor * op);

// Each writes dst from its sources on the context's stream; nothing is allocated but from the context's pool.
void ggml_cuda_op_dflash2_conv(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
void ggml_cuda_op_dflash2_topk(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
void ggml_cuda_op_dflash2_score(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
