#pragma once

#include "sampler.h"
#include "target.h"

#include <functional>
#include <vector>

namespace dflash2 {

// What the target made of one verified block: the accepted draft tokens, then one token of its own (the bonus token),
// unless a token that ends the answer came first. The last may be no_token.
struct Verdict {
    std::vector<Token> tokens;
    int32_t            n_accepted = 0;
};

// Rule `match`: the target's own draw at each row, kept on while it equals the draft. The tokens are those of decoding
// without a drafter, whatever the sampler chain.
// row: of the anchor in the target's last decode; the draft tokens follow it. ends: tokens after which nothing is drawn
Verdict verify_match(Sampler &                          sampler,
                     const Target &                     target,
                     int32_t                            row,
                     const std::vector<Token> &         draft,
                     const std::function<bool(Token)> & ends);

}  // namespace dflash2
