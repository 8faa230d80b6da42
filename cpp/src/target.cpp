#include "target.h"

#include "dflash2/errors.h"
#include "llama-dflash2.h"
#include "llama-ext.h"
#include "logging.h"
#include "process.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace dflash2 {

namespace {

size_t compute_bytes(const llama_context * context) {
    size_t bytes = 0;
    for (const auto & [type, data] : llama_get_memory_breakdown(context)) {
        bytes += data.compute;
    }
    return bytes;
}

}  // namespace

Target::Target(const EngineOptions & options,
               const GgufFile &      file,
               BackendParams &       backend,
               int32_t               n_draft,
               std::vector<int32_t>  taps) : taps_(std::move(taps)), tap_rows_(taps_.size()) {
    const FirstError errors;

    owned_model_.reset(llama_model_load_from_file(options.model.c_str(), backend.model_params(file)));
    model_ = owned_model_.get();
    if (!model_) {
        throw ModelLoadError("[load] llama.cpp cannot load " + options.model + ": " + errors.cause());
    }
    if (llama_model_has_encoder(model_) || !llama_model_has_decoder(model_)) {
        throw ModelLoadError("[load] " + options.model + " is no model that writes text from left to right");
    }

    const int64_t n_ctx = options.n_ctx > 0 ? options.n_ctx : llama_model_n_ctx_train(model_);
    if (n_ctx * options.n_parallel > (int64_t) UINT32_MAX / 2) {
        throw std::invalid_argument("[load] " + std::to_string(options.n_parallel) + " sequences of " +
                                    std::to_string(n_ctx) +
                                    " tokens are more than llama.cpp can count: lower n_ctx or n_parallel");
    }
    // The rows of one cycle of all sequences go through one decode. One more, because llama.cpp aborts when the rows
    // that a recurrent target may take back fill a micro-batch
    const int32_t n_rows = options.n_parallel * (n_draft + 1) + 1;

    llama_context_params params = backend.context_params();
    params.dflash2              = options.fused_ops == "upstream" ? LLAMA_DFLASH2_UPSTREAM : LLAMA_DFLASH2_TARGET;
    params.n_seq_max            = options.n_parallel;
    params.n_ctx                = (uint32_t) (std::max<int64_t>(n_ctx, n_rows) * options.n_parallel);
    params.n_batch              = std::max(options.n_batch, n_rows);
    params.n_ubatch             = std::min<uint32_t>(params.n_batch, std::max<uint32_t>(params.n_ubatch, n_rows));
    params.n_outputs_max        = n_rows;
    params.type_k               = backend.cache_type;
    params.type_v               = backend.cache_type;
    // A recurrent state is no list of keys to cut: one snapshot for each row that a cycle may take back
    params.n_rs_seq = n_draft;

    owned_context_.reset(llama_init_from_model(owned_model_.get(), params));
    context_ = owned_context_.get();
    if (!context_) {
        throw ModelLoadError("[load] no context of " + std::to_string(options.n_parallel) + " x " +
                             std::to_string(n_ctx) + " tokens for " + options.model + ": " + errors.cause());
    }
    if (!llama_get_memory(context_) || !llama_get_causal_attn(context_)) {
        throw ModelLoadError("[load] " + options.model + " is no model that writes text from left to right");
    }
    if (n_draft > 0 && has_state() && llama_n_rs_seq(context_) < (uint32_t) n_draft) {
        throw ModelMismatch("[load] the state of this recurrent target cannot be taken back after rejected tokens: "
                            "open it without a drafter");
    }
    // llama.cpp rounds the cache up; what was asked for is the limit, so that it does not depend on n_parallel
    n_ctx_ = (int32_t) std::min<int64_t>(n_ctx, llama_n_ctx_seq(context_));

    tap_layers();
}

Target::Target(llama_context * context, std::vector<int32_t> taps) :
    taps_(std::move(taps)), tap_rows_(taps_.size()), model_(llama_get_model(context)), context_(context),
    n_ctx_((int32_t) llama_n_ctx_seq(context)) {
    tap_layers();
}

void Target::tap_layers() {
    const size_t untapped = compute_bytes(context_);
    for (const int32_t tap : taps_) {
        llama_set_embeddings_layer_inp(context_, (uint32_t) tap, true);
    }
    warm_up();
    tapped_graphs_ = std::max(untapped, compute_bytes(context_)) - untapped;
}

void Target::reserve_rows(int32_t n_seqs, int32_t n_rows) {
    common_batch batch(context_);
    for (llama_seq_id seq = 0; seq < n_seqs; ++seq) {
        for (int32_t i = 0; i < n_rows; ++i) {
            batch.add(0, i, seq, true);
        }
    }
    decode(batch);
    clear();
    // there is one for each sequence anyway
    extra_rows_ = std::max<size_t>(n_seqs * n_rows, llama_n_seq_max(context_)) - llama_n_seq_max(context_);
}

size_t Target::feature_bytes() const {
    return tapped_graphs_ + (size_t) llama_n_batch(context_) * n_features() * sizeof(float);
}

size_t Target::row_bytes() const {
    // a CPU gives the memory of the graph, in which they are computed, when it is first written
    const size_t copies = llama_model_n_devices(model_) == 0 ? 2 : 1;
    return copies * extra_rows_ * n_vocab() * sizeof(float);
}

void Target::untap_layers() {
    for (const int32_t tap : taps_) {
        llama_set_embeddings_layer_inp(context_, (uint32_t) tap, false);
    }
}

// Shows at load what would fail at the first request
void Target::warm_up() {
    common_batch batch(context_);
    batch.add(0, 0, 0, true);
    try {
        decode(batch);
    } catch (const Error &) {
        throw;
    } catch (const std::exception & error) {
        char description[128];
        llama_model_desc(model_, description, sizeof(description));
        throw ModelMismatch(std::string("[load] a target of this architecture (") + description +
                            ") gives a drafter no hidden states: " + error.what());
    }
    clear();
}

void Target::decode(common_batch & batch) {
    process(context_, batch, "target");
    find_features();
}

void Target::find_features() {
    // each of these waits for the device, so not once for every row
    for (size_t i = 0; i < taps_.size(); ++i) {
        tap_rows_[i] = llama_get_embeddings_layer_inp(context_, (uint32_t) taps_[i]);
    }
}

const float * Target::logits(int32_t row) const {
    return llama_get_logits_ith(context_, row);
}

void Target::read_features(int32_t row, float * out) const {
    const size_t n = n_embd();
    for (const float * layer : tap_rows_) {
        std::memcpy(out, layer + row * n, n * sizeof(float));
        out += n;
    }
}

bool Target::trim(llama_seq_id seq, llama_pos p) {
    llama_memory_t memory = llama_get_memory(context_);
    if (llama_memory_seq_rm(memory, seq, p, -1)) {
        return true;
    }
    llama_memory_seq_rm(memory, seq, -1, -1);
    return false;
}

void Target::clear() {
    llama_memory_clear(llama_get_memory(context_), true);
}

bool Target::reaches(llama_seq_id seq, llama_pos p) const {
    llama_memory_t memory = llama_get_memory(context_);
    if (has_state()) {
        return llama_memory_seq_pos_max(memory, seq) == p - 1;
    }
    const llama_pos lowest = llama_memory_seq_pos_min(memory, seq);
    const int32_t   window = llama_model_n_swa(model_);
    return lowest >= 0 && (window == 0 || lowest <= std::max(0, p - window));
}

}  // namespace dflash2
