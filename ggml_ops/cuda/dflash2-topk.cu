#include "dflash2.cuh"

#include "dflash2-topk-kernel.cuh"
#include "ggml-dflash2.h"

static_assert(DFLASH2_TOPK_GROUPS >= GGML_DFLASH2_MAX_CANDIDATES, "each candidate may come of another group");

static int n_chunks(int n_items) {
    return (n_items + DFLASH2_TOPK_CHUNK - 1) / DFLASH2_TOPK_CHUNK;
}

void ggml_cuda_op_dflash2_topk(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * logits  = dst->src[0];
    const int           k       = ggml_get_op_params_i32(dst, 0);
    const int           n_vocab = ggml_get_op_params_i32(dst, 1);
    const int64_t       n_rows  = logits->ne[1];
    int32_t *           ids     = (int32_t *) dst->data;

    const auto launch = [&](auto kernel, auto * in, int64_t stride, int n_items, dflash2_key * out) {
        const dim3                           grid((unsigned) n_rows, (unsigned) n_chunks(n_items));
        const ggml_cuda_kernel_launch_params params(grid, DFLASH2_TOPK_THREADS, (size_t) 0, ctx.stream());
        ggml_cuda_kernel_launch(kernel, params, in, stride, n_items, k, out, out ? nullptr : ids);
    };

    // The keys of one pass, and of the one after it
    const int                         n_first  = n_chunks(n_vocab) > 1 ? n_chunks(n_vocab) * k : 0;
    const int                         n_second = n_chunks(n_first) > 1 ? n_chunks(n_first) * k : 0;
    ggml_cuda_pool_alloc<dflash2_key> first(ctx.pool());
    ggml_cuda_pool_alloc<dflash2_key> second(ctx.pool());
    if (n_first > 0) {
        first.alloc(n_first * n_rows);
    }
    if (n_second > 0) {
        second.alloc(n_second * n_rows);
    }

    dflash2_key * to = first.get();
    launch(dflash2_topk<float>, (const float *) logits->data, logits->nb[1] / sizeof(float), n_vocab, to);
    for (int n_keys = n_first; to; n_keys = n_chunks(n_keys) * k) {
        const dflash2_key * from = to;
        to                       = n_chunks(n_keys) == 1 ? nullptr : from == first.get() ? second.get() : first.get();
        launch(dflash2_topk<dflash2_key>, from, n_keys, n_keys, to);
    }
}
