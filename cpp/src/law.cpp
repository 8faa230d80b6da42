#include "law.h"

#include <algorithm>

namespace dflash2 {

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

Token draw(const Law & law, Random & random) {
    const double target = random.uniform() * mass(law);
    double       sum    = 0;
    Token        last   = law.front().token;  // for a target that rounding has put behind the end
    for (const Outcome & outcome : law) {
        if (outcome.p > 0) {
            sum += outcome.p;
            last = outcome.token;
            if (sum > target) {
                break;
            }
        }
    }
    return last;
}

Law residual(const Law & p, const Law & q, double scale) {
    Law rest;
    rest.reserve(p.size());
    for (const Outcome & outcome : p) {
        const double left = scale * outcome.p - probability(q, outcome.token);
        if (left > 0) {
            rest.push_back({ outcome.token, (float) left });
        }
    }
    return rest;
}

}  // namespace dflash2
