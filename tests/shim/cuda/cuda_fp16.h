#pragma once

// Stands for CUDA's header of this name, which ggml-common.h includes.

#include <cmath>
#include <cstdint>

struct half {
    uint16_t bits;
};

struct half2 {
    half x;
    half y;
};

inline float __half2float(half value) {
    const int   exponent = value.bits >> 10 & 0x1F;
    const int   fraction = value.bits & 0x3FF;
    const float sign     = (value.bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 0x1F) {
        return fraction != 0 ? NAN : sign * INFINITY;
    }
    return sign *
           (exponent == 0 ? std::ldexp((float) fraction, -24) : std::ldexp((float) (fraction + 1024), exponent - 25));
}

inline float __low2float(half2 value) {
    return __half2float(value.x);
}

inline float __high2float(half2 value) {
    return __half2float(value.y);
}
