#pragma once

// How dflash2-mul-mat.cpp reads weights of each type, and what it makes of the activations that it multiplies them with.

#include "dflash2-x86.h"
#include "ggml-cpu-impl.h"
#include "simd-mappings.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <algorithm>

namespace {

using namespace dflash2;

constexpr int VALUES          = sizeof(Bytes);                   // of a chunk of quantised weights
constexpr int LANES           = sizeof(Floats) / sizeof(float);  // one for four of these values
constexpr int BLOCK_VALUES    = 32;
constexpr int BLOCKS_OF_CHUNK = VALUES / BLOCK_VALUES;

// Activations as the kernel reads them
struct alignas(Bytes) QuantisedChunk {
    int8_t x[VALUES];
    float  scale[LANES];
    union {
        int32_t bias[LANES];  // what the offset of the weights adds to each sum of four products
        float   sum[LANES];   // of four activations, for weights with a minimum
    };
};

// Activations of a whole block of 256
struct alignas(Bytes) QuantisedBlock {
    int8_t x[QK_K];
    float  scale[LANES];
    union {
        int16_t pairs[QK_K / 16];  // sums of 16 values, those of even number first: what an offset of the weights needs
        float   sum[QK_K / 32];    // of 32 activations, for weights with a minimum
    };
};

struct alignas(Bytes) FloatChunk {
    float x[LANES];
};

// Weights as the kernel reads them: scale * (q - offset), or scale * q + min
struct Quantised {
    Bytes  q;
    Floats scale;
    Floats min;
};

// For each type of weights: up to how many rows this is faster than ggml's kernels at 2560 x 9728, where 512 is as many as a
// micro-batch has (on two cores of Zen 5; K-quants in narrow vectors on two of Zen 3, F16 in wide ones on two of Sapphire
// Rapids), what a chunk of activations is and what they are rounded to, how many chunks make a group (a block of the type,
// or one), what of group i of a row is read once, how each part of it is read, and the products of its bytes. products()
// sums four neighbours.

template <typename Block_, ggml_type type_, ggml_type rounded_, int64_t few_, int offset_, bool has_min_>
struct QuantisedWeights {
    using Block                         = Block_;
    using Chunk                         = QuantisedChunk;
    static constexpr ggml_type type     = type_;
    static constexpr ggml_type rounded  = rounded_;
    static constexpr int64_t   few      = few_;
    static constexpr int64_t   n_values = VALUES;
    static constexpr int       n_parts  = rounded == GGML_TYPE_Q8_K ? QK_K / VALUES : 1;
    static constexpr size_t    size     = (n_parts > 1 ? 1 : BLOCKS_OF_CHUNK) * sizeof(Block);
    static constexpr int       offset   = offset_;
    static constexpr bool      has_min  = has_min_;

    DFLASH2_INLINE static const Block * open(const char * row, int64_t i) { return (const Block *) (row + i * size); }

    static Bytes products(Bytes bias, Bytes q, Bytes x) { return dot(bias, q, x); }
};

struct Q8_0 : QuantisedWeights<block_q8_0, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 512, SIGN_OFFSET, false> {
    template <int part>
    DFLASH2_INLINE static Quantised load(const Block * block) {
        return { lift(blocks(block->qs, sizeof(*block))), of_blocks(&block->d, sizeof(*block)), Floats{} };
    }

    static Bytes products(Bytes bias, Bytes q, Bytes x) { return dot_lifted(bias, q, x); }
};

struct Q4_0 : QuantisedWeights<block_q4_0, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, 512, 8, false> {
    template <int part>
    DFLASH2_INLINE static Quantised load(const Block * block) {
        return { blocks_of_halves(block->qs, sizeof(*block)), of_blocks(&block->d, sizeof(*block)), Floats{} };
    }
};

struct Q4_1 : QuantisedWeights<block_q4_1, GGML_TYPE_Q4_1, GGML_TYPE_Q8_1, 512, 0, true> {
    template <int part>
    DFLASH2_INLINE static Quantised load(const Block * block) {
        return { blocks_of_halves(block->qs, sizeof(*block)), of_blocks(&block->data.data.d, sizeof(*block)),
                 of_blocks(&block->data.data.m, sizeof(*block)) };
    }
};

// Eight scales and eight minima of six bits each, as the blocks of Q4_K and Q5_K pack them
struct SixBits {
    uint8_t scales[8];
    uint8_t mins[8];

    DFLASH2_INLINE explicit SixBits(const uint8_t * packed) {
        // the first four scales, then minima, each with two bits for those of the other four
        uint64_t first;
        uint32_t rest;  // four bits of a scale and four of a minimum
        std::memcpy(&first, packed, sizeof(first));
        std::memcpy(&rest, packed + sizeof(first), sizeof(rest));
        const uint64_t low = first & 0x3F3F3F3F3F3F3F3F;
        const uint64_t high =
            (rest & 0x0F0F0F0F) | (uint64_t) (rest & 0xF0F0F0F0) << 28 | (first >> 2 & 0x3030303030303030);
        const uint64_t all_s = (low & 0xFFFFFFFF) | high << 32;
        const uint64_t all_m = low >> 32 | (high & 0xFFFFFFFF00000000);
        std::memcpy(scales, &all_s, sizeof(scales));
        std::memcpy(mins, &all_m, sizeof(mins));
    }
};

inline uint16_t negative_f16(uint16_t x) {
    return (uint16_t) (x ^ 0x8000);
}

#if DFLASH2_X86 == 512
// 256 values in blocks of 32 that have a scale and a minimum of six bits each
template <typename Block>
struct OpenBlock {
    const Block * block;
    Floats        scales;  // eight of them
    Floats        mins;

    DFLASH2_INLINE explicit OpenBlock(const Block * opened) : block(opened) {
        const SixBits bits(block->scales);
        scales = multiply(eight_floats(bits.scales), all(block->data.data.d));
        mins   = multiply(eight_floats(bits.mins), all(negative_f16(block->data.data.dmin)));
    }
};

template <typename Block, ggml_type type>
struct OpenedWeights : QuantisedWeights<Block, type, GGML_TYPE_Q8_K, 9, 0, true> {
    using Opened = OpenBlock<Block>;

    DFLASH2_INLINE static Opened open(const char * row, int64_t i) { return Opened((const Block *) row + i); }

    // From block `first` of the eight on
    DFLASH2_INLINE static Bytes low_halves(const Opened & open, int first) {
        return low_bits(blocks_shifted(open.block->qs + first / 2 * 32, first % 2 * 4, 4), 4);
    }

    DFLASH2_INLINE static Quantised scaled(Bytes q, const Opened & open, int first) {
        return { q, of_blocks(open.scales, first), of_blocks(open.mins, first) };
    }
};

struct Q4_K : OpenedWeights<block_q4_K, GGML_TYPE_Q4_K> {
    template <int part>
    DFLASH2_INLINE static Quantised load(const Opened & open) {
        constexpr int first = part * BLOCKS_OF_CHUNK;
        return scaled(low_halves(open, first), open, first);
    }
};

struct Q5_K : OpenedWeights<block_q5_K, GGML_TYPE_Q5_K> {
    template <int part>
    DFLASH2_INLINE static Quantised load(const Opened & open) {
        constexpr int first = part * BLOCKS_OF_CHUNK;
        const Bytes   high  = low_bits(blocks_shifted(open.block->qh, first, 1), 1);
        return scaled(join(low_halves(open, first), high), open, first);
    }
};

struct Q6_K : QuantisedWeights<block_q6_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_K, 16, 32, false> {
    template <int part>
    DFLASH2_INLINE static Quantised load(const Block * block) {
        constexpr int first   = part * BLOCKS_OF_CHUNK;  // block of 32 values, of eight
        constexpr int half    = first / 4;
        constexpr int quarter = first % 4;
        const Bytes   low     = shift_right(load_bytes(block->ql + 64 * half + 32 * (quarter % 2)), quarter / 2 * 4);
        const Bytes   high    = blocks_shifted(block->qh + 32 * half, 2 * quarter, 2);
        const Floats  scale   = multiply(of_sixteens(block->scales + 2 * first), all(block->d));
        return { join(low_bits(low, 4), low_bits(high, 2)), scale, Floats{} };
    }
};
#else
// Sums of two products fit 16 bits, and so do the scales within a block of 256: what they give is summed over the block as
// integers, and made a float once.

// What is read once of a block
template <typename Block>
struct OpenBlock {
    const Block * block;
    Bytes         scales;  // 16 bits each: in each half those of its values, in the order of the parts
    Floats        scale;   // of the block
    Floats        mins;    // of each part; Q6_K has none
};

template <typename Block, ggml_type type, int offset, bool has_min>
struct BlockWeights : QuantisedWeights<Block, type, GGML_TYPE_Q8_K, 512, offset, has_min> {
    using Chunk                       = QuantisedBlock;
    using Opened                      = OpenBlock<Block>;
    static constexpr int64_t n_values = QK_K;
    static constexpr int     n_parts  = 1;
    static constexpr size_t  size     = sizeof(Block);
};

// Q4_K and Q5_K: a scale and a minimum for 32 values
template <typename Block, ggml_type type>
struct OpenedWeights : BlockWeights<Block, type, 0, true> {
    using Opened = OpenBlock<Block>;

    DFLASH2_INLINE static Opened open(const char * row, int64_t i) {
        const auto *  block = (const Block *) row + i;
        const SixBits bits(block->scales);
        return { block, twice_eight_shorts(bits.scales), all(block->data.data.d),
                 multiply(eight_floats(bits.mins), all(negative_f16(block->data.data.dmin))) };
    }

    DFLASH2_INLINE static Bytes low_halves(const Opened & open, int part) {
        return low_bits(shift_right(load_bytes(open.block->qs + part / 2 * 32), part % 2 * 4), 4);
    }

    // ints: what was summed over the block
    DFLASH2_INLINE static Floats add_block(Floats sum, Bytes ints, const Opened & open, const QuantisedBlock & chunk) {
        sum = multiply_add(open.mins, load_floats(chunk.sum), sum);
        return multiply_add(to_floats(ints), multiply(open.scale, load_floats(chunk.scale)), sum);
    }
};

struct Q4_K : OpenedWeights<block_q4_K, GGML_TYPE_Q4_K> {
    template <int part>
    DFLASH2_INLINE static Bytes load(const Opened & open) {
        return low_halves(open, part);
    }
};

struct Q5_K : OpenedWeights<block_q5_K, GGML_TYPE_Q5_K> {
    template <int part>
    DFLASH2_INLINE static Bytes load(const Opened & open) {
        return join(low_halves(open, part), low_bits(shift_right(load_bytes(open.block->qh), part), 1));
    }
};

struct Q6_K : BlockWeights<block_q6_K, GGML_TYPE_Q6_K, 32, false> {
    DFLASH2_INLINE static Opened open(const char * row, int64_t i) {
        const auto * block = (const block_q6_K *) row + i;
        return { block, even_and_odd_shorts(block->scales), all(block->d), Floats{} };
    }

    template <int part>
    DFLASH2_INLINE static Bytes load(const Opened & open) {
        constexpr int half    = part / 4;
        constexpr int quarter = part % 4;
        const Bytes   low  = shift_right(load_bytes(open.block->ql + 64 * half + 32 * (quarter % 2)), quarter / 2 * 4);
        const Bytes   high = shift_right(load_bytes(open.block->qh + 32 * half), 2 * quarter);
        return join(low_bits(low, 4), low_bits(high, 2));
    }

    // ints: what was summed over the block, the offset not yet taken off
    DFLASH2_INLINE static Floats add_block(Floats sum, Bytes ints, const Opened & open, const Chunk & chunk) {
        const Bytes too_much = multiply(dot_shorts(open.scales, load_bytes(chunk.pairs)), offset);
        return multiply_add(to_floats(subtract(ints, too_much)), multiply(open.scale, load_floats(chunk.scale)), sum);
    }
};
#endif

template <ggml_type type_, int64_t few_>
struct FloatWeights {
    using Chunk                         = FloatChunk;
    static constexpr ggml_type type     = type_;
    static constexpr ggml_type rounded  = type_;
    static constexpr int64_t   few      = few_;
    static constexpr int64_t   n_values = LANES;
    static constexpr int       n_parts  = 1;
    static constexpr size_t    size     = LANES * sizeof(uint16_t);

    DFLASH2_INLINE static const char * open(const char * row, int64_t i) { return row + i * size; }

    template <int part>
    DFLASH2_INLINE static Floats load(const char * p) {
        return type == GGML_TYPE_F16 ? widen_f16(p) : widen_bf16(p);
    }
};

using F16  = FloatWeights<GGML_TYPE_F16, DFLASH2_X86 == 512 ? 512 : 16>;
using BF16 = FloatWeights<GGML_TYPE_BF16, 8>;

// Block i of a piece of rounded activations
struct RoundedBlock {
    const int8_t * x;
    float          scale;
};

template <ggml_type rounded>
RoundedBlock block_of(const void * piece, int64_t i) {
    if constexpr (rounded == GGML_TYPE_Q8_K) {
        const auto * block = (const block_q8_K *) piece;
        return { block->qs + i * BLOCK_VALUES, block->d };
    } else if constexpr (rounded == GGML_TYPE_Q8_1) {
        const auto * block = (const block_q8_1 *) piece + i;
        return { block->qs, GGML_CPU_FP16_TO_FP32(block->data.data.d) };
    } else {
        const auto * block = (const block_q8_0 *) piece + i;
        return { block->qs, GGML_CPU_FP16_TO_FP32(block->d) };
    }
}

// The chunk of n values from value `first` of a piece on, zeros behind them
template <typename W>
void fill(const void * piece, int64_t first, int64_t n, QuantisedChunk & chunk) {
    chunk = {};
    for (int64_t i = 0; i < n; i += BLOCK_VALUES) {
        const RoundedBlock block = block_of<W::rounded>(piece, (first + i) / BLOCK_VALUES);
        std::copy_n(block.x, BLOCK_VALUES, chunk.x + i);
        std::fill_n(chunk.scale + i / 4, BLOCK_VALUES / 4, block.scale);
    }
    const Bytes values = load_bytes(chunk.x);
    if constexpr (W::has_min) {
        store_floats(chunk.sum, multiply(load_floats(chunk.scale), to_floats(dot(Bytes{}, all_bytes(1), values))));
    } else if constexpr (W::offset != 0) {
        store_bytes(chunk.bias, negative(dot(Bytes{}, all_bytes(W::offset), values)));
    }
}

template <typename W>
void fill(const void * piece, int64_t /* first */, int64_t /* n */, QuantisedBlock & chunk) {
    const auto * block = (const block_q8_K *) piece;
    if (block->d == 0) {  // then it has no sums
        chunk = {};
        return;
    }
    std::copy_n(block->qs, QK_K, chunk.x);
    std::fill_n(chunk.scale, LANES, block->d);
    for (int i = 0; i < QK_K / 32; ++i) {
        if constexpr (W::has_min) {
            chunk.sum[i] = block->d * (float) (block->bsums[2 * i] + block->bsums[2 * i + 1]);
        } else {
            chunk.pairs[i]             = block->bsums[2 * i];
            chunk.pairs[QK_K / 32 + i] = block->bsums[2 * i + 1];
        }
    }
}

template <typename W>
void fill(const void * piece, int64_t first, int64_t n, FloatChunk & chunk) {
    const uint16_t * values        = (const uint16_t *) piece + first;
    uint16_t         padded[LANES] = {};
    if (n < LANES) {
        std::copy_n(values, n, padded);
        values = padded;
    }
    store_floats(chunk.x, W::template load<0>((const char *) values));
}

// Activations as they are in registers. Held before they get here: GCC leaves a member that is held in memory
struct QuantisedValues {
    Bytes  x;
    Floats scale;
    Bytes  bias;
    Floats sum;
};

template <typename W>
DFLASH2_INLINE QuantisedValues load_values(const QuantisedChunk & chunk) {
    Bytes  x     = load_bytes(chunk.x);
    Floats scale = load_floats(chunk.scale);
    DFLASH2_HOLD(x);
    DFLASH2_HOLD(scale);
    if constexpr (W::has_min) {
        Floats sum = load_floats(chunk.sum);
        DFLASH2_HOLD(sum);
        return { x, scale, Bytes{}, sum };
    } else if constexpr (W::offset != 0) {
        Bytes bias = load_bytes(chunk.bias);
        DFLASH2_HOLD(bias);
        return { x, scale, bias, Floats{} };
    } else {
        return { x, scale, Bytes{}, Floats{} };
    }
}

template <typename W>
DFLASH2_INLINE Floats load_values(const FloatChunk & chunk) {
    Floats values = load_floats(chunk.x);
    DFLASH2_HOLD(values);
    return values;
}

template <typename W>
DFLASH2_INLINE Floats add_products(Floats sum, const Quantised & w, const QuantisedValues & values) {
    const Floats ints  = to_floats(W::products(values.bias, w.q, values.x));
    const Floats scale = multiply(w.scale, values.scale);
    if constexpr (W::has_min) {
        sum = multiply_add(w.min, values.sum, sum);
    }
    return multiply_add(ints, scale, sum);
}

template <typename W>
DFLASH2_INLINE Floats add_products(Floats sum, Floats w, Floats values) {
    return multiply_add(w, values, sum);
}

}  // namespace
