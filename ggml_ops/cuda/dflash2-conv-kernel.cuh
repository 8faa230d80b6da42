#pragma once

// Include after the device's own header (common.cuh).

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

// A thread computes n channels of one row; n > 1 needs aligned rows and a group size that is a multiple of n, so that one
// coefficient serves them. fixed_taps: the number of taps where it is known, so that the loads of all taps are on their way
// before the first is used; 0: any.
//
// Bytes moved at H 5120, 8 rows, T 2, g 16: x, residual and y 164 KB each, the side's half of coeff 20 KB, of base 41 KB: 553 KB
// from device memory, or from L2 where the node before left them. Floor: 0.17 us on H100 (3.35 TB/s), 0.12 us on H200 (4.8),
// 0.55 us on RTX 4090 (1.0), all below the cost of the launch; so one launch, and nothing cleverer than full-width accesses.
// The taps read a row again, but from L1 or L2.
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
    const int     n_taps   = fixed_taps > 0 ? fixed_taps : args.n_taps;
    const int     n_groups = args.n_embd / args.group_size;
    const float * x        = args.x + row * args.x_stride + channel;
    const float * coeff    = args.coeff + row * args.coeff_stride + channel / args.group_size;
    const float * base     = args.base + channel;

    dflash2_floats<n> sum = {};
#pragma unroll
    for (int tap = 0; tap < n_taps; ++tap) {
        if (tap > position) {
            break;  // a row before the block
        }
        const float             delta    = coeff[(int64_t) tap * n_groups];
        const dflash2_floats<n> weight   = dflash2_load<n>(base + (int64_t) tap * args.n_embd);
        const dflash2_floats<n> channels = dflash2_load<n>(x - tap * args.x_stride);
#pragma unroll
        for (int i = 0; i < n; ++i) {
            sum.v[i] += (weight.v[i] + delta) * channels.v[i];
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
