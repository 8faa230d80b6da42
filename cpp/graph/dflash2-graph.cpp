#include "dflash2-graph.h"

#include "ggml-dflash2.h"
#include "llama-context.h"
#include "llama-dflash2.h"
#include "llama-graph.h"
#include "llama-model.h"

namespace {

bool fused(const llm_graph_context & graph) {
    // the graph that finds out is the fused one
    return graph.cparams.dflash2 != LLAMA_DFLASH2_COMPOSED;
}

int64_t block_rows(const llm_graph_context & graph) {
    return graph.n_tokens / graph.ubatch.n_seqs_unq;
}

}  // namespace

ggml_tensor * dflash2_build_conv(const llm_graph_context & graph,
                                 ggml_tensor *             hidden,
                                 ggml_tensor *             dynamic,
                                 ggml_tensor *             base,
                                 ggml_tensor *             residual,
                                 int                       side) {
    return (fused(graph) ? ggml_dflash2_conv : ggml_dflash2_conv_composed)(graph.ctx0, hidden, dynamic, base, residual,
                                                                           side, (int) block_rows(graph));
}

ggml_tensor * dflash2_slot_rows(const llm_graph_context & graph, ggml_tensor * hidden) {
    const int64_t n_rows   = block_rows(graph);
    const int64_t n_blocks = graph.ubatch.n_seqs_unq;
    if (n_rows < 2) {
        ggml_build_forward_expand(graph.gf, hidden);
        return nullptr;
    }
    ggml_tensor * slots = ggml_view_3d(graph.ctx0, hidden, hidden->ne[0], n_rows - 1, n_blocks, hidden->nb[1],
                                       n_rows * hidden->nb[1], hidden->nb[1]);
    if (n_blocks > 1) {
        slots = ggml_cont(graph.ctx0, slots);
    }
    return ggml_reshape_2d(graph.ctx0, slots, hidden->ne[0], (n_rows - 1) * n_blocks);
}

void dflash2_build_selector(const llm_graph_context & graph,
                            const llama_model &       model,
                            ggml_tensor *             logits,
                            ggml_tensor *             slots,
                            ggml_tensor *             tokens) {
    const auto &  hparams = graph.hparams;
    const int     n_cand  = model.dflash_selector_hidden ? (int) hparams.dflash_selector_top_k : 1;
    ggml_tensor * ids = (fused(graph) ? ggml_dflash2_topk : ggml_dflash2_topk_composed)(graph.ctx0, logits, n_cand,
                                                                                        graph.cparams.dflash2_n_vocab);
    graph.cb(ids, "dflash2_ids", -1);
    ggml_set_output(ids);
    ggml_build_forward_expand(graph.gf, ids);
    graph.res->t_dflash2_ids = ids;
    if (!model.dflash_selector_hidden) {
        return;
    }

    const int64_t n_rows  = block_rows(graph);
    ggml_tensor * anchors = ggml_view_2d(graph.ctx0, tokens, 1, graph.ubatch.n_seqs_unq, n_rows * tokens->nb[0], 0);
    ggml_tensor * gate    = graph.build_lora_mm(model.dflash_selector_hidden, slots);
    ggml_tensor * scores  = (fused(graph) ? ggml_dflash2_score : ggml_dflash2_score_composed)(
        graph.ctx0, logits, ids, gate, model.dflash_selector_prev, model.dflash_selector_next, anchors,
        (int) n_rows - 1, hparams.f_logit_scale, hparams.f_final_logit_softcapping);
    graph.cb(scores, "dflash2_scores", -1);
    ggml_set_output(scores);
    ggml_build_forward_expand(graph.gf, scores);
    graph.res->t_dflash2_scores = scores;
}

llama_dflash2 llama_get_dflash2(const llama_context * ctx) {
    return (llama_dflash2) ctx->get_cparams().dflash2;
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
