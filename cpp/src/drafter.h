#pragma once

#include "backend.h"
#include "common.h"
#include "pair.h"
#include "target.h"

#include <cstdint>
#include <vector>

namespace dflash2 {

// The drafter model and its cache, which holds keys and values made of target features, at the positions of the target.
class Drafter {
public:
    // The rows of one block that drafts `depth` tokens: depth + 1 <= info.block_size.
    // throws ModelLoadError
    Drafter(const EngineOptions & options,
            BackendParams &       backend,
            const Target &        target,
            const DrafterInfo &   info,
            int32_t               depth);

    // Appends a row of target features, [n_features], to what the next inject() writes.
    void stage(llama_seq_id seq, llama_pos pos, const Target & target, int32_t row);
    void stage(llama_seq_id seq, llama_pos pos, const float * features);
    // Writes the staged rows to the cache. throws Error, Interrupted
    void inject();

    // One block, whose anchor stands at position `pos`: the cache must hold 0 .. pos - 1 of the sequence.
    struct Block {
        llama_seq_id seq;
        llama_pos    pos;
        Token        anchor;
    };

    // Whether the cache has room for a block at `pos`: it is as long as the target's, so the last tokens have none.
    bool fits(llama_pos pos) const;
    // Drafts all blocks in one decode; the cache is as before. [blocks]. throws Error, Interrupted
    std::vector<Lattice> draft(const std::vector<Block> & blocks);

    // As the target's
    bool trim(llama_seq_id seq, llama_pos p);
    void clear();
    bool reaches(llama_seq_id seq, llama_pos p) const;

    // Positions of a prompt of n tokens from here on are all the drafter ever looks at
    llama_pos first_needed(int32_t n_prompt) const;

    llama_context *     context() const { return context_.get(); }
    const DrafterInfo & info() const { return info_; }

private:
    Lattice read_selector(int32_t block) const;
    Lattice read_argmax(int32_t block) const;

    DrafterInfo       info_;
    int32_t           n_rows_;  // of one block
    int32_t           n_features_;
    int32_t           n_vocab_;
    llama_model_ptr   model_;
    llama_context_ptr context_;

    struct Row {
        llama_seq_id seq;
        llama_pos    pos;
    };

    std::vector<Row>   staged_;
    std::vector<float> features_;  // [staged][n_features]
};

}  // namespace dflash2
