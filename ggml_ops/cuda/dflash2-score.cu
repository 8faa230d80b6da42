#include "dflash2.cuh"

#include "dflash2-score-kernel.cuh"
#include "ggml-dflash2.h"

static_assert(DFLASH2_SCORE_MAX_K == GGML_DFLASH2_MAX_CANDIDATES, "each pair of candidates needs a thread");

typedef void (*dflash2_score_kernel)(dflash2_score_args);

// Null for a table that cannot be read here.
static dflash2_score_kernel kernel_for(ggml_type table) {
    switch (table) {
    case GGML_TYPE_F32:
        return dflash2_score<GGML_TYPE_F32>;
    case GGML_TYPE_F16:
        return dflash2_score<GGML_TYPE_F16>;
    case GGML_TYPE_BF16:
        return dflash2_score<GGML_TYPE_BF16>;
    case GGML_TYPE_Q4_0:
        return dflash2_score<GGML_TYPE_Q4_0>;
    case GGML_TYPE_Q4_1:
        return dflash2_score<GGML_TYPE_Q4_1>;
    case GGML_TYPE_Q5_0:
        return dflash2_score<GGML_TYPE_Q5_0>;
    case GGML_TYPE_Q5_1:
        return dflash2_score<GGML_TYPE_Q5_1>;
    case GGML_TYPE_Q8_0:
        return dflash2_score<GGML_TYPE_Q8_0>;
    case GGML_TYPE_Q2_K:
        return dflash2_score<GGML_TYPE_Q2_K>;
    case GGML_TYPE_Q3_K:
        return dflash2_score<GGML_TYPE_Q3_K>;
    case GGML_TYPE_Q4_K:
        return dflash2_score<GGML_TYPE_Q4_K>;
    case GGML_TYPE_Q5_K:
        return dflash2_score<GGML_TYPE_Q5_K>;
    case GGML_TYPE_Q6_K:
        return dflash2_score<GGML_TYPE_Q6_K>;
    case GGML_TYPE_IQ4_NL:
        return dflash2_score<GGML_TYPE_IQ4_NL>;
    case GGML_TYPE_IQ4_XS:
        return dflash2_score<GGML_TYPE_IQ4_XS>;
    default:
        return nullptr;
    }
}

bool ggml_cuda_dflash2_supported(const ggml_tensor * op) {
    // The other two take every shape of their contract.
    return op->op != GGML_OP_DFLASH2_SCORE || kernel_for(op->src[3]->type) != nullptr;
}

void ggml_cuda_op_dflash2_score(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * logits      = dst->src[0];
    const ggml_tensor * ids         = dst->src[1];
    const ggml_tensor * gate        = dst->src[2];
    const ggml_tensor * predecessor = dst->src[3];
    const ggml_tensor * successor   = dst->src[4];
    const ggml_tensor * anchors     = dst->src[5];

    dflash2_score_args args = {};
    args.logits             = (const float *) logits->data;
    args.ids                = (const int32_t *) ids->data;
    args.gate               = (const float *) gate->data;
    args.predecessor        = (const char *) predecessor->data;
    args.successor          = (const char *) successor->data;
    args.anchors            = (const char *) anchors->data;
    args.scores             = (float *) dst->data;
    args.logits_stride      = logits->nb[1] / sizeof(float);
    args.gate_stride        = gate->nb[1] / sizeof(float);
    args.anchor_stride      = anchors->nb[0];
    args.row_size           = predecessor->nb[1];
    args.k                  = (int) ids->ne[0];
    args.rank               = (int) gate->ne[0];
    args.n_slots            = ggml_get_op_params_i32(dst, 0);
    args.multiplier         = ggml_get_op_params_f32(dst, 1);
    args.softcap            = ggml_get_op_params_f32(dst, 2);

    const dim3                           block(DFLASH2_SCORE_COLUMNS, DFLASH2_SCORE_ROWS);
    const ggml_cuda_kernel_launch_params params((unsigned) ids->ne[1], block, (size_t) 0, ctx.stream());
    ggml_cuda_kernel_launch(kernel_for(predecessor->type), params, args);
}
