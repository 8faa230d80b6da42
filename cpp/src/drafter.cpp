#include "drafter.h"

#include "dflash2/errors.h"
#include "llama-ext.h"
#include "logging.h"
#include "process.h"

#include <algorithm>

namespace dflash2 {

Drafter::Drafter(const EngineOptions & options,
                 BackendParams &       backend,
                 const Target &        target,
                 const DrafterInfo &   info,
                 int32_t               depth) :
    info_(info), n_rows_(depth + 1), n_features_(target.n_features()), n_vocab_(target.n_vocab()) {
    const FirstError errors;

    model_.reset(llama_model_load_from_file(options.draft.c_str(), backend.model_params()));
    if (!model_) {
        throw ModelLoadError("[load] llama.cpp cannot load " + options.draft + ": " + errors.cause());
    }

    // A non-causal block must not be cut, and llama.cpp aborts when a call exceeds the micro-batch. Not larger than
    // needed: its graph reserves several vocabulary rows for each row of the micro-batch
    const uint32_t n_ubatch = std::max(128, options.n_parallel * n_rows_);

    llama_context_params params = backend.context_params();
    params.n_seq_max            = options.n_parallel;
    params.n_ctx                = llama_n_ctx(target.context());
    params.n_batch              = n_ubatch;
    params.n_ubatch             = n_ubatch;
    params.n_outputs_max        = n_ubatch;
    params.ctx_other            = target.context();
    // Quantized drafter caches lose acceptance and save little: a drafter has few layers
    params.type_k = backend.cache_type == GGML_TYPE_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    params.type_v = params.type_k;

    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) {
        throw ModelLoadError("[load] no drafter context of " + std::to_string(params.n_ctx) + " tokens for " +
                             options.draft + ": " + errors.cause());
    }
    llama_set_causal_attn(context_.get(), info.causal);
    if (info.n_cand > 0) {
        llama_set_embeddings_nextn(context_.get(), true, /*masked=*/false);
    }

    draft({ { 0, 0, info.mask_token } });
}

void Drafter::stage(llama_seq_id seq, llama_pos pos, const Target & target, int32_t row) {
    features_.resize(features_.size() + n_features_);
    target.read_features(row, features_.data() + features_.size() - n_features_);
    staged_.push_back({ seq, pos });
}

void Drafter::stage(llama_seq_id seq, llama_pos pos, const float * features) {
    features_.insert(features_.end(), features, features + n_features_);
    staged_.push_back({ seq, pos });
}

void Drafter::inject() {
    common_batch batch(context_.get());
    const auto   n_batch = (int32_t) llama_n_batch(context_.get());
    for (size_t i = 0; i < staged_.size(); ++i) {
        const llama_pos pos = staged_[i].pos;
        // temporal, height, width, unused: an M-RoPE drafter reads the first only
        const llama_pos sections[4] = { pos, pos, pos, 0 };
        batch.add_embd({ features_.data() + i * n_features_, 1, (size_t) n_features_ }, sections, staged_[i].seq,
                       false);
        if (batch.size() == n_batch || i + 1 == staged_.size()) {
            process(context_.get(), batch, "drafter");
            batch.clear();
        }
    }
    staged_.clear();
    features_.clear();
}

bool Drafter::fits(llama_pos pos) const {
    return pos + n_rows_ <= (llama_pos) llama_n_ctx_seq(context_.get());
}

std::vector<Lattice> Drafter::draft(const std::vector<Block> & blocks) {
    common_batch batch(context_.get());
    for (const Block & block : blocks) {
        for (int32_t i = 0; i < n_rows_; ++i) {
            // the selector's result leaves without outputs; DFlash 1 is read from the logits, whose rows are right only
            // when all are asked for, since llama.cpp's graph does not gather those that are
            const bool output = info_.n_cand == 0;
            batch.add(i == 0 ? block.anchor : info_.mask_token, block.pos + i, block.seq, output);
        }
    }
    process(context_.get(), batch, "drafter");

    std::vector<Lattice> lattices;
    for (size_t i = 0; i < blocks.size(); ++i) {
        lattices.push_back(info_.n_cand > 0 ? read_selector((int32_t) i) : read_argmax((int32_t) i));
        // keys and values of mask tokens must never be seen again
        trim(blocks[i].seq, blocks[i].pos);
    }
    return lattices;
}

// llama.cpp's composed graph packs a row of n_embd numbers for each row of the block: n_cand ids, then the scores
// [predecessor][candidate]
Lattice Drafter::read_selector(int32_t block) const {
    const int32_t k = info_.n_cand;
    Lattice       lattice;
    lattice.n_slots = n_rows_ - 1;
    lattice.n_cand  = k;

    const float * rows = llama_get_embeddings_nextn(context_.get());
    for (int32_t i = 1; i < n_rows_; ++i) {
        const float * row = rows + ((size_t) block * n_rows_ + i) * info_.n_embd;
        for (int32_t c = 0; c < k; ++c) {
            lattice.ids.push_back((Token) row[c]);
        }
        lattice.scores.insert(lattice.scores.end(), row + k, row + k + (size_t) k * k);
    }
    return lattice;
}

Lattice Drafter::read_argmax(int32_t block) const {
    Lattice lattice;
    lattice.n_slots = n_rows_ - 1;
    lattice.n_cand  = 1;
    lattice.scores.assign(lattice.n_slots, 0.0f);
    for (int32_t i = 1; i < n_rows_; ++i) {
        const float * logits = llama_get_logits_ith(context_.get(), block * n_rows_ + i);
        lattice.ids.push_back((Token) (std::max_element(logits, logits + n_vocab_) - logits));
    }
    return lattice;
}

bool Drafter::trim(llama_seq_id seq, llama_pos p) {
    return llama_memory_seq_rm(llama_get_memory(context_.get()), seq, p, -1);
}

void Drafter::clear() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    staged_.clear();
    features_.clear();
}

llama_pos Drafter::first_needed(int32_t n_prompt) const {
    return info_.all_sliding ? std::max(0, n_prompt - info_.window + 1) : 0;
}

bool Drafter::reaches(llama_seq_id seq, llama_pos p) const {
    llama_memory_t  memory = llama_get_memory(context_.get());
    const llama_pos lowest = llama_memory_seq_pos_min(memory, seq);
    const llama_pos needed = info_.window > 0 ? std::max(0, p - info_.window + 1) : 0;
    return lowest >= 0 && lowest <= needed && llama_memory_seq_pos_max(memory, seq) >= p - 1;
}

}  // namespace dflash2
