#pragma once

#include <string>
#include <vector>

namespace dflash2 {

// Turns the pieces of tokens into text that can be shown: whole UTF-8 characters, nothing of a stop string. Bytes that
// are no UTF-8 become U+FFFD.
class TextStream {
public:
    explicit TextStream(std::vector<std::string> stop) : stop_(std::move(stop)) {}

    // Text that has become certain with this piece. What may turn out to be the beginning of a stop string, or is an
    // unfinished character, is held back.
    std::string push(const std::string & piece);

    // What was held back, when the answer ends without a stop string.
    std::string finish();

    // Whether a stop string has come: the text ended before it.
    bool stopped() const { return stopped_; }

private:
    std::string              held_;
    std::vector<std::string> stop_;
    bool                     stopped_ = false;
};

}  // namespace dflash2
