#pragma once

// The three ops of a DFlash 2 drafter that stock ggml composes of many nodes, each as one node (a real op) and composed
// of stock ops, for devices without them. Both forms take the same tensors and give the same result up to rounding.
//
// H: hidden size, B: rows per block, g: channels per group, G = H / g, T: taps, V: rows of the vocabulary, K: candidates,
// r: rank of the selector. Rows of several sequences lie behind one another: row = sequence * B + position in the block.
// Sizes are ne, dimension 0 first. "rows strided": dimension 0 is dense, the rest may be a view.
//
// A call with other shapes or types is an error of the program and ends it with a message that names op and dimension;
// what comes from a model file is refused before.

#include "ggml-backend.h"
#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_DFLASH2_MAX_CANDIDATES 64

// Dynamic convolution along a block, with the residual added when there is one:
//   y[c, row] = sum over t < T of (base[c, t, side] + coeff[(side * T + t) * G + c / g, row]) * x[c, row - t] + residual[c, row]
// where rows before the first of a block count as zero. In F32 from left to right; on the CPU every operation is rounded
// by itself, so that fused and composed give the same bits: the products that follow round to F16 or Q8_0, and there a
// last bit decides.
//   x         F32 [H, rows], rows strided; rows is a multiple of n_block_rows
//   coeff     F32 [2 * T * G, rows], rows strided
//   base      F32 [H, T, 2], contiguous
//   residual  F32 [H, rows], rows strided, or NULL
//   side      0: input, 1: output of the sublayer
// Returns F32 [H, rows], contiguous.
GGML_API struct ggml_tensor * ggml_dflash2_conv(struct ggml_context * ctx,
                                                struct ggml_tensor *  x,
                                                struct ggml_tensor *  coeff,
                                                struct ggml_tensor *  base,
                                                struct ggml_tensor *  residual,
                                                int                   side,
                                                int                   n_block_rows);

// The k greatest logits of each row, ordered by (logit descending, id ascending). NaN counts as -inf.
//   logits    F32 [V, rows], rows strided
//   k         1 .. GGML_DFLASH2_MAX_CANDIDATES, at most n_vocab
//   n_vocab   1 .. V; ids from there on are padding and never taken
// Returns I32 [k, rows], contiguous.
GGML_API struct ggml_tensor *
ggml_dflash2_topk(struct ggml_context * ctx, struct ggml_tensor * logits, int k, int n_vocab);

// Scores of every candidate of a slot after every candidate of the slot before it; the first slot follows the anchor:
//   S[c, p, slot, seq] = u(logits[id, row]) + sum over i < r of predecessor[i, before] * gate[i, row] * successor[i, id]
//   id = ids[c, row], before = slot > 0 ? ids[p, row - 1] : anchors[seq], row = seq * n_slots + slot
//   u(l) = m * l with m = multiplier (0: 1), then softcap * tanh(. / softcap) unless softcap is 0
// All of it in F32.
//   logits       F32 [V, rows], rows strided; rows = n_slots * sequences
//   ids          I32 [K, rows], contiguous; each in 0 .. V - 1
//   gate         F32 [r, rows], rows strided
//   predecessor  F32, F16, BF16 or quantized [r, V], contiguous
//   successor    likewise
//   anchors      I32 [sequences] or [1, sequences], strided; each in 0 .. V - 1
// Returns F32 [K candidates, K predecessors, n_slots, sequences], contiguous.
GGML_API struct ggml_tensor * ggml_dflash2_score(struct ggml_context * ctx,
                                                 struct ggml_tensor *  logits,
                                                 struct ggml_tensor *  ids,
                                                 struct ggml_tensor *  gate,
                                                 struct ggml_tensor *  predecessor,
                                                 struct ggml_tensor *  successor,
                                                 struct ggml_tensor *  anchors,
                                                 int                   n_slots,
                                                 float                 multiplier,
                                                 float                 softcap);

// The same three composed of stock ops. The order of candidates with equal logits, and what NaN does, is the backend's.
GGML_API struct ggml_tensor * ggml_dflash2_conv_composed(struct ggml_context * ctx,
                                                         struct ggml_tensor *  x,
                                                         struct ggml_tensor *  coeff,
                                                         struct ggml_tensor *  base,
                                                         struct ggml_tensor *  residual,
                                                         int                   side,
                                                         int                   n_block_rows);

GGML_API struct ggml_tensor *
ggml_dflash2_topk_composed(struct ggml_context * ctx, struct ggml_tensor * logits, int k, int n_vocab);

GGML_API struct ggml_tensor * ggml_dflash2_score_composed(struct ggml_context * ctx,
                                                          struct ggml_tensor *  logits,
                                                          struct ggml_tensor *  ids,
                                                          struct ggml_tensor *  gate,
                                                          struct ggml_tensor *  predecessor,
                                                          struct ggml_tensor *  successor,
                                                          struct ggml_tensor *  anchors,
                                                          int                   n_slots,
                                                          float                 multiplier,
                                                          float                 softcap);

// Asks a node of ggml_flash_attn_ext() or ggml_mul_mat(), or all of them in a graph, for our kernel on a CPU where that is the
// faster one. On other devices nothing changes. To be called before the graph is planned: they need memory of their own.
GGML_API void ggml_dflash2_own_kernel(struct ggml_tensor * node);
GGML_API void ggml_dflash2_own_kernels_in(struct ggml_cgraph * graph);
GGML_API bool ggml_dflash2_wants_own_kernel(const struct ggml_tensor * node);

// Whether every node of this op runs where its first source was computed: where a GPU lacks an op, the scheduler takes it
// to the CPU and back. The graph must have been split by `sched`.
GGML_API bool ggml_dflash2_is_native(ggml_backend_sched_t sched, struct ggml_cgraph * graph, enum ggml_op op);

// For kernels: the arguments of a node beside its sources.
//   conv:  src x, coeff, base, residual or NULL           int32 op_params: side, n_block_rows
//   topk:  src logits                                     int32 op_params: k, n_vocab
//   score: src logits, ids, gate, predecessor, successor, anchors
//                                                         int32 op_params: n_slots; float op_params[1], [2]: multiplier, softcap

#ifdef __cplusplus
}
#endif
