#include "dflash2.cuh"

#include "dflash2-floats.cuh"

constexpr int DFLASH2_CONV_THREADS = 256;

// Strides count floats from row to row.
struct dflash2_conv_args {
    const float * x;
    const float * coeff;     // first tap of the side
    const float * base;      // first tap of the side
    const float * residual;  // or null
    float *       y;
    int64_t       x_stride;
    int64_t       coeff_stride;
    int64_t       residual_stride;
    int           n_embd;
    int           group_size;  // channels that share a coefficient
    int           n_taps;
    int           n_block_rows;
};

// A thread computes n channels of one row; n > 1 needs aligned rows and a group size that is a multiple of n, so that
// one coefficient serves them. fixed_taps: the number of taps where it is known, so that the loads of all taps are on
// their way before the first is used; 0: any.
//
// Bytes moved at H 5120, 8 rows, T 2, g 16: x, residual and y 164 KB each, the side's half of coeff 20 KB, of base 41
// KB: 553 KB from device memory, or from L2 where the node before left them. Floor: 0.17 us on H100 (3.35 TB/s), 0.12
// us on H200 (4.8), 0.55 us on RTX 4090 (1.0), all below the cost of the launch; so one launch, and nothing cleverer
// than full-width accesses. The taps read a row again, but from L1 or L2.
//
// Every operation is rounded by itself, so that fused and composed give the same bits here too.
template <int n, int fixed_taps>
static __global__ void dflash2_conv(const dflash2_conv_args args) {
    ggml_cuda_pdl_lc();
    const int row     = blockIdx.x;
    const int channel = (blockIdx.y * DFLASH2_CONV_THREADS + threadIdx.x) * n;
    if (channel >= args.n_embd) {
        return;
    }
    ggml_cuda_pdl_sync();

    const int     position = row % args.n_block_rows;
    const int     n_taps   = fixed_taps > 0 ? fixed_taps : min(args.n_taps, position + 1);
    const int     n_groups = args.n_embd / args.group_size;
    const float * x        = args.x + row * args.x_stride + channel;
    const float * coeff    = args.coeff + row * args.coeff_stride + channel / args.group_size;
    const float * base     = args.base + channel;

    dflash2_floats<n> sum = {};
    for (int tap = 0; tap < n_taps; ++tap) {
        // A row before the block adds nothing; this row is read in its place, so that no load waits for a branch.
        const bool              inside   = tap <= position;
        const float             delta    = coeff[(int64_t) tap * n_groups];
        const dflash2_floats<n> weight   = dflash2_load<n>(base + (int64_t) tap * args.n_embd);
        const dflash2_floats<n> channels = dflash2_load<n>(x - (inside ? tap : 0) * args.x_stride);
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const float with_tap = __fadd_rn(sum.v[i], __fmul_rn(weight.v[i] + delta, channels.v[i]));
            sum.v[i]             = inside ? with_tap : sum.v[i];
        }
    }
    if (args.residual) {
        const dflash2_floats<n> residual = dflash2_load<n>(args.residual + row * args.residual_stride + channel);
#pragma unroll
        for (int i = 0; i < n; ++i) {
            sum.v[i] += residual.v[i];
        }
    }
    dflash2_store<n>(args.y + (int64_t) row * args.n_embd + channel, sum);
}

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
