#pragma once

// Buffers for kernels: one side lies against a page that cannot be touched, the rest of the mapping is watched.

#include "executor.h"

namespace shim {

class Buffer {
public:
    // at_end: the untouchable page is behind the buffer, else in front of it. The start is aligned to 16 bytes.
    Buffer(size_t size, bool at_end) : pages_(size), size_(size) {
        data_ = at_end ? pages_.last() - (size + 15) / 16 * 16 : pages_.first();
        std::memset(pages_.first(), poison, (size_t) (pages_.last() - pages_.first()));
    }

    unsigned char * data() const { return data_; }
    size_t          size() const { return size_; }

    // Whether nothing was written beside the buffer.
    bool intact() const {
        const auto is_poison = [](unsigned char byte) {
            return byte == poison;
        };
        return std::all_of(pages_.first(), data_, is_poison) && std::all_of(data_ + size_, pages_.last(), is_poison);
    }

private:
    GuardedPages    pages_;
    size_t          size_;
    unsigned char * data_;
};

}  // namespace shim
