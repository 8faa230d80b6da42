#include "dflash2-graph.h"

#include "ggml-dflash2.h"
#include "llama-context.h"
#include "llama-dflash2.h"
#include "llama-graph.h"
#include "llama-model.h"

namespace {

bool fused(const llm_graph_context & graph, llama_dflash2 op) {
    return (graph.cparams.dflash2 & op) != 0;
}

int64_t block_rows(const llm_graph_context & graph) {
    return graph.n_tokens / graph.ubatch.n_seqs_unq;
}

int64_t slot_count(const llm_graph_context & graph) {
    return graph.n_tokens - graph.ubatch.n_seqs_unq;
}

// Its memory is read after the graph. The allocator frees that of a view with the tensor it views
void keep(ggml_tensor * tensor) {
    ggml_set_output(tensor);
    if (tensor->view_src) {
        ggml_set_output(tensor->view_src);
    }
}

bool on_cpu(const ggml_tensor * weight) {
    if (!weight->buffer) {
        return false;
    }
    // the plain buffers of the CPU say no device
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(weight->buffer));
    return !device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Rows with which a product of n rows is fastest. Where ours does not run, ggml's kernels for the CPU take rows of some types
// in tiles and what is left over one by one. Products of a head of 2560 x 65536 in ms, two cores with AVX-512, 1 to 8 rows:
//   Q4_0 as ggml lays it out anew   2.0  4.3  6.1  3.6  5.6  7.3  9.2  6.9
//   Q5_K                            3.3  7.0  8.8 11.1 13.4 15.8 18.3 12.8
// Others cost more with every row; what other CPUs do has not been measured.
int64_t fast_rows(const ggml_tensor * weight, int64_t n) {
    if (!on_cpu(weight)) {
        return n;
    }
    switch (weight->type) {
    case GGML_TYPE_Q4_0:
        return weight->extra && n % 4 >= 2 ? GGML_PAD(n, 4) : n;
    case GGML_TYPE_Q5_K:
        return n % 8 >= 5 ? GGML_PAD(n, 8) : n;
    default:
        return n;
    }
}

// `rows`, of which the first n matter, for a product with `weight`. Zeros, since the rows of the anchors lie between those
// of the slots
ggml_tensor * pad_rows(const llm_graph_context & graph, ggml_tensor * rows, int64_t n, const ggml_tensor * weight) {
    const auto n_more = (int) (fast_rows(weight, n) - rows->ne[1]);
    return n_more > 0 ? ggml_pad(graph.ctx0, rows, 0, n_more, 0, 0) : rows;
}

// The first n rows
ggml_tensor * first_rows(const llm_graph_context & graph, ggml_tensor * rows, int64_t n) {
    return ggml_view_2d(graph.ctx0, rows, rows->ne[0], n, rows->nb[1], 0);
}

}  // namespace

int32_t dflash2_resolve(ggml_backend_sched * sched, ggml_cgraph * graph) {
    int32_t mode = LLAMA_DFLASH2_COMPOSED;
    mode |= ggml_dflash2_is_native(sched, graph, GGML_OP_DFLASH2_CONV) ? LLAMA_DFLASH2_CONV : 0;
    mode |= ggml_dflash2_is_native(sched, graph, GGML_OP_DFLASH2_TOPK) ? LLAMA_DFLASH2_TOPK : 0;
    mode |= ggml_dflash2_is_native(sched, graph, GGML_OP_DFLASH2_SCORE) ? LLAMA_DFLASH2_SCORE : 0;
    return mode;
}

ggml_tensor * dflash2_build_conv(const llm_graph_context & graph,
                                 ggml_tensor *             hidden,
                                 ggml_tensor *             dynamic,
                                 ggml_tensor *             base,
                                 ggml_tensor *             residual,
                                 int                       side) {
    return (fused(graph, LLAMA_DFLASH2_CONV) ? ggml_dflash2_conv : ggml_dflash2_conv_composed)(
        graph.ctx0, hidden, dynamic, base, residual, side, (int) block_rows(graph));
}

ggml_tensor * dflash2_slot_rows(const llm_graph_context & graph, ggml_tensor * hidden, ggml_tensor *& head) {
    if (graph.cparams.dflash2_head) {
        head = graph.cparams.dflash2_head;
    }
    const int64_t n_rows   = block_rows(graph);
    const int64_t n_blocks = graph.ubatch.n_seqs_unq;
    const int64_t n_slots  = slot_count(graph);
    if (n_slots == 0) {
        ggml_build_forward_expand(graph.gf, hidden);
        return nullptr;
    }
    ggml_tensor * slots = ggml_view_3d(graph.ctx0, hidden, hidden->ne[0], n_rows - 1, n_blocks, hidden->nb[1],
                                       n_rows * hidden->nb[1], hidden->nb[1]);
    if (n_blocks > 1) {
        slots = ggml_cont(graph.ctx0, slots);
    }
    return pad_rows(graph, ggml_reshape_2d(graph.ctx0, slots, hidden->ne[0], n_slots), n_slots, head);
}

void dflash2_build_selector(const llm_graph_context & graph,
                            const llama_model &       model,
                            ggml_tensor *             logits,
                            ggml_tensor *             slots,
                            ggml_tensor *             tokens) {
    const auto &  hparams = graph.hparams;
    const int64_t n_slots = slot_count(graph);
    logits                = first_rows(graph, logits, n_slots);

    const int     n_cand = model.dflash_selector_hidden ? (int) hparams.dflash_selector_top_k : 1;
    ggml_tensor * ids    = (fused(graph, LLAMA_DFLASH2_TOPK) ? ggml_dflash2_topk : ggml_dflash2_topk_composed)(
        graph.ctx0, logits, n_cand, graph.cparams.dflash2_n_vocab);
    graph.cb(ids, "dflash2_ids", -1);
    keep(ids);
    ggml_build_forward_expand(graph.gf, ids);
    graph.res->t_dflash2_ids = ids;
    if (!model.dflash_selector_hidden) {
        return;
    }

    const int64_t n_rows  = block_rows(graph);
    ggml_tensor * anchors = ggml_view_2d(graph.ctx0, tokens, 1, graph.ubatch.n_seqs_unq, n_rows * tokens->nb[0], 0);
    // the head's padding goes: rows cost, where another type wants none
    slots                = pad_rows(graph, first_rows(graph, slots, n_slots), n_slots, model.dflash_selector_hidden);
    ggml_tensor * gate   = graph.build_lora_mm(model.dflash_selector_hidden, slots);
    ggml_tensor * scores = (fused(graph, LLAMA_DFLASH2_SCORE) ? ggml_dflash2_score : ggml_dflash2_score_composed)(
        graph.ctx0, logits, ids, first_rows(graph, gate, n_slots), model.dflash_selector_prev,
        model.dflash_selector_next, anchors, (int) n_rows - 1, hparams.f_logit_scale,
        hparams.f_final_logit_softcapping);
    graph.cb(scores, "dflash2_scores", -1);
    keep(scores);
    ggml_build_forward_expand(graph.gf, scores);
    graph.res->t_dflash2_scores = scores;
}

int32_t llama_get_dflash2(const llama_context * ctx) {
    return ctx->get_cparams().dflash2;
}

const ggml_tensor * llama_dflash2_head(const llama_model * drafter, const llama_model * target) {
    return drafter->output || target->output_s ? nullptr : target->output;
}

bool llama_read_dflash2(llama_context * ctx, int32_t * ids, size_t n_ids, float * scores, size_t n_scores) {
    ctx->synchronize();
    const llm_graph_result * result = ctx->get_gf_res_active();
    const auto               read   = [](ggml_tensor * tensor, void * data, size_t n) {
        if (!tensor || ggml_nelements(tensor) != (int64_t) n) {
            return n == 0;
        }
        ggml_backend_tensor_get(tensor, data, 0, ggml_nbytes(tensor));
        return true;
    };
    return result && read(result->t_dflash2_ids, ids, n_ids) && read(result->t_dflash2_scores, scores, n_scores);
}
