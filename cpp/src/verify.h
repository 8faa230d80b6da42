#pragma once

#include "lattice.h"
#include "sampler.h"

#include <functional>
#include <string>
#include <vector>

namespace dflash2 {

// What the target made of one verified block: the accepted draft tokens, then one token of its own (the bonus token),
// unless a token that ends the answer came first. The last may be no_token.
struct Verdict {
    std::vector<Token> tokens;
    int32_t            n_accepted = 0;
};

// One block to judge. logits(i): the target's row after draft token i - 1, row 0 after the anchor; asked for only where
// needed. ends: tokens after which nothing is drawn. judged(i, p): told the law by which draft token i was judged, by the
// rules that have one; may be empty.
struct Block {
    const Draft &                         draft;
    std::function<const float *(int32_t)> logits;
    Ends                                  ends;

    std::function<void(size_t, const Law &)> judged = {};
};

enum class Rule { match, reject, block };

// As in Stats::verify_rule
const char * name(Rule rule);

// The rule of a request under EngineOptions::verify: what is asked for where the sampler has a law of the kind the rule
// needs, the next best where it has not. Greedy requests have one token to choose: `match` is all there is to decide.
Rule choose_rule(const std::string & verify, const Sampler & sampler);

// The streams of one request.
struct Randoms {
    explicit Randoms(uint32_t seed) :
        walk(seed, Stream::walk), accept(seed, Stream::accept), residual(seed, Stream::residual) {}

    Random walk;
    Random accept;
    Random residual;
};

Verdict verify(Rule rule, Sampler & sampler, const Block & block, Randoms & randoms);

// All rules leave in `sampler` the history of verdict.tokens.

// Rule `match`: the target's own draw at each row, kept on while it equals the draft. The tokens are those of decoding
// without a drafter, whatever the sampler chain.
Verdict verify_match(Sampler & sampler, const Block & block);

// Rule `reject`: speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Draft token d
// is kept with probability min(1, p(d) / q(d)); where one is not, the token comes from max(p - q, 0). Every token
// follows the law p of decoding without a drafter. Rows after the first rejection are not looked at.
Verdict verify_reject(Sampler & sampler, const Block & block, Random & accept, Random & residual);

// Rule `block` (Sun et al., arXiv 2403.10444, algorithm 2): decides over the joint ratio p / q of the whole block, and
// keeps in expectation at least as many tokens as `reject`. Same law. For samplers with law_is_pure() only
Verdict verify_block(Sampler & sampler, const Block & block, Random & accept, Random & residual);

}  // namespace dflash2
