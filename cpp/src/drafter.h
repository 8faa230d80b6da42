#pragma once

#include "common.h"
#include "draft_head.h"
#include "llama-cpp.h"
#include "pair.h"
#include "target.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash2 {

// The drafter model and its cache, which holds keys and values made of target features, at the positions of the target.
class Drafter {
public:
    // Target features kept for sequences that do not draft at present
    static constexpr size_t max_backlog_bytes = 64 << 20;
    // Memory that a sequence keeps for them while there are none
    static constexpr size_t max_idle_bytes = 2 << 20;

    // How llama.cpp opens it. context: n_seq_max sequences that share n_ctx positions, or have a part each; threads,
    // flash attention and cache types. The sizes of batches are the drafter's own affair.
    struct Params {
        std::string          path;
        llama_model_params   model;
        llama_context_params context;
        std::string          fused_ops  = "auto";  // as EngineOptions::fused_ops
        std::string          draft_head = "auto";  // as EngineOptions::draft_head
    };

    // max_depth: most tokens a block will draft, below info.block_size. throws ModelLoadError
    Drafter(const Params & params, const Target & target, const DrafterInfo & info, int32_t max_depth);

    // Keeps a row of target features, [n_features], until inject() writes it to the cache. The rows of a sequence come
    // in the order of their positions; where one does not follow the last, all before it counts as forgotten. Rows
    // beyond the last position that can be drafted are not kept.
    void stage(llama_seq_id seq, llama_pos pos, const Target & target, int32_t row);
    void stage(llama_seq_id seq, llama_pos pos, const float * features);
    // The same for a row of a prompt, of which there are many at once: those that fill a batch are written to the cache
    // as they come, the rest by inject_prompts(). throw Error, Interrupted
    void stage_prompt(llama_seq_id seq, llama_pos pos, const Target & target, int32_t row);
    void inject_prompts();
    // Forgets what inject() would write for a sequence
    void drop_backlog(llama_seq_id seq) { backlogs_[seq].features.clear(); }
    // Rows that inject() would write
    int32_t backlog(llama_seq_id seq) const;
    // Whether the rows kept take more memory than they should: inject all of them
    bool overfull() const;
    // Writes what is staged for a sequence to the cache. throws Error, Interrupted
    void inject(const std::vector<llama_seq_id> & seqs);

    // One block, whose anchor stands at position `pos`: the cache must hold 0 .. pos - 1 of the sequence.
    struct Block {
        llama_seq_id seq;
        llama_pos    pos;
        Token        anchor;
    };

    // Most tokens that can be drafted at `pos`: fewer at the last positions of the cache, none beyond them
    int32_t room(llama_pos pos) const;
    // Drafts `depth` tokens for each block, those of neighbouring sequences in one decode; the cache is as before.
    // [blocks], which come in the order of their sequences. throws Error, Interrupted
    std::vector<Lattice> draft(const std::vector<Block> & blocks, int32_t depth);

    // As the target's
    bool trim(llama_seq_id seq, llama_pos p);
    void clear();
    // Whether a sequence that holds positions 0 .. n - 1 still has what blocks from position `first` >= p on see of those
    // before p.
    bool reaches(llama_seq_id seq, llama_pos p, llama_pos first) const;
    // The position after the last it holds, staged rows included
    llama_pos end(llama_seq_id seq) const;

    // Positions of a prompt of n tokens from here on are all the drafter ever looks at
    llama_pos first_needed(int32_t n_prompt) const;

    llama_context *     context() const { return context_.get(); }
    const DrafterInfo & info() const { return info_; }
    const DraftHead &   head() const { return *head_; }
    // What its model took from malloc beside the weights, which is its vocabulary; 0 where that is not known
    size_t vocabulary_bytes() const { return vocabulary_bytes_; }
    // How the ops of DFlash 2 run, as Stats::fused_ops says it
    std::string fused_ops() const;

private:
    // Rows of consecutive positions
    struct Backlog {
        llama_pos          first = 0;
        std::vector<float> features;  // [rows][n_features]
    };

    std::vector<Lattice> draft_neighbours(const std::vector<Block> & blocks, int32_t depth);

    bool                 fits(llama_pos pos) const;
    float *              append(llama_seq_id seq, llama_pos pos);
    std::vector<Lattice> read_selector(size_t n_blocks, int32_t depth) const;
    Lattice              read_upstream(int32_t block, int32_t depth) const;
    Lattice              read_argmax(int32_t block, int32_t depth) const;

    DrafterInfo              info_;
    int32_t                  n_features_;
    int32_t                  n_vocab_;
    size_t                   vocabulary_bytes_ = 0;
    std::vector<Backlog>     backlogs_;  // [sequences]
    llama_model_ptr          model_;
    std::optional<DraftHead> head_;
    llama_context_ptr        context_;

    // Sequences with staged rows of a prompt, and how many those are
    std::vector<llama_seq_id> prompts_;
    int32_t                   n_prompt_rows_ = 0;
};

}  // namespace dflash2
