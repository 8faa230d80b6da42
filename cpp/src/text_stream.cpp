#include "text_stream.h"

#include <algorithm>

namespace dflash2 {

namespace {

constexpr const char * replacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the character that begins with `lead`; 0: no character begins so
size_t character_size(unsigned char lead) {
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        return 4;
    }
    return 0;
}

// Whether `second` may follow `lead`: the rest of the forms that RFC 3629 excludes (overlong, surrogates, > U+10FFFF)
bool fits(unsigned char lead, unsigned char second) {
    switch (lead) {
    case 0xE0:
        return second >= 0xA0 && second <= 0xBF;
    case 0xED:
        return second >= 0x80 && second <= 0x9F;
    case 0xF0:
        return second >= 0x90 && second <= 0xBF;
    case 0xF4:
        return second >= 0x80 && second <= 0x8F;
    default:
        return (second & 0xC0) == 0x80;
    }
}

// Moves whole characters from the front of `bytes`, which ends where the text may be cut. With `last`, an unfinished
// character at the end is replaced, otherwise it stays.
std::string take_characters(std::string & bytes, size_t end, bool last) {
    std::string text;
    size_t      i = 0;
    while (i < end) {
        const auto   lead = (unsigned char) bytes[i];
        const size_t size = character_size(lead);
        size_t       good = 1;
        while (size > 1 && good < size && i + good < end &&
               (good == 1 ? fits(lead, bytes[i + 1]) : ((unsigned char) bytes[i + good] & 0xC0) == 0x80)) {
            ++good;
        }
        if (good == size) {
            text.append(bytes, i, size);
        } else if (size > 0 && i + good == end && !last) {
            break;
        } else {
            text += replacement;
        }
        i += good;
    }
    bytes.erase(0, i);
    return text;
}

}  // namespace

std::string TextStream::push(const std::string & piece) {
    if (stopped_) {
        return {};
    }
    held_ += piece;

    size_t first = std::string::npos;
    for (const std::string & stop : stop_) {
        first = std::min(first, held_.find(stop));
    }
    if (first != std::string::npos) {
        stopped_ = true;
        return take_characters(held_, first, /*last=*/true);
    }

    size_t may_begin = 0;  // length of the longest end of held_ that begins a stop string
    for (const std::string & stop : stop_) {
        for (size_t n = std::min(stop.size() - 1, held_.size()); n > may_begin; --n) {
            if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
                may_begin = n;
            }
        }
    }
    return take_characters(held_, held_.size() - may_begin, /*last=*/may_begin > 0);
}

std::string TextStream::finish() {
    return stopped_ ? std::string() : take_characters(held_, held_.size(), /*last=*/true);
}

}  // namespace dflash2
