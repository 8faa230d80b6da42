#include "drafter.h"

#include "dflash2/errors.h"
#include "heap.h"
#include "llama-dflash2.h"
#include "llama-ext.h"
#include "logging.h"
#include "process.h"

#include <algorithm>

namespace dflash2 {

namespace {

int32_t graph_of(const std::string & fused_ops) {
    if (fused_ops == "upstream") {
        return LLAMA_DFLASH2_UPSTREAM;
    }
    return fused_ops == "fused"    ? LLAMA_DFLASH2_FUSED :
           fused_ops == "composed" ? LLAMA_DFLASH2_COMPOSED :
                                     LLAMA_DFLASH2_AUTO;
}

// Ids that a drafter may take. The rest at the end pads the tables to a round size, and no tokenizer makes it
int32_t real_vocabulary(const llama_vocab * vocab, const DrafterInfo & info) {
    int32_t n = llama_vocab_n_tokens(vocab);
    while (n > 0 && (llama_vocab_get_attr(vocab, n - 1) & LLAMA_TOKEN_ATTR_UNUSED) != 0) {
        --n;
    }
    if (n < std::max(1, info.n_cand)) {
        throw ModelMismatch("[load] the drafter chooses among " + std::to_string(std::max(1, info.n_cand)) +
                            " candidates, but only " + std::to_string(n) +
                            " tokens of the target are not marked as unused: convert the target again");
    }
    return n;
}

// Of a model's weights, those that malloc gave room: not what is mapped from the file
size_t malloced_weights(const llama_context * context) {
    size_t bytes = 0;
    for (const auto & [type, data] : llama_get_memory_breakdown(context)) {
        ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
        if (device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            continue;
        }
        const bool mapped = std::string(ggml_backend_buft_name(type)) == "CPU_Mapped";
        bytes += mapped ? 0 : data.model;
    }
    return bytes;
}

}  // namespace

Drafter::Drafter(const Params & params, const Target & target, const DrafterInfo & info, int32_t max_depth) :
    info_(info), n_features_(target.n_features()), n_vocab_(target.n_vocab()), backlogs_(params.context.n_seq_max) {
    const FirstError errors;
    const size_t     heap = heap_bytes();

    model_.reset(llama_model_load_from_file(params.path.c_str(), params.model));
    if (!model_) {
        throw ModelLoadError("[load] llama.cpp cannot load " + params.path + errors.because());
    }

    const size_t loaded = heap_bytes();

    llama_context_params context = params.context;
    // A non-causal block must not be cut, and llama.cpp aborts when a call exceeds the micro-batch. Not larger than
    // needed: its graph reserves several vocabulary rows for each row of the micro-batch. Without a device few rows are
    // written as fast as many; but the cache of a window is longer by a micro-batch, and goes back as far
    const bool small      = llama_model_n_devices(model_.get()) == 0 && info.window == 0;
    context.n_ubatch      = std::max<uint32_t>(small ? 32 : 128, context.n_seq_max * (max_depth + 1));
    context.n_batch       = context.n_ubatch;
    context.n_outputs_max = context.n_ubatch;
    context.ctx_other     = target.context();

    // the graph of llama.cpp takes no other head than the target's
    const bool upstream = params.fused_ops == "upstream";
    head_.emplace(upstream ? "target" : params.draft_head, model_.get(), target.model(), context.n_threads);
    context.dflash2_head = head_->tensor();

    context.dflash2         = graph_of(params.fused_ops);
    context.dflash2_n_vocab = real_vocabulary(llama_model_get_vocab(target.model()), info);

    context_.reset(llama_init_from_model(model_.get(), context));
    if (!context_) {
        throw ModelLoadError("[load] no drafter context of " + std::to_string(context.n_ctx) + " tokens for " +
                             params.path + errors.because());
    }
    llama_set_causal_attn(context_.get(), info.causal);
    if (info.n_cand > 0 && context.dflash2 == LLAMA_DFLASH2_UPSTREAM) {
        llama_set_embeddings_nextn(context_.get(), true, /*masked=*/false);
    }

    draft({ { 0, 0, info.mask_token } }, max_depth);

    const size_t known = heap + malloced_weights(context_.get());
    vocabulary_bytes_  = loaded > known ? loaded - known : 0;
}

bool Drafter::fits(llama_pos pos) const {
    return pos < (llama_pos) llama_n_ctx_seq(context_.get());
}

float * Drafter::append(llama_seq_id seq, llama_pos pos) {
    Backlog & backlog = backlogs_[seq];
    if (pos != backlog.first + this->backlog(seq)) {
        backlog.features.clear();
    }
    if (backlog.features.empty()) {
        backlog.first = pos;
    }
    // what lies before the window will not be looked at; in steps, so that the rest is not moved for every row
    const int32_t outside = backlog.first < first_needed(pos + 1) ? first_needed(pos + 1) - backlog.first : 0;
    if (outside >= std::max(1, info_.window / 4)) {
        backlog.features.erase(backlog.features.begin(),
                               backlog.features.begin() + (ptrdiff_t) std::min<size_t>(backlog.features.size(),
                                                                                       (size_t) outside * n_features_));
        backlog.first += outside;
    }
    backlog.features.resize(backlog.features.size() + n_features_);
    return backlog.features.data() + backlog.features.size() - n_features_;
}

void Drafter::stage(llama_seq_id seq, llama_pos pos, const Target & target, int32_t row) {
    if (fits(pos)) {
        target.read_features(row, append(seq, pos));
    }
}

void Drafter::stage(llama_seq_id seq, llama_pos pos, const float * features) {
    if (fits(pos)) {
        std::copy(features, features + n_features_, append(seq, pos));
    }
}

void Drafter::stage_prompt(llama_seq_id seq, llama_pos pos, const Target & target, int32_t row) {
    stage(seq, pos, target, row);
    if (std::find(prompts_.begin(), prompts_.end(), seq) == prompts_.end()) {
        prompts_.push_back(seq);
    }
    if (++n_prompt_rows_ == (int32_t) llama_n_batch(context_.get())) {
        inject_prompts();
    }
}

void Drafter::inject_prompts() {
    const std::vector<llama_seq_id> seqs = std::move(prompts_);
    prompts_.clear();
    n_prompt_rows_ = 0;
    inject(seqs);
}

int32_t Drafter::backlog(llama_seq_id seq) const {
    return (int32_t) (backlogs_[seq].features.size() / n_features_);
}

bool Drafter::overfull() const {
    size_t n = 0;
    for (const Backlog & backlog : backlogs_) {
        n += backlog.features.size();
    }
    return n * sizeof(float) > max_backlog_bytes;
}

void Drafter::inject(const std::vector<llama_seq_id> & seqs) {
    common_batch batch(context_.get());
    const auto   n_batch = (int32_t) llama_n_batch(context_.get());
    for (const llama_seq_id seq : seqs) {
        Backlog &     backlog = backlogs_[seq];
        const int32_t n_rows  = this->backlog(seq);
        // a gap before the rows is outside of the window, but must not look like a prefix to start from
        if (n_rows > 0 && llama_memory_seq_pos_max(llama_get_memory(context_.get()), seq) < backlog.first - 1) {
            llama_memory_seq_rm(llama_get_memory(context_.get()), seq, -1, -1);
        }
        for (int32_t i = 0; i < n_rows; ++i) {
            const llama_pos pos = backlog.first + i;
            // temporal, height, width, unused: an M-RoPE drafter reads the first only
            const llama_pos sections[4] = { pos, pos, pos, 0 };
            batch.add_embd({ backlog.features.data() + (size_t) i * n_features_, 1, (size_t) n_features_ }, sections,
                           seq, false);
            if (batch.size() == n_batch) {
                process(context_.get(), batch, "drafter");
                batch.clear();
            }
        }
        backlog.first += n_rows;
    }
    if (batch.size() > 0) {
        process(context_.get(), batch, "drafter");
    }
    for (const llama_seq_id seq : seqs) {
        std::vector<float> & features = backlogs_[seq].features;
        features.clear();
        // new pages for each row would cost as much as all else that is done for it
        if (features.capacity() * sizeof(float) > max_idle_bytes) {
            features.shrink_to_fit();
        }
    }
}

int32_t Drafter::room(llama_pos pos) const {
    return std::max(0, (int32_t) llama_n_ctx_seq(context_.get()) - pos - 1);
}

std::vector<Lattice> Drafter::draft(const std::vector<Block> & blocks, int32_t depth) {
    std::vector<Lattice> lattices;
    for (auto begin = blocks.begin(); begin != blocks.end();) {
        // llama.cpp takes neighbouring sequences into one graph, and a graph's candidates are there until the next
        const auto apart = std::adjacent_find(begin, blocks.end(),
                                              [](const Block & a, const Block & b) { return b.seq != a.seq + 1; });
        const auto end   = apart == blocks.end() ? apart : apart + 1;
        const std::vector<Lattice> run = draft_neighbours({ begin, end }, depth);
        lattices.insert(lattices.end(), run.begin(), run.end());
        begin = end;
    }
    return lattices;
}

std::vector<Lattice> Drafter::draft_neighbours(const std::vector<Block> & blocks, int32_t depth) {
    const bool   upstream = llama_get_dflash2(context_.get()) == LLAMA_DFLASH2_UPSTREAM;
    common_batch batch(context_.get());
    for (const Block & block : blocks) {
        for (int32_t i = 0; i <= depth; ++i) {
            // the selector's result leaves without outputs; DFlash 1 is read from the logits, whose rows are right only
            // when all are asked for, since llama.cpp's graph does not gather those that are
            const bool output = upstream && info_.n_cand == 0;
            batch.add(i == 0 ? block.anchor : info_.mask_token, block.pos + i, block.seq, output);
        }
    }
    process(context_.get(), batch, "drafter");

    std::vector<Lattice> lattices;
    if (!upstream) {
        lattices = read_selector(blocks.size(), depth);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
        if (upstream) {
            lattices.push_back(info_.n_cand > 0 ? read_upstream((int32_t) i, depth) : read_argmax((int32_t) i, depth));
        }
        // keys and values of mask tokens must never be seen again
        trim(blocks[i].seq, blocks[i].pos);
    }
    return lattices;
}

std::vector<Lattice> Drafter::read_selector(size_t n_blocks, int32_t depth) const {
    const auto         k     = (size_t) std::max(1, info_.n_cand);
    const size_t       n_ids = depth * k;
    std::vector<Token> ids(n_blocks * n_ids);
    std::vector<float> scores(info_.n_cand > 0 ? n_blocks * n_ids * k : 0);
    if (!llama_read_dflash2(context_.get(), ids.data(), ids.size(), scores.data(), scores.size())) {
        throw Error("[draft] the drafter's graph left no candidates for " + std::to_string(n_blocks) + " blocks of " +
                    std::to_string(depth) + " slots");
    }
    std::vector<Lattice> lattices(n_blocks);
    for (size_t i = 0; i < n_blocks; ++i) {
        lattices[i].n_slots = depth;
        lattices[i].n_cand  = (int32_t) k;
        lattices[i].ids.assign(ids.begin() + i * n_ids, ids.begin() + (i + 1) * n_ids);
        if (info_.n_cand > 0) {
            lattices[i].scores.assign(scores.begin() + i * n_ids * k, scores.begin() + (i + 1) * n_ids * k);
        } else {
            lattices[i].scores.assign(depth, 0.0f);
        }
    }
    return lattices;
}

// llama.cpp's own graph packs a row of n_embd numbers for each row of the block: n_cand ids, then the scores
// [predecessor][candidate]
Lattice Drafter::read_upstream(int32_t block, int32_t depth) const {
    const int32_t k = info_.n_cand;
    Lattice       lattice;
    lattice.n_slots = depth;
    lattice.n_cand  = k;

    const float * rows = llama_get_embeddings_nextn(context_.get());
    for (int32_t i = 1; i <= depth; ++i) {
        const float * row = rows + ((size_t) block * (depth + 1) + i) * info_.n_embd;
        for (int32_t c = 0; c < k; ++c) {
            lattice.ids.push_back((Token) row[c]);
        }
        lattice.scores.insert(lattice.scores.end(), row + k, row + k + (size_t) k * k);
    }
    return lattice;
}

Lattice Drafter::read_argmax(int32_t block, int32_t depth) const {
    Lattice lattice;
    lattice.n_slots = depth;
    lattice.n_cand  = 1;
    lattice.scores.assign(lattice.n_slots, 0.0f);
    for (int32_t i = 1; i <= depth; ++i) {
        const float * logits = llama_get_logits_ith(context_.get(), block * (depth + 1) + i);
        lattice.ids.push_back((Token) (std::max_element(logits, logits + n_vocab_) - logits));
    }
    return lattice;
}

std::string Drafter::fused_ops() const {
    const int32_t mode = llama_get_dflash2(context_.get());
    if (mode == LLAMA_DFLASH2_UPSTREAM) {
        return "upstream";
    }
    if (mode == LLAMA_DFLASH2_FUSED || mode == LLAMA_DFLASH2_COMPOSED) {
        return mode == LLAMA_DFLASH2_FUSED ? "fused" : "composed";
    }
    std::string names = "fused but for";
    names += (mode & LLAMA_DFLASH2_CONV) == 0 ? " conv" : "";
    names += (mode & LLAMA_DFLASH2_TOPK) == 0 ? " topk" : "";
    names += (mode & LLAMA_DFLASH2_SCORE) == 0 ? " score" : "";
    return names;
}

bool Drafter::trim(llama_seq_id seq, llama_pos p) {
    Backlog &    backlog = backlogs_[seq];
    const size_t n_rows  = (size_t) std::clamp(p - backlog.first, 0, this->backlog(seq));
    backlog.features.resize(n_rows * n_features_);
    return llama_memory_seq_rm(llama_get_memory(context_.get()), seq, p, -1);
}

void Drafter::clear() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    for (Backlog & backlog : backlogs_) {
        backlog.features.clear();
    }
    prompts_.clear();
    n_prompt_rows_ = 0;
}

llama_pos Drafter::first_needed(int32_t n_prompt) const {
    return info_.all_sliding ? std::max(0, n_prompt - info_.window + 1) : 0;
}

llama_pos Drafter::end(llama_seq_id seq) const {
    const int32_t n_rows = backlog(seq);
    return n_rows > 0 ? backlogs_[seq].first + n_rows :
                        llama_memory_seq_pos_max(llama_get_memory(context_.get()), seq) + 1;
}

bool Drafter::reaches(llama_seq_id seq, llama_pos p, llama_pos first) const {
    llama_memory_t  memory = llama_get_memory(context_.get());
    const llama_pos staged = backlogs_[seq].first;
    const llama_pos needed = info_.window > 0 ? std::max(0, first - info_.window + 1) : 0;

    llama_pos lowest = llama_memory_seq_pos_min(memory, seq);
    if (backlog(seq) > 0 && (lowest < 0 || llama_memory_seq_pos_max(memory, seq) + 1 != staged)) {
        lowest = staged;
    }
    return lowest >= 0 && lowest <= needed && end(seq) >= p;
}

}  // namespace dflash2
