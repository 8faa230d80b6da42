// What the encoders hand to the kernels, and the sizes that both must agree on. nb_* is the stride of a row in bytes.

// Not #pragma once: this is also the head of the text that Metal compiles, where it would be a warning, and ggml-metal
// takes no library with one.
#ifndef DFLASH2_KARGS_H
#define DFLASH2_KARGS_H

#ifdef __METAL_VERSION__
#include <metal_stdlib>
using namespace metal;
#else
#include <cstdint>
#endif

typedef struct {
    int32_t  n_channels;
    int32_t  n_taps;
    int32_t  n_groups;
    int32_t  group_size;
    int32_t  side;
    int32_t  n_block_rows;
    int32_t  has_residual;
    uint64_t nb_x;
    uint64_t nb_coeff;
    uint64_t nb_residual;
} ggml_metal_kargs_dflash2_conv;

typedef struct {
    int32_t  n;  // logits of a row; after the first stage candidates
    int32_t  k;
    int32_t  n_lists;  // of k candidates each, that a stage leaves of a row
    uint64_t nb_logits;
} ggml_metal_kargs_dflash2_topk;

typedef struct {
    int32_t  k;
    int32_t  rank;
    int32_t  n_slots;
    float    multiplier;
    float    softcap;
    uint64_t nb_logits;
    uint64_t nb_gate;
    uint64_t nb_table;
    uint64_t nb_anchors;
} ggml_metal_kargs_dflash2_score;

typedef struct {
    uint32_t key;  // the logit as an integer: see dflash2_key
    uint32_t id;
} ggml_metal_dflash2_candidate;

enum {
    DFLASH2_SIMD_WIDTH = 32,
    DFLASH2_N_THREADS  = 256,  // of a threadgroup; at most for score

    // What a thread of topk holds in registers. 16: 64 lists of 64 candidates are merged in one go.
    DFLASH2_TOPK_HELD  = 16,
    DFLASH2_TOPK_CHUNK = DFLASH2_TOPK_HELD * DFLASH2_N_THREADS,

    DFLASH2_SCORE_TILE   = 32,  // of the rank; a block of the quantized types
    DFLASH2_SCORE_STRIDE = 33,  // odd, so that threads that read the same column do not meet in a memory bank
};

#endif
