#include "dflash2.cuh"

#include "dflash2-conv-kernel.cuh"

static bool is_aligned(const ggml_tensor * tensor) {
    constexpr size_t size = sizeof(dflash2_floats<4>);
    return tensor == nullptr || ((uintptr_t) tensor->data % size == 0 && tensor->nb[1] % size == 0);
}

template <int n, int fixed_taps>
static void launch(const dflash2_conv_args & args, int64_t n_rows, cudaStream_t stream) {
    const int64_t n_blocks = (args.n_embd + DFLASH2_CONV_THREADS * n - 1) / (DFLASH2_CONV_THREADS * n);
    const dim3    grid((unsigned) n_rows, (unsigned) n_blocks);
    const ggml_cuda_kernel_launch_params params(grid, DFLASH2_CONV_THREADS, (size_t) 0, stream);
    ggml_cuda_kernel_launch(dflash2_conv<n, fixed_taps>, params, args);
}

void ggml_cuda_op_dflash2_conv(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * x            = dst->src[0];
    const ggml_tensor * coeff        = dst->src[1];
    const ggml_tensor * base         = dst->src[2];
    const ggml_tensor * residual     = dst->src[3];
    const int           side         = ggml_get_op_params_i32(dst, 0);
    const int           n_block_rows = ggml_get_op_params_i32(dst, 1);

    const int64_t n_embd   = x->ne[0];
    const int64_t n_taps   = base->ne[1];
    const int64_t n_groups = coeff->ne[0] / (2 * n_taps);

    dflash2_conv_args args = {};
    args.x                 = (const float *) x->data;
    args.coeff             = (const float *) coeff->data + side * n_taps * n_groups;
    args.base              = (const float *) base->data + side * n_taps * n_embd;
    args.y                 = (float *) dst->data;
    args.x_stride          = x->nb[1] / sizeof(float);
    args.coeff_stride      = coeff->nb[1] / sizeof(float);
    args.n_embd            = (int) n_embd;
    args.group_size        = (int) (n_embd / n_groups);
    args.n_taps            = (int) n_taps;
    args.n_block_rows      = n_block_rows;
    if (residual) {
        args.residual        = (const float *) residual->data;
        args.residual_stride = residual->nb[1] / sizeof(float);
    }

    const int64_t n_rows = x->ne[1];
    const bool    wide =
        args.group_size % 4 == 0 && is_aligned(x) && is_aligned(base) && is_aligned(residual) && is_aligned(dst);
    // 2: the taps of every released drafter
    if (wide && n_taps == 2) {
        launch<4, 2>(args, n_rows, ctx.stream());
    } else if (wide) {
        launch<4, 0>(args, n_rows, ctx.stream());
    } else {
        launch<1, 0>(args, n_rows, ctx.stream());
    }
}
