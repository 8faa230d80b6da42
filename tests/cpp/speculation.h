#pragma once

#include "../../cpp/src/depth.h"
#include "../../cpp/src/verify.h"
#include "answers.h"
#include "chains.h"
#include "table_pair.h"

#include <functional>
#include <optional>

namespace dflash2 {

using Judge = std::function<Verdict(Sampler &, const Block &, Randoms &)>;

inline Judge by(Rule rule) {
    return [rule](Sampler & sampler, const Block & block, Randoms & randoms) {
        return verify(rule, sampler, block, randoms);
    };
}

// How answers are drafted and judged. The last two are for planted mistakes.
struct Speculation {
    Judge                                         judge = by(Rule::reject);
    std::function<Extend(const Answer &)>         extend;  // of a cycle that starts after an answer; may be empty
    bool                                          adaptive = false;  // depths are those of a DepthPolicy
    bool                                          masked   = true;   // whether the walk knows the grammar
    bool                                          learned  = false;  // proposals are those of one ProposalLearner
    std::function<Proposal(const Answer &)>       proposal;  // of a cycle that starts after an answer; may be empty
    std::function<Randoms(uint32_t)>              randoms;   // of each answer; empty: the same go through all
    std::function<void(const Lattice &, Draft &)> after_walk;
};

// Another one for every answer so far, from flat to next to greedy
inline Proposal erratic_proposal(const Answer & answer) {
    const size_t hash = answer.size() * 977 + (answer.empty() ? 0 : answer.back());
    return { 0.3f + 0.5f * (float) (hash % 7), 0.5f * (float) (hash % 4) };
}

// The depth policy of an engine whose passes take the same time always: a target pass ten times as long as a draft pass.
class Adaptive {
public:
    explicit Adaptive(int32_t max_depth) : policy_(max_depth) {}

    int32_t depth(int32_t room) {
        plan_ = policy_.plan({ { acceptance_, room, 0 } });
        return plan_.depths[0];
    }

    Extend extend() const {
        return [this](const std::vector<float> & confidence) {
            return policy_.extend(plan_, 0, confidence);
        };
    }

    void record(const Draft & draft, int32_t n_accepted) {
        const auto n = (int32_t) draft.tokens.size();
        DepthCycle cycle;
        cycle.draft        = { plan_.width > 0 ? 1 + plan_.width : 0, 1e-3 };
        cycle.verify       = { 1 + n, 1e-2 + 2e-3 * n };
        cycle.host_seconds = 1e-4;
        cycle.outcomes.push_back({ &acceptance_, draft.confidence, n, n_accepted });
        policy_.record(cycle, &plan_);
    }

    void next_answer() { acceptance_ = {}; }

private:
    DepthPolicy        policy_;
    DepthPlan          plan_;
    SequenceAcceptance acceptance_;
};

// Answers decoded with a drafter.
struct Speculated {
    AnswerCounts counts   = AnswerCounts(n_cells);
    int64_t      n_cycles = 0, n_drafted = 0, n_accepted = 0;
    // accepted tokens of each answer's first cycle
    double first_mean = 0, first_variance = 0;
};

inline Speculated speculate(const Chain &                chain,
                            const TableTarget &          target,
                            const std::vector<Lattice> & drafter,
                            const llama_model *          model,
                            const Speculation &          how,
                            int32_t                      n) {
    const auto make_sampler = [&](uint32_t seed) {
        common_params_sampling params = chain.params;
        params.seed                   = seed;
        return Sampler(params, model);
    };
    const auto accept_prompt = [](Sampler & sampler) {
        for (const llama_token token : chain_prompt()) {
            sampler.accept(token, false);
        }
    };
    const Ends ends = [](llama_token token) {
        return token == TinyVocabulary::end;
    };
    // what cannot be used again is copied, unless a copy would repeat the chain's own random numbers
    const bool again = chain.only_looks_back();
    Sampler    first = make_sampler(0);
    accept_prompt(first);
    std::optional<Sampler> copy;
    Randoms                all(1);
    Adaptive               adaptive(n_answer - 1);
    ProposalLearner        learner;
    Speculated             result;
    for (int32_t i = 0; i < n; ++i) {
        if (again) {
            accept_prompt(first);
        } else if (chain.has_xtc() || !chain.has_grammar()) {
            copy = make_sampler((uint32_t) i);
            accept_prompt(*copy);
        } else {
            copy = first.clone();
        }
        Sampler & sampler = again ? first : *copy;

        std::optional<Randoms> own;
        if (how.randoms) {
            own = how.randoms((uint32_t) i);
        }
        Randoms & randoms = own ? *own : all;
        adaptive.next_answer();
        Answer      answer;
        llama_token anchor = chain_prompt().back();
        while (answer.size() < n_answer && anchor != TinyVocabulary::end) {
            const Lattice & lattice = drafter[anchor];
            WalkOptions     options;
            options.depth       = n_answer - 1 - (int32_t) answer.size();
            options.temperature = sampler.temperature();
            options.ends        = ends;
            options.extend      = how.extend ? how.extend(answer) : Extend();
            if (how.adaptive) {
                options.depth  = adaptive.depth(options.depth);
                options.extend = adaptive.extend();
            }
            options.mask = how.masked ? sampler.mask() : Mask();
            Answer text  = chain_prompt();
            text.insert(text.end(), answer.begin(), answer.end());
            options.text = &text;
            if (how.learned) {
                options.proposal = learner.best();
            } else if (how.proposal) {
                options.proposal = how.proposal(answer);
            }
            Draft draft = walk(lattice, options, randoms.walk);
            if (how.after_walk) {
                how.after_walk(lattice, draft);
            }
            const auto logits = [&](int32_t row) {
                return target.row(row == 0 ? anchor : draft.tokens[row - 1]);
            };
            const auto judged = [&](size_t i, const Law & p) {
                if (how.learned) {
                    learner.record(draft.slots[i], p, options.temperature);
                }
            };
            const Verdict verdict = how.judge(sampler, { draft, logits, ends, judged }, randoms);
            CHECK(!verdict.tokens.empty() && verdict.tokens.back() != no_token);
            CHECK(verdict.n_accepted <= (int32_t) draft.tokens.size());
            CHECK(std::equal(draft.tokens.begin(), draft.tokens.begin() + verdict.n_accepted, verdict.tokens.begin()));
            if (how.adaptive) {
                adaptive.record(draft, verdict.n_accepted);
            }
            if (answer.empty()) {
                result.first_mean += verdict.n_accepted;
                result.first_variance += verdict.n_accepted * verdict.n_accepted;
            }
            result.n_cycles += 1;
            result.n_drafted += (int64_t) draft.tokens.size();
            result.n_accepted += verdict.n_accepted;
            answer.insert(answer.end(), verdict.tokens.begin(), verdict.tokens.end());
            anchor = answer.back();
        }
        answer.resize(n_answer, TinyVocabulary::end);
        result.counts[cell(answer)] += 1;
    }
    result.first_mean /= n;
    result.first_variance = result.first_variance / n - result.first_mean * result.first_mean;
    return result;
}

}  // namespace dflash2
