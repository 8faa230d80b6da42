#include "law.h"

#include <algorithm>

namespace dflash2 {

namespace {

// Probabilities in a law of few tokens, asked for many that are not in it
class Lookup {
public:
    explicit Lookup(const Law & law) : law_(law) {
        for (const Outcome & outcome : law) {
            bits_ |= bit(outcome.token);
        }
    }

    float operator()(Token token) const { return bits_ & bit(token) ? probability(law_, token) : 0.0f; }

private:
    static uint64_t bit(Token token) { return uint64_t(1) << (token & 63); }

    const Law & law_;
    uint64_t    bits_ = 0;
};

}  // namespace

float probability(const Law & law, Token token) {
    const auto it =
        std::find_if(law.begin(), law.end(), [token](const Outcome & outcome) { return outcome.token == token; });
    return it == law.end() ? 0.0f : it->p;
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
