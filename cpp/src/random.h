#pragma once

#include <cstdint>
#include <random>

namespace dflash2 {

// What a request draws random numbers for. Each has a stream of its own: a walk that shared numbers with the decision
// on what it drew would make that decision depend on it, and the output would no longer follow the target's law.
enum class Stream : uint32_t { walk, accept, residual };

class Random {
public:
    Random(uint32_t seed, Stream stream) {
        std::seed_seq words{ seed, (uint32_t) stream };
        engine_.seed(words);
    }

    // In [0, 1), 53 bits
    double uniform() { return (double) (engine_() >> 11) * 0x1p-53; }

private:
    std::mt19937_64 engine_;
};

}  // namespace dflash2
