#include "law.h"

#include <algorithm>
#include <bitset>

namespace dflash2 {

namespace {

// Turns away most of the many tokens that are not among a few
class Filter {
public:
    void add(Token token) { bits_.set(index(token)); }
    bool passes(Token token) const { return bits_.test(index(token)); }

private:
    static constexpr size_t size = 1024;

    static size_t index(Token token) { return (size_t) token % size; }

    std::bitset<size> bits_;
};

// Probabilities in a law of few tokens, asked for many that are not in it
class Lookup {
public:
    explicit Lookup(const Law & law) : law_(law) {
        for (const Outcome & outcome : law) {
            filter_.add(outcome.token);
        }
    }

    float operator()(Token token) const { return filter_.passes(token) ? probability(law_, token) : 0.0f; }

private:
    const Law & law_;
    Filter      filter_;
};

}  // namespace

float probability(const Law & law, Token token) {
    const auto it =
        std::find_if(law.begin(), law.end(), [token](const Outcome & outcome) { return outcome.token == token; });
    return it == law.end() ? 0.0f : it->p;
}

std::vector<float> probabilities(const Law & law, const std::vector<Token> & tokens) {
    Filter filter;
    for (const Token token : tokens) {
        filter.add(token);
    }
    std::vector<float> result(tokens.size(), 0.0f);
    for (const Outcome & outcome : law) {
        if (filter.passes(outcome.token)) {
            const auto it = std::find(tokens.begin(), tokens.end(), outcome.token);
            if (it != tokens.end()) {
                result[it - tokens.begin()] = outcome.p;
            }
        }
    }
    return result;
}

double mass(const Law & law) {
    double sum = 0;
    for (const Outcome & outcome : law) {
        sum += outcome.p;
    }
    return sum;
}

size_t draw_index(const Law & law, Random & random) {
    const double target = random.uniform() * mass(law);
    double       sum    = 0;
    size_t       last   = 0;  // for a target that rounding has put behind the end
    for (size_t i = 0; i < law.size(); ++i) {
        if (law[i].p > 0) {
            sum += law[i].p;
            last = i;
            if (sum > target) {
                break;
            }
        }
    }
    return last;
}

Token draw(const Law & law, Random & random) {
    return law[draw_index(law, random)].token;
}

Law residual(const Law & p, const Law & q, double scale) {
    const Lookup in_q(q);
    Law          rest;
    rest.reserve(p.size());
    for (const Outcome & outcome : p) {
        const double left = scale * outcome.p - in_q(outcome.token);
        if (left > 0) {
            rest.push_back({ outcome.token, (float) left });
        }
    }
    return rest;
}

double residual_mass(const Law & p, const Law & q, double scale) {
    const Lookup in_q(q);
    double       sum = 0;
    for (const Outcome & outcome : p) {
        sum += std::max(0.0, scale * outcome.p - in_q(outcome.token));
    }
    return sum;
}

}  // namespace dflash2
