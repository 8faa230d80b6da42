#pragma once

#include <cstdint>

// The parts of a DFlash 2 drafter's graph that are built on the ops of ggml-dflash2.h, fused or composed as
// cparams.dflash2 says. The tensors are those of upstream's graph in src/models/dflash.cpp.

struct ggml_backend_sched;
struct ggml_cgraph;
struct ggml_tensor;
struct llama_model;
struct llm_graph_context;

// What LLAMA_DFLASH2_AUTO comes to, for a graph that was built with it and split by `sched`
int32_t dflash2_resolve(ggml_backend_sched * sched, ggml_cgraph * graph);

// hidden: [n_embd, tokens], dynamic: the projection's output, base: [n_embd, taps, 2], residual: null or [n_embd, tokens]
ggml_tensor * dflash2_build_conv(const llm_graph_context & graph,
                                 ggml_tensor *             hidden,
                                 ggml_tensor *             dynamic,
                                 ggml_tensor *             base,
                                 ggml_tensor *             residual,
                                 int                       side);

// The rows of `hidden`, [n_embd, tokens], that are slots, for a product with `head`: [n_embd, slots of all blocks], and
// zeros after them where that makes the product faster. Null when the blocks have none.
// head: the model's; cparams.dflash2_head takes its place
ggml_tensor * dflash2_slot_rows(const llm_graph_context & graph, ggml_tensor * hidden, ggml_tensor *& head);

// Candidates and scores as outputs of the graph; of DFlash 1, which has no selector, the best candidate alone.
// logits: [n_vocab, rows] of the head, not transformed yet; slots: [n_embd, rows] of dflash2_slot_rows(); tokens: ids of
// the blocks
void dflash2_build_selector(const llm_graph_context & graph,
                            const llama_model &       model,
                            ggml_tensor *             logits,
                            ggml_tensor *             slots,
                            ggml_tensor *             tokens);
