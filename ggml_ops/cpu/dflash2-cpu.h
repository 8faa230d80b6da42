#pragma once

// The kernels of the three ops for the CPU, called by ggml with one thread each of params->nth. See ggml-dflash2.h.

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

void ggml_compute_forward_dflash2_conv(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void ggml_compute_forward_dflash2_topk(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void ggml_compute_forward_dflash2_score(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// GGML_OP_FLASH_ATTN_EXT and GGML_OP_MUL_MAT where it was asked for by ggml_dflash2_own_kernel(). False: it was not, or this is
// none of their cases; nothing is done then. The first uses the params->wdata that ggml has for the op
bool ggml_compute_forward_dflash2_attention(const struct ggml_compute_params * params, struct ggml_tensor * dst);
bool ggml_compute_forward_dflash2_mul_mat(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Bytes of params->wdata that a kernel uses with n_tasks threads
size_t ggml_dflash2_topk_work_size(const struct ggml_tensor * node, int n_tasks);
size_t ggml_dflash2_score_work_size(const struct ggml_tensor * node, int n_tasks);
size_t ggml_dflash2_mul_mat_work_size(const struct ggml_tensor * node);  // 0: the kernel is not used

#ifdef __cplusplus
}
#endif
