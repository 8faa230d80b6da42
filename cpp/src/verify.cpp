#include "verify.h"

#include <algorithm>

namespace dflash2 {

namespace {

Law one_hot(Token token) {
    return { { token, 1.0f } };
}

// The law that draft token i was drawn from
Law drafted_by(const Draft & draft, size_t i) {
    return draft.q.empty() ? one_hot(draft.tokens[i]) : draft.q[i];
}

// Draws from max(scale * p - q, 0), or from p where rounding has left nothing of that
Token draw_residual(const Law & p, const Law & q, double scale, Random & random) {
    const Law rest = residual(p, q, scale);
    return draw(rest.empty() ? p : rest, random);
}

// Judges row by row. choose(i, logits): the token after draft token i - 1; no_token: the answer ends
template <typename Choose>
Verdict verify_rows(Sampler & sampler, const Block & block, const Choose & choose) {
    const std::vector<Token> & draft = block.draft.tokens;
    Verdict                    verdict;
    for (size_t i = 0; i <= draft.size(); ++i) {
        const Token token = choose(i, block.logits((int32_t) i));
        verdict.tokens.push_back(token);
        if (token == no_token) {
            break;
        }
        sampler.accept(token);

        const bool accepted = i < draft.size() && token == draft[i];
        verdict.n_accepted += accepted ? 1 : 0;
        if (!accepted || block.ends(token)) {
            break;
        }
    }
    return verdict;
}

}  // namespace

const char * name(Rule rule) {
    switch (rule) {
    case Rule::match:
        return "match";
    case Rule::reject:
        return "reject";
    case Rule::block:
        return "block";
    }
    return "";
}

Rule choose_rule(const std::string & verify, const Sampler & sampler) {
    if (verify == "match" || sampler.is_greedy() || !sampler.has_law()) {
        return Rule::match;
    }
    return verify == "block" && sampler.law_is_pure() ? Rule::block : Rule::reject;
}

Verdict verify(Rule rule, Sampler & sampler, const Block & block, Randoms & randoms) {
    switch (rule) {
    case Rule::reject:
        return verify_reject(sampler, block, randoms.accept, randoms.residual);
    case Rule::block:
        return verify_block(sampler, block, randoms.accept, randoms.residual);
    case Rule::match:
        break;
    }
    return verify_match(sampler, block);
}

Verdict verify_match(Sampler & sampler, const Block & block) {
    return verify_rows(sampler, block, [&](size_t, const float * logits) { return sampler.sample(logits); });
}

Verdict verify_reject(Sampler & sampler, const Block & block, Random & accept, Random & residual) {
    const std::vector<Token> & draft = block.draft.tokens;
    return verify_rows(sampler, block, [&](size_t i, const float * logits) {
        if (i == draft.size() && sampler.law_is_pure()) {
            return sampler.sample(logits);  // the same law, without writing it down
        }
        const Law & p     = sampler.law(logits);
        Token       token = no_token;
        if (p.empty()) {
            // nothing is left to draw from
        } else if (i == draft.size()) {
            token = draw(p, residual);
        } else {
            if (block.judged) {
                block.judged(i, p);
            }
            const Law q = drafted_by(block.draft, i);
            token       = draft[i];
            if (!(accept.uniform() * probability(q, token) < probability(p, token))) {
                token = draw_residual(p, q, 1.0, residual);
            }
        }
        if (sampler.allows(token)) {
            return token;
        }
        // As llama.cpp does: drawn without the grammar first, and drawn anew under it where that token does not fit.
        // The second draw knows nothing of later slots, so when it happens to be the draft token they are still good
        const Law & allowed = sampler.law_under_grammar(logits);
        return allowed.empty() ? no_token : draw(allowed, residual);
    });
}

// With s_i = min(s_{i-1} p_i(d_i) / q_i(d_i), 1), s_0 = 1, and w_i = mass of max(s_i p - q, 0) at the row after d_i, the
// prefix of i tokens is kept when u_i < w_i / (w_i + 1 - s_i), the whole draft of n when u_n < s_n; the longest kept
// prefix counts.
Verdict verify_block(Sampler & sampler, const Block & block, Random & accept, Random & residual_random) {
    const std::vector<Token> & draft = block.draft.tokens;
    if (draft.empty()) {
        return verify_reject(sampler, block, accept, residual_random);  // the same, without a copy of the sampler
    }

    std::vector<Law>    laws;    // [rows]
    std::vector<double> shares;  // [rows] s_i
    Sampler             ahead = sampler.clone();
    size_t              kept  = 0;
    double              share = 1;
    for (size_t i = 0;; ++i) {
        laws.push_back(ahead.law(block.logits((int32_t) i)));
        shares.push_back(share);
        const bool last = i == draft.size() || laws.back().empty() || (i > 0 && block.ends(draft[i - 1]));
        const Law  q    = last ? Law() : drafted_by(block.draft, i);
        if (i > 0) {
            double keep = share;
            if (!last) {
                const double left = residual_mass(laws[i], q, share);
                keep              = left > 0 ? left / (left + 1 - share) : 0;
            }
            if (accept.uniform() < keep) {
                kept = i;
            }
        }
        if (last) {
            break;
        }
        if (block.judged) {
            block.judged(i, laws[i]);
        }
        const Token token = draft[i];
        share             = std::min(1.0, share * probability(laws[i], token) / probability(q, token));
        if (share == 0) {
            break;  // nothing that follows can be kept
        }
        ahead.accept(token);
    }

    Verdict verdict;
    verdict.n_accepted = (int32_t) kept;
    verdict.tokens.assign(draft.begin(), draft.begin() + (ptrdiff_t) kept);
    if (kept == 0 || !block.ends(draft[kept - 1])) {
        const Law & p     = laws[kept];
        const bool  whole = kept == draft.size();
        verdict.tokens.push_back(
            p.empty() ? no_token :
            whole     ? draw(p, residual_random) :
                        draw_residual(p, drafted_by(block.draft, kept), shares[kept], residual_random));
    }
    for (const Token token : verdict.tokens) {
        if (token != no_token) {
            sampler.accept(token);
        }
    }
    return verdict;
}

}  // namespace dflash2
