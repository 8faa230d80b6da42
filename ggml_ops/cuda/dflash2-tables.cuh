#pragma once

// Include after the device's own header (common.cuh), which declares the blocks of the quantized types.

// Value i of a row of a table, in F32. A thread reads single values, so what neighbours share (scales) comes from L1.
// The layouts are those of ggml-common.h.
template <ggml_type type>
static __device__ __forceinline__ float dflash2_table_value(const void * row, int i);

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_F32>(const void * row, int i) {
    return ((const float *) row)[i];
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_F16>(const void * row, int i) {
    return __half2float(((const half *) row)[i]);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_BF16>(const void * row, int i) {
    return __uint_as_float((uint32_t) ((const uint16_t *) row)[i] << 16);
}

// Blocks of 32: the low nibbles are the first 16 values, the high ones the last 16.
static __device__ __forceinline__ int dflash2_nibble(const uint8_t * qs, int j) {
    return qs[j % 16] >> (j / 16 * 4) & 0xF;
}

static __device__ __forceinline__ int dflash2_bit(const uint8_t * bits, int j) {
    return bits[j / 8] >> (j % 8) & 1;
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q4_0>(const void * row, int i) {
    const block_q4_0 & block = ((const block_q4_0 *) row)[i / QK4_0];
    return __half2float(block.d) * (dflash2_nibble(block.qs, i % QK4_0) - 8);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q4_1>(const void * row, int i) {
    const block_q4_1 & block = ((const block_q4_1 *) row)[i / QK4_1];
    return __low2float(block.dm) * dflash2_nibble(block.qs, i % QK4_1) + __high2float(block.dm);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q5_0>(const void * row, int i) {
    const block_q5_0 & block = ((const block_q5_0 *) row)[i / QK5_0];
    const int          q     = dflash2_nibble(block.qs, i % QK5_0) | dflash2_bit(block.qh, i % QK5_0) << 4;
    return __half2float(block.d) * (q - 16);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q5_1>(const void * row, int i) {
    const block_q5_1 & block = ((const block_q5_1 *) row)[i / QK5_1];
    const int          q     = dflash2_nibble(block.qs, i % QK5_1) | dflash2_bit(block.qh, i % QK5_1) << 4;
    return __low2float(block.dm) * q + __high2float(block.dm);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q8_0>(const void * row, int i) {
    const block_q8_0 & block = ((const block_q8_0 *) row)[i / QK8_0];
    return __half2float(block.d) * block.qs[i % QK8_0];
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_IQ4_NL>(const void * row, int i) {
    const block_iq4_nl & block = ((const block_iq4_nl *) row)[i / QK4_NL];
    return __half2float(block.d) * kvalues_iq4nl[dflash2_nibble(block.qs, i % QK4_NL)];
}

// Blocks of 256 in runs of 32, whose quants lie in bit planes: run j of a half (2 bits) or of a quarter (4 bits) is
// plane j.

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q2_K>(const void * row, int i) {
    const block_q2_K & block = ((const block_q2_K *) row)[i / QK_K];
    const int          j     = i % QK_K;
    const int          q     = block.qs[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3;
    const int          scale = block.scales[j / 16];
    return __low2float(block.dm) * (scale & 0xF) * q - __high2float(block.dm) * (scale >> 4);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q3_K>(const void * row, int i) {
    const block_q3_K & block = ((const block_q3_K *) row)[i / QK_K];
    const int          j     = i % QK_K;
    const int          s     = j / 16;
    const int          low   = block.scales[s % 8] >> (s / 8 * 4) & 0xF;
    const int          scale = low | (block.scales[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
    const int          high  = block.hmask[j % 32] >> (j / 32) & 1;
    const int          q     = block.qs[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3;
    return __half2float(block.d) * (scale - 32) * (q + 4 * high - 4);
}

// Scale and minimum of run s, 6 bits each: of runs 0 to 3 in whole bytes, of runs 4 to 7 as nibbles and what is left
// above.
static __device__ __forceinline__ int dflash2_k_scale(const uint8_t * scales, int s) {
    return s < 4 ? scales[s] & 63 : (scales[s + 4] & 0xF) | scales[s - 4] >> 6 << 4;
}

static __device__ __forceinline__ int dflash2_k_minimum(const uint8_t * scales, int s) {
    return s < 4 ? scales[s + 4] & 63 : scales[s + 4] >> 4 | scales[s] >> 6 << 4;
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q4_K>(const void * row, int i) {
    const block_q4_K & block = ((const block_q4_K *) row)[i / QK_K];
    const int          j     = i % QK_K;
    const int          q     = block.qs[j / 64 * 32 + j % 32] >> (j / 32 % 2 * 4) & 0xF;
    return __low2float(block.dm) * dflash2_k_scale(block.scales, j / 32) * q -
           __high2float(block.dm) * dflash2_k_minimum(block.scales, j / 32);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q5_K>(const void * row, int i) {
    const block_q5_K & block = ((const block_q5_K *) row)[i / QK_K];
    const int          j     = i % QK_K;
    const int          low   = block.qs[j / 64 * 32 + j % 32] >> (j / 32 % 2 * 4) & 0xF;
    const int          q     = low | (block.qh[j % 32] >> (j / 32) & 1) << 4;
    return __low2float(block.dm) * dflash2_k_scale(block.scales, j / 32) * q -
           __high2float(block.dm) * dflash2_k_minimum(block.scales, j / 32);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_Q6_K>(const void * row, int i) {
    const block_q6_K & block = ((const block_q6_K *) row)[i / QK_K];
    const int          j     = i % QK_K;
    const int          low   = block.ql[j / 128 * 64 + j % 64] >> (j / 64 % 2 * 4) & 0xF;
    const int          high  = block.qh[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3;
    return __half2float(block.d) * block.scales[j / 16] * ((low | high << 4) - 32);
}

template <>
__device__ __forceinline__ float dflash2_table_value<GGML_TYPE_IQ4_XS>(const void * row, int i) {
    const block_iq4_xs & block = ((const block_iq4_xs *) row)[i / QK_K];
    const int            s     = i % QK_K / 32;
    const int            scale = (block.scales_l[s / 2] >> (s % 2 * 4) & 0xF) | (block.scales_h >> (2 * s) & 3) << 4;
    return __half2float(block.d) * (scale - 32) * kvalues_iq4nl[dflash2_nibble(block.qs + 16 * s, i % 32)];
}
