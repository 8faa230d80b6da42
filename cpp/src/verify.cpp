#include "verify.h"

namespace dflash2 {

Verdict verify_match(Sampler &                          sampler,
                     const Target &                     target,
                     int32_t                            row,
                     const std::vector<Token> &         draft,
                     const std::function<bool(Token)> & ends) {
    Verdict verdict;
    for (size_t i = 0; i <= draft.size(); ++i) {
        const Token token = sampler.sample(target, row + (int32_t) i);
        verdict.tokens.push_back(token);
        if (token == no_token) {
            break;
        }
        sampler.accept(token);

        const bool accepted = i < draft.size() && token == draft[i];
        verdict.n_accepted += accepted ? 1 : 0;
        if (!accepted || ends(token)) {
            break;
        }
    }
    return verdict;
}

}  // namespace dflash2
