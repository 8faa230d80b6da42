#pragma once

#include "depth.h"
#include "dflash2/stats.h"
#include "drafter.h"
#include "proposal.h"
#include "sampler.h"
#include "target.h"
#include "verify.h"

#include <string>
#include <vector>

namespace dflash2 {

// The first half of a cycle, for the engine's loop and for llama-server alike: how far to draft each sequence, one pass
// of the drafter for all, a walk through each lattice. And what it learns from the second half.
class Speculator {
public:
    // depth: draft tokens per cycle, the most of them when `adaptive`
    struct Options {
        int32_t depth      = 1;
        bool    adaptive   = false;
        float   p_min      = 0;
        bool    equal_rows = false;  // see DepthPolicy
    };

    // A sequence that generates.
    struct Request {
        Drafter::Block             block;
        int32_t                    room;        // most draft tokens that can be of use, may be 0
        SequenceAcceptance *       acceptance;  // never null; the others may be where room is 0
        Sampler *                  sampler;
        Rule                       rule;
        Randoms *                  randoms;
        ProposalLearner *          proposals;
        const std::vector<Token> * text;  // prompt and answer, the anchor last
        Ends                       ends;
    };

    // Empties both caches where it has to find out what passes cost. throws Error, Interrupted
    Speculator(Target & target, Drafter & drafter, Options options);

    // One Draft for each request, which come in the order of their sequences: llama.cpp joins only those whose ids follow
    // each other into one micro-batch. Writes to `cycle` what it took. throws Error, Interrupted
    std::vector<Draft> draft(const std::vector<Request> & requests, DepthCycle & cycle);

    // Brings the drafter's cache up to date with the final tokens of some sequences. throws Error, Interrupted
    void inject(const std::vector<llama_seq_id> & seqs, DepthCycle & cycle);

    // The same for all of them where what waits takes more memory than it should. throws Error, Interrupted
    void inject_overfull(DepthCycle & cycle);

    // The cycle that followed the last draft(). A target pass of 0 rows, one that did other work too, says nothing of costs
    void record(const DepthCycle & cycle);

    const CostModel & costs() const { return policy_.costs(); }

private:
    void  plan_depths(const std::vector<Request> & requests);
    Draft propose(const Request & request, const Lattice & lattice, size_t i) const;

    Drafter &   drafter_;
    Options     options_;
    DepthPolicy policy_;
    DepthPlan   plan_;
};

// What to say of a drafter of whose tokens fewer than one in `one_in` were accepted; empty otherwise, and while little is
// known of it
std::string complaint_of_drafter(const Stats & total, int64_t one_in);

}  // namespace dflash2
