#pragma once

#include "backend.h"
#include "common.h"
#include "dflash2/engine.h"
#include "llama-cpp.h"

#include <cstdint>
#include <vector>

namespace dflash2 {

// The target model and its cache. Positions of a sequence are consecutive from 0.
class Target {
public:
    // file: the one that the options name. n_draft: most tokens a cycle verifies for one sequence, 0 without a drafter.
    // taps: layers whose input is read, 0-based + 1 as in DrafterInfo.
    // throws ModelLoadError, ModelMismatch when the target's graph has no tap at one of the layers,
    // std::invalid_argument for sizes that do not fit
    Target(const EngineOptions & options,
           const GgufFile &      file,
           BackendParams &       backend,
           int32_t               n_draft,
           std::vector<int32_t>  taps);
    // One that somebody else has opened and decodes with; it outlives this object. Empties its cache.
    // throws ModelMismatch as above
    Target(llama_context * context, std::vector<int32_t> taps);

    // Evaluates the rows of `batch` (at most n_batch()). throws Error, Interrupted
    void decode(common_batch & batch);

    // After a decode that did not go through decode(): points to the layers it has left
    void find_features();

    // Of the last decode. row: index in its batch, which asked for output; [n_vocab]
    const float * logits(int32_t row) const;
    // Of the last decode. Copies the tapped layers of a row to `out`, [n_taps * n_embd] in the order of the taps
    void read_features(int32_t row, float * out) const;

    // Evaluates n_rows rows of each of n_seqs sequences, which all give logits: what is allocated for so many, is there
    // from now on. Empties the cache. throws Error, Interrupted
    void reserve_rows(int32_t n_seqs, int32_t n_rows);
    // What reading the layers and so many rows adds to the buffers of its context
    size_t feature_bytes() const;
    size_t row_bytes() const;

    // No features are needed any more
    void untap_layers();

    // Forgets a sequence from position `p` on. False: the cache cannot go back there, and holds nothing of it now
    bool trim(llama_seq_id seq, llama_pos p);
    void clear();

    // Whether a sequence that holds positions 0 .. n - 1 still has what position p needs of them.
    bool reaches(llama_seq_id seq, llama_pos p) const;

    // Whether it has a recurrent state, which is no list of keys to cut
    bool has_state() const { return llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_); }

    const llama_model *          model() const { return model_; }
    llama_context *              context() const { return context_; }
    const llama_vocab *          vocab() const { return llama_model_get_vocab(model_); }
    int32_t                      n_ctx() const { return n_ctx_; }
    int32_t                      n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    int32_t                      n_embd() const { return llama_model_n_embd(model_); }
    int32_t                      n_features() const { return (int32_t) taps_.size() * n_embd(); }
    const std::vector<int32_t> & taps() const { return taps_; }

private:
    void tap_layers();
    void warm_up();

    std::vector<int32_t>       taps_;
    std::vector<const float *> tap_rows_;  // [taps] of the last decode
    llama_model_ptr            owned_model_;
    llama_context_ptr          owned_context_;
    const llama_model *        model_;
    llama_context *            context_;
    int32_t                    n_ctx_         = 0;
    size_t                     tapped_graphs_ = 0;  // bytes
    size_t                     extra_rows_    = 0;
};

}  // namespace dflash2
