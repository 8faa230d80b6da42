#include "ggml-dflash2.h"

#include "ggml-backend.h"
#include "ggml-impl.h"

#include <algorithm>

// A constructor called with shapes that break the contract: names the op, what is wrong of it and what was expected
#define DFLASH2_EXPECT(op, what, found, expected)                                                                      \
    do {                                                                                                               \
        const long long found_ = (long long) (found), expected_ = (long long) (expected);                              \
        if (found_ != expected_) {                                                                                     \
            GGML_ABORT("dflash2_%s: %s is %lld, expected %lld", op, what, found_, expected_);                          \
        }                                                                                                              \
    } while (0)

#define DFLASH2_RANGE(op, what, found, lowest, highest)                                                                \
    do {                                                                                                               \
        const long long found_ = (long long) (found), lowest_ = (long long) (lowest),                                  \
                        highest_ = (long long) (highest);                                                              \
        if (found_ < lowest_ || found_ > highest_) {                                                                   \
            GGML_ABORT("dflash2_%s: %s is %lld, expected %lld to %lld", op, what, found_, lowest_, highest_);          \
        }                                                                                                              \
    } while (0)

#define DFLASH2_F32_ROWS(op, t)                                                                                        \
    do {                                                                                                               \
        DFLASH2_EXPECT(op, #t " type", (t)->type, GGML_TYPE_F32);                                                      \
        DFLASH2_EXPECT(op, #t " nb[0]", (t)->nb[0], sizeof(float));                                                    \
        DFLASH2_EXPECT(op, #t " ne[2] * ne[3]", (t)->ne[2] * (t)->ne[3], 1);                                           \
    } while (0)

namespace {

void check_conv(const ggml_tensor * x,
                const ggml_tensor * coeff,
                const ggml_tensor * base,
                const ggml_tensor * residual,
                int                 side,
                int                 n_block_rows) {
    DFLASH2_F32_ROWS("conv", x);
    DFLASH2_F32_ROWS("conv", coeff);
    DFLASH2_EXPECT("conv", "base type", base->type, GGML_TYPE_F32);
    DFLASH2_EXPECT("conv", "base contiguous", ggml_is_contiguous(base), 1);
    DFLASH2_EXPECT("conv", "base ne[0]", base->ne[0], x->ne[0]);
    DFLASH2_EXPECT("conv", "base ne[2]", base->ne[2], 2);
    DFLASH2_EXPECT("conv", "base ne[3]", base->ne[3], 1);
    DFLASH2_EXPECT("conv", "coeff ne[1]", coeff->ne[1], x->ne[1]);
    DFLASH2_RANGE("conv", "side", side, 0, 1);
    DFLASH2_RANGE("conv", "n_block_rows", n_block_rows, 1, x->ne[1]);
    DFLASH2_EXPECT("conv", "x ne[1] % n_block_rows", x->ne[1] % n_block_rows, 0);

    const int64_t n_coeff = 2 * base->ne[1];
    DFLASH2_RANGE("conv", "coeff ne[0]", coeff->ne[0], n_coeff, n_coeff * x->ne[0]);
    DFLASH2_EXPECT("conv", "coeff ne[0] % (2 * base ne[1])", coeff->ne[0] % n_coeff, 0);
    DFLASH2_EXPECT("conv", "x ne[0] % groups of coeff ne[0]", x->ne[0] % (coeff->ne[0] / n_coeff), 0);
    if (residual) {
        DFLASH2_F32_ROWS("conv", residual);
        DFLASH2_EXPECT("conv", "residual ne[0]", residual->ne[0], x->ne[0]);
        DFLASH2_EXPECT("conv", "residual ne[1]", residual->ne[1], x->ne[1]);
    }
}

void check_topk(const ggml_tensor * logits, int k, int n_vocab) {
    DFLASH2_F32_ROWS("topk", logits);
    DFLASH2_RANGE("topk", "n_vocab", n_vocab, 1, logits->ne[0]);
    DFLASH2_RANGE("topk", "k", k, 1, std::min(n_vocab, GGML_DFLASH2_MAX_CANDIDATES));
}

bool is_readable(ggml_type type) {
    return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float;
}

void check_score(const ggml_tensor * logits,
                 const ggml_tensor * ids,
                 const ggml_tensor * gate,
                 const ggml_tensor * predecessor,
                 const ggml_tensor * successor,
                 const ggml_tensor * anchors,
                 int                 n_slots) {
    DFLASH2_F32_ROWS("score", logits);
    DFLASH2_F32_ROWS("score", gate);
    DFLASH2_EXPECT("score", "ids type", ids->type, GGML_TYPE_I32);
    DFLASH2_EXPECT("score", "ids contiguous", ggml_is_contiguous(ids), 1);
    DFLASH2_RANGE("score", "ids ne[0]", ids->ne[0], 1, GGML_DFLASH2_MAX_CANDIDATES);
    DFLASH2_EXPECT("score", "ids ne[1]", ids->ne[1], logits->ne[1]);
    DFLASH2_EXPECT("score", "ids ne[2] * ne[3]", ids->ne[2] * ids->ne[3], 1);
    DFLASH2_EXPECT("score", "gate ne[1]", gate->ne[1], logits->ne[1]);
    DFLASH2_EXPECT("score", "predecessor type F32 or with a conversion to it", is_readable(predecessor->type), 1);
    DFLASH2_EXPECT("score", "predecessor contiguous", ggml_is_contiguous(predecessor), 1);
    DFLASH2_EXPECT("score", "predecessor ne[0]", predecessor->ne[0], gate->ne[0]);
    DFLASH2_EXPECT("score", "predecessor ne[1]", predecessor->ne[1], logits->ne[0]);
    DFLASH2_EXPECT("score", "predecessor ne[2] * ne[3]", predecessor->ne[2] * predecessor->ne[3], 1);
    DFLASH2_EXPECT("score", "successor contiguous", ggml_is_contiguous(successor), 1);
    DFLASH2_EXPECT("score", "successor type F32 or with a conversion to it", is_readable(successor->type), 1);
    DFLASH2_EXPECT("score", "successor as predecessor", ggml_are_same_shape(successor, predecessor), 1);
    DFLASH2_EXPECT("score", "anchors type", anchors->type, GGML_TYPE_I32);
    DFLASH2_RANGE("score", "n_slots", n_slots, 1, logits->ne[1]);
    DFLASH2_EXPECT("score", "logits ne[1] % n_slots", logits->ne[1] % n_slots, 0);
    DFLASH2_EXPECT("score", "anchors elements", ggml_nelements(anchors), logits->ne[1] / n_slots);
    DFLASH2_EXPECT("score", "anchors ne[0] * ne[1]", anchors->ne[0] * anchors->ne[1], ggml_nelements(anchors));
    DFLASH2_RANGE("score", "anchors dimensions above 1", (anchors->ne[0] > 1) + (anchors->ne[1] > 1), 0, 1);
}

ggml_tensor * rows_of(ggml_context * ctx, ggml_tensor * table, ggml_tensor * ids) {
    return ggml_get_rows(ctx, table, ggml_reshape_1d(ctx, ids, ggml_nelements(ids)));
}

// [k, rows]: of each row of `values`, [n, rows], those that `ids`, [k, rows], name
ggml_tensor * gather(ggml_context * ctx, ggml_tensor * values, ggml_tensor * ids) {
    ggml_tensor * columns = ggml_reshape_3d(ctx, values, 1, values->ne[0], values->ne[1]);
    return ggml_reshape_2d(ctx, ggml_get_rows(ctx, columns, ids), ids->ne[0], ids->ne[1]);
}

ggml_tensor * dense(ggml_context * ctx, ggml_tensor * tensor) {
    return ggml_is_contiguous(tensor) ? tensor : ggml_cont(ctx, tensor);
}

}  // namespace

ggml_tensor * ggml_dflash2_conv(ggml_context * ctx,
                                ggml_tensor *  x,
                                ggml_tensor *  coeff,
                                ggml_tensor *  base,
                                ggml_tensor *  residual,
                                int            side,
                                int            n_block_rows) {
    check_conv(x, coeff, base, residual, side, n_block_rows);
    ggml_tensor * y = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1]);
    ggml_set_op_params_i32(y, 0, side);
    ggml_set_op_params_i32(y, 1, n_block_rows);
    y->op     = GGML_OP_DFLASH2_CONV;
    y->src[0] = x;
    y->src[1] = coeff;
    y->src[2] = base;
    y->src[3] = residual;
    return y;
}

ggml_tensor * ggml_dflash2_conv_composed(ggml_context * ctx,
                                         ggml_tensor *  x,
                                         ggml_tensor *  coeff,
                                         ggml_tensor *  base,
                                         ggml_tensor *  residual,
                                         int            side,
                                         int            n_block_rows) {
    check_conv(x, coeff, base, residual, side, n_block_rows);
    const int64_t H        = x->ne[0];
    const int64_t n_rows   = x->ne[1];
    const int64_t n_taps   = base->ne[1];
    const int64_t n_groups = coeff->ne[0] / (2 * n_taps);

    x               = dense(ctx, x);
    ggml_tensor * y = nullptr;
    // taps at or past the end of a block read what lies before its first row only
    for (int64_t tap = 0; tap < std::min<int64_t>(n_taps, n_block_rows); ++tap) {
        ggml_tensor * shifted = x;
        if (tap > 0) {
            ggml_tensor * blocks = ggml_view_3d(ctx, x, H, n_block_rows - tap, n_rows / n_block_rows, x->nb[1],
                                                n_block_rows * x->nb[1], 0);
            shifted = ggml_reshape_2d(ctx, ggml_pad_ext(ctx, blocks, 0, 0, (int) tap, 0, 0, 0, 0, 0), H, n_rows);
        }
        ggml_tensor * base_tap  = ggml_view_1d(ctx, base, H, side * base->nb[2] + tap * base->nb[1]);
        ggml_tensor * coeff_tap = ggml_view_3d(ctx, coeff, 1, n_groups, n_rows, coeff->nb[0], coeff->nb[1],
                                               (side * n_taps + tap) * n_groups * coeff->nb[0]);
        // a view of one number a row is no source of a repetition everywhere
        ggml_tensor * every  = ggml_repeat_4d(ctx, ggml_cont(ctx, coeff_tap), H / n_groups, n_groups, n_rows, 1);
        ggml_tensor * weight = ggml_add(ctx, ggml_reshape_2d(ctx, every, H, n_rows), base_tap);
        ggml_tensor * term   = ggml_mul(ctx, weight, shifted);
        y                    = y ? ggml_add(ctx, y, term) : term;
    }
    return residual ? ggml_add(ctx, y, residual) : y;
}

ggml_tensor * ggml_dflash2_topk(ggml_context * ctx, ggml_tensor * logits, int k, int n_vocab) {
    check_topk(logits, k, n_vocab);
    ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, k, logits->ne[1]);
    ggml_set_op_params_i32(ids, 0, k);
    ggml_set_op_params_i32(ids, 1, n_vocab);
    ids->op     = GGML_OP_DFLASH2_TOPK;
    ids->src[0] = logits;
    return ids;
}

ggml_tensor * ggml_dflash2_topk_composed(ggml_context * ctx, ggml_tensor * logits, int k, int n_vocab) {
    check_topk(logits, k, n_vocab);
    // ggml takes rows of another stride for rows of a whole tensor on some backends
    ggml_tensor * real =
        n_vocab == logits->ne[0] ? logits : ggml_view_2d(ctx, logits, n_vocab, logits->ne[1], logits->nb[1], 0);
    real = dense(ctx, real);

    ggml_tensor * ids = ggml_top_k(ctx, real, k);
    // in no order yet
    ggml_tensor * order = ggml_argsort(ctx, gather(ctx, real, ids), GGML_SORT_ORDER_DESC);
    return gather(ctx, ids, order);
}

ggml_tensor * ggml_dflash2_score(ggml_context * ctx,
                                 ggml_tensor *  logits,
                                 ggml_tensor *  ids,
                                 ggml_tensor *  gate,
                                 ggml_tensor *  predecessor,
                                 ggml_tensor *  successor,
                                 ggml_tensor *  anchors,
                                 int            n_slots,
                                 float          multiplier,
                                 float          softcap) {
    check_score(logits, ids, gate, predecessor, successor, anchors, n_slots);
    const int64_t k      = ids->ne[0];
    ggml_tensor * scores = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, k, k, n_slots, ids->ne[1] / n_slots);
    ggml_set_op_params_i32(scores, 0, n_slots);
    ggml_set_op_params_f32(scores, 1, multiplier);
    ggml_set_op_params_f32(scores, 2, softcap);
    scores->op     = GGML_OP_DFLASH2_SCORE;
    scores->src[0] = logits;
    scores->src[1] = ids;
    scores->src[2] = gate;
    scores->src[3] = predecessor;
    scores->src[4] = successor;
    scores->src[5] = anchors;
    return scores;
}

ggml_tensor * ggml_dflash2_score_composed(ggml_context * ctx,
                                          ggml_tensor *  logits,
                                          ggml_tensor *  ids,
                                          ggml_tensor *  gate,
                                          ggml_tensor *  predecessor,
                                          ggml_tensor *  successor,
                                          ggml_tensor *  anchors,
                                          int            n_slots,
                                          float          multiplier,
                                          float          softcap) {
    check_score(logits, ids, gate, predecessor, successor, anchors, n_slots);
    const int64_t k      = ids->ne[0];
    const int64_t r      = gate->ne[0];
    const int64_t n_seqs = ids->ne[1] / n_slots;

    ggml_tensor * unary = gather(ctx, dense(ctx, logits), ids);
    if (multiplier != 0.0f) {
        unary = ggml_scale(ctx, unary, multiplier);
    }
    if (softcap != 0.0f) {
        unary = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, unary, 1.0f / softcap)), softcap);
    }

    ggml_tensor * after = ggml_reshape_4d(ctx, rows_of(ctx, successor, ids), r, k, n_slots, n_seqs);
    gate                = ggml_reshape_4d(ctx, dense(ctx, gate), r, 1, n_slots, n_seqs);

    // [k, predecessors, slots, seqs] of `n` slots from `first` on, whose predecessors are the rows of `before`
    const auto score = [&](int64_t first, int64_t n, ggml_tensor * before) {
        ggml_tensor * gates =
            ggml_view_4d(ctx, gate, r, 1, n, n_seqs, gate->nb[1], gate->nb[2], gate->nb[3], first * gate->nb[2]);
        ggml_tensor * rows =
            ggml_view_4d(ctx, after, r, k, n, n_seqs, after->nb[1], after->nb[2], after->nb[3], first * after->nb[2]);
        return ggml_mul_mat(ctx, rows, ggml_mul(ctx, before, gates));
    };

    ggml_tensor * first = rows_of(ctx, predecessor, dense(ctx, anchors));
    ggml_tensor * all = ggml_repeat_4d(ctx, score(0, 1, ggml_reshape_4d(ctx, first, r, 1, 1, n_seqs)), k, k, 1, n_seqs);
    if (n_slots > 1) {
        ggml_tensor * leaders = ggml_view_3d(ctx, ids, k, n_slots - 1, n_seqs, ids->nb[1], n_slots * ids->nb[1], 0);
        ggml_tensor * before  = rows_of(ctx, predecessor, dense(ctx, leaders));
        all = ggml_concat(ctx, all, score(1, n_slots - 1, ggml_reshape_4d(ctx, before, r, k, n_slots - 1, n_seqs)), 2);
    }
    return ggml_add(ctx, all, ggml_reshape_4d(ctx, unary, k, 1, n_slots, n_seqs));
}

// the last of the parameters: ggml uses the first five
constexpr int OWN_KERNEL = GGML_MAX_OP_PARAMS / sizeof(int32_t) - 1;

void ggml_dflash2_own_kernel(ggml_tensor * node) {
    ggml_set_op_params_i32(node, OWN_KERNEL, 1);
}

void ggml_dflash2_own_kernels_in(ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_FLASH_ATTN_EXT || node->op == GGML_OP_MUL_MAT) {
            ggml_dflash2_own_kernel(node);
        }
    }
}

bool ggml_dflash2_wants_own_kernel(const ggml_tensor * node) {
    return ggml_get_op_params_i32(node, OWN_KERNEL) != 0;
}

bool ggml_dflash2_is_native(ggml_backend_sched_t sched, ggml_cgraph * graph, ggml_op op) {
    // an accelerator of the CPU, such as BLAS, has the same memory
    const auto on_cpu = [sched](ggml_tensor * tensor) {
        ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched, tensor);
        const auto     type =
            backend ? ggml_backend_dev_type(ggml_backend_get_device(backend)) : GGML_BACKEND_DEVICE_TYPE_GPU;
        return type == GGML_BACKEND_DEVICE_TYPE_CPU || type == GGML_BACKEND_DEVICE_TYPE_ACCEL;
    };
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        // a source that comes from another device is a copy by now, which belongs to no backend
        if (node->op == op && on_cpu(node) && !on_cpu(node->src[0])) {
            return false;
        }
    }
    return true;
}
