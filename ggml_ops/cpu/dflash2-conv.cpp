#include "dflash2-common.h"
#include "dflash2-cpu.h"

#include <algorithm>

namespace {

using dflash2::Range;
using dflash2::row_of;
using dflash2::share_of;

// A piece of work is this many channels of a block: the sums stay in the first cache from tap to tap, and there are
// pieces enough for many threads. A multiple of the usual groups of 16, which are not cut then.
constexpr int64_t CHANNELS_AT_ONCE = 256;

// What one tap adds; pointers to channel 0 of a row
struct Tap {
    const float * base;
    const float * coeff;  // [groups]
    const float * x;
    const float * sum;       // of the taps before, may be y; NULL: this is the first
    const float * residual;  // NULL: none, or a tap follows
};

// y[c] = sum[c] + (base[c] + coeff) * x[c] + residual[c] for n channels of one group, every operation rounded by itself
template <bool HAS_SUM, bool HAS_RESIDUAL>
inline void add_group(int64_t n, float * y, int64_t c, float coeff, const Tap & tap) {
    const int64_t end = c + n;
#ifdef DFLASH2_SIMD
    const GGML_F32_VEC every = GGML_F32_VEC_SET1(coeff);
    for (; c + GGML_F32_EPR <= end; c += GGML_F32_EPR) {
        const GGML_F32_VEC weight = GGML_F32_VEC_ADD(GGML_F32_VEC_LOAD(tap.base + c), every);
        GGML_F32_VEC       value  = GGML_F32_VEC_MUL(weight, GGML_F32_VEC_LOAD(tap.x + c));
        if (HAS_SUM) {
            value = GGML_F32_VEC_ADD(GGML_F32_VEC_LOAD(tap.sum + c), value);
        }
        if (HAS_RESIDUAL) {
            value = GGML_F32_VEC_ADD(value, GGML_F32_VEC_LOAD(tap.residual + c));
        }
        GGML_F32_VEC_STORE(y + c, value);
    }
#endif
    for (; c < end; ++c) {
        float value = (tap.base[c] + coeff) * tap.x[c];
        if (HAS_SUM) {
            value = tap.sum[c] + value;
        }
        if (HAS_RESIDUAL) {
            value += tap.residual[c];
        }
        y[c] = value;
    }
}

template <bool HAS_SUM, bool HAS_RESIDUAL>
inline void add_groups(Range channels, int64_t group_size, float * y, const Tap & tap) {
    int64_t group = channels.begin / group_size;
    for (int64_t c = channels.begin; c < channels.end; ++group) {
        const int64_t end = std::min((group + 1) * group_size, channels.end);
        add_group<HAS_SUM, HAS_RESIDUAL>(end - c, y, c, tap.coeff[group], tap);
        c = end;
    }
}

// Adds one tap to the channels of a range
inline void add_tap(Range channels, int64_t group_size, float * y, const Tap & tap) {
    if (tap.residual) {
        tap.sum ? add_groups<true, true>(channels, group_size, y, tap) :
                  add_groups<false, true>(channels, group_size, y, tap);
    } else {
        tap.sum ? add_groups<true, false>(channels, group_size, y, tap) :
                  add_groups<false, false>(channels, group_size, y, tap);
    }
}

}  // namespace

void ggml_compute_forward_dflash2_conv(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * x        = dst->src[0];
    const ggml_tensor * coeff    = dst->src[1];
    const ggml_tensor * base     = dst->src[2];
    const ggml_tensor * residual = dst->src[3];

    const int64_t side         = ggml_get_op_params_i32(dst, 0);
    const int64_t n_block_rows = ggml_get_op_params_i32(dst, 1);
    const int64_t n_channels   = x->ne[0];
    const int64_t n_blocks     = x->ne[1] / n_block_rows;
    const int64_t n_taps       = base->ne[1];
    const int64_t n_groups     = coeff->ne[0] / (2 * n_taps);
    const int64_t group_size   = n_channels / n_groups;

    const int64_t n_pieces = (n_channels + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE;
    const Range   share    = share_of(params, n_pieces * n_blocks);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t first     = item / n_blocks * CHANNELS_AT_ONCE;
        const Range   channels  = { first, std::min(first + CHANNELS_AT_ONCE, n_channels) };
        const int64_t first_row = item % n_blocks * n_block_rows;
        for (int64_t i = 0; i < n_block_rows; ++i) {
            const int64_t row      = first_row + i;
            const int64_t last_tap = std::min(i, n_taps - 1);
            float *       y        = (float *) dst->data + row * n_channels;
            for (int64_t t = 0; t <= last_tap; ++t) {
                const int64_t which = side * n_taps + t;
                const Tap     tap   = { (const float *) base->data + which * n_channels,
                                        row_of(coeff, row) + which * n_groups, row_of(x, row - t), t > 0 ? y : nullptr,
                                        residual && t == last_tap ? row_of(residual, row) : nullptr };
                if (group_size == 16) {  // every released drafter's: a loop whose length is known is unrolled
                    add_tap(channels, 16, y, tap);
                } else {
                    add_tap(channels, group_size, y, tap);
                }
            }
        }
    }
}
