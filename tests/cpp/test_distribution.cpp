// Answers decoded with a drafter follow the law of decoding without one: for every sampler alone and mixed, every exact
// rule, and drafters from good to adversarial.

#include "reference.h"
#include "speculation.h"

using namespace dflash2;

namespace {

constexpr int32_t n_answers = 50000;

struct Named {
    const char * name;
    Drafting     kind;
};

constexpr Named drafters[] = {
    { "good", Drafting::good },
    { "bad", Drafting::bad },
    { "adversarial", Drafting::adversarial },
};

struct Worst {
    Fit         fit;
    std::string name;
};

class Suite {
public:
    void run(const Chain & chain) {
        const AnswerLaw law = reference::law(chain, target_, vocabulary_.model());
        check(chain.name + ", no drafter", law, reference::draw(chain, target_, vocabulary_.model(), n_answers));
        const bool pure = Sampler(chain.params, vocabulary_.model()).law_is_pure();
        CHECK(pure == (!chain.has_grammar() && !chain.has_xtc()));
        for (const Named & drafter : drafters) {
            if (chain.has_dear_grammar() && drafter.kind != Drafting::good) {
                continue;
            }
            const std::string name   = chain.name + ", " + drafter.name;
            const Speculated  single = speculate(chain, drafter, law, name + ", reject", {});
            if (pure) {
                Speculation how;
                how.judge               = by(Rule::block);
                const Speculated joint  = speculate(chain, drafter, law, name + ", block", how);
                const double     spread = std::sqrt((single.first_variance + joint.first_variance) / n_answers);
                // one in a million at 4.75 standard deviations
                CHECK(joint.first_mean >= single.first_mean - 4.75 * spread);
                n_gain_ += 1;
                gain_ += joint.first_mean - single.first_mean;
            }
            if (chain.has_grammar() && drafter.kind == Drafting::good) {
                Speculation how;
                how.masked = false;  // drafts that the grammar forbids reach the rule
                speculate(chain, drafter, law, name + ", reject, blind to the grammar", how);
            }
        }
    }

    // Depths that depend on what an exact policy may look at
    void run_policies(const Chain & chain) {
        const AnswerLaw law = reference::law(chain, target_, vocabulary_.model());
        Speculation     p_min, erratic, adaptive;
        p_min.extend = [](const Answer &) {
            return [](const std::vector<float> & confidence) {
                return confidence.back() >= 0.4f;
            };
        };
        erratic.extend = [](const Answer & answer) {
            const size_t hash = answer.size() * 977 + (answer.empty() ? 0 : answer.back());
            return [hash](const std::vector<float> & confidence) {
                const size_t mixed = hash + confidence.size() + (size_t) (confidence.back() * 1e6f);
                return (uint32_t) mixed * 2654435761u >> 30 != 0;
            };
        };
        adaptive.adaptive = true;
        adaptive.learned  = true;

        const bool pure = Sampler(chain.params, vocabulary_.model()).law_is_pure();
        for (const Named & drafter : drafters) {
            for (Speculation how : { p_min, erratic, adaptive }) {
                const std::string name  = chain.name + ", " + drafter.name + (how.adaptive ? ", auto" : ", policy");
                const Rule        rule  = pure ? Rule::block : Rule::reject;
                how.judge               = by(rule);
                const Speculated result = speculate(chain, drafter, law, name + ", " + dflash2::name(rule), how);
                // neither all of the slots nor none
                CHECK(result.n_drafted > 0);
                CHECK(drafter.kind == Drafting::good || result.n_drafted < 2 * result.n_cycles);
            }
        }
    }

    // Laws to draw from that depend on what they may depend on
    void run_proposals(const Chain & chain) {
        const AnswerLaw law = reference::law(chain, target_, vocabulary_.model());
        Speculation     erratic, learned;
        erratic.proposal = [](const Answer & answer) {
            return erratic_proposal(answer);
        };
        learned.learned = true;
        const bool pure = Sampler(chain.params, vocabulary_.model()).law_is_pure();
        for (const Named & drafter : drafters) {
            for (Speculation how : { erratic, learned }) {
                for (const Rule rule : { Rule::reject, Rule::block }) {
                    if (rule == Rule::reject || pure) {
                        how.judge = by(rule);
                        speculate(chain, drafter, law,
                                  chain.name + ", " + drafter.name + (how.learned ? ", learned, " : ", erratic, ") +
                                      dflash2::name(rule),
                                  how);
                    }
                }
            }
        }
    }

    ~Suite() {
        std::printf(
            "%d configurations of %d answers. Smallest p-value %.2g: %s. Distance at most %.2f of its limit: %s.\n"
            "First cycle: block keeps %.3f tokens more than reject in the mean.\n",
            n_runs_, n_answers, least_.fit.p_value, least_.name.c_str(), farthest_.fit.excess, farthest_.name.c_str(),
            gain_ / n_gain_);
    }

private:
    Speculated speculate(const Chain &       chain,
                         const Named &       drafter,
                         const AnswerLaw &   law,
                         const std::string & name,
                         const Speculation & how) {
        const std::vector<Lattice> lattices = table_drafter(target_, drafter.kind);
        Speculated result = dflash2::speculate(chain, target_, lattices, vocabulary_.model(), how, n_answers);
        check(name, law, result.counts);
        return result;
    }

    void check(const std::string & name, const AnswerLaw & law, const AnswerCounts & counts) {
        const Fit fit = compare(law, counts);
        if (!fit.good()) {
            std::fprintf(stderr, "%s: p-value %.3g, distance %.3f of its limit%s\n", name.c_str(), fit.p_value,
                         fit.excess, fit.impossible ? ", impossible answers" : "");
        }
        CHECK(fit.good());
        n_runs_ += 1;
        if (fit.p_value < least_.fit.p_value) {
            least_ = { fit, name };
        }
        if (fit.excess > farthest_.fit.excess) {
            farthest_ = { fit, name };
        }
    }

    TinyVocabulary vocabulary_;
    TableTarget    target_;
    int32_t        n_runs_ = 0, n_gain_ = 0;
    double         gain_ = 0;
    Worst          least_, farthest_;
};

}  // namespace

int main() {
    Suite suite;
    for (const Chain & chain : all_chains()) {
        suite.run(chain);
    }
    suite.run_policies(make_chain("plain", [](common_params_sampling &) {}));
    suite.run_policies(make_chain("top-k 5, xtc", [](common_params_sampling & params) {
        params.top_k           = 5;
        params.xtc_probability = 0.5f;
    }));
    suite.run_policies(make_chain("grammar", set_grammar));
    suite.run_proposals(make_chain("plain", [](common_params_sampling &) {}));
    suite.run_proposals(make_chain("temperature 0.6, top-k 5, xtc", [](common_params_sampling & params) {
        params.temp            = 0.6f;
        params.top_k           = 5;
        params.xtc_probability = 0.5f;
    }));
    suite.run_proposals(make_chain("grammar", set_grammar));
}
