#pragma once

// The Metal shading language on top of the executor, as much as kernels here use: include this, then the .metal files.
// Address spaces are gone, so a pointer into the wrong one is not noticed.
//
// The words of the language are macros. What a launcher needs is in namespace shim::metal, under names that are none.

#include "executor.h"

#include <algorithm>
#include <cmath>
#include <limits>

struct uint3 {
    unsigned x, y, z;
};

using uint   = unsigned;
using ushort = unsigned short;
using half   = _Float16;

namespace precise {

inline float tanh(float x) {
    return std::tanh(x);
}

}  // namespace precise

using std::max;
using std::min;

template <typename To, typename From>
To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

template <typename T>
T simd_max(T x, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    return shim::reduce(x, [](T a, T b) { return std::max(a, b); }, file, line);
}

template <typename T>
T simd_min(T x, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    return shim::reduce(x, [](T a, T b) { return std::min(a, b); }, file, line);
}

enum class mem_flags { mem_threadgroup };

inline void threadgroup_barrier(mem_flags, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    shim::barrier(file, line);
}

namespace shim::metal {

inline uint3 as_uint3(const Dim & dim) {
    return { dim.x, dim.y, dim.z };
}

// The attributes of a kernel's last parameters
inline uint3 group_position() {
    return as_uint3(position().block);
}
inline uint3 position_in_group() {
    return as_uint3(position().thread);
}
inline uint3 group_size() {
    return as_uint3(launch().block);
}
inline uint3 position_in_grid() {
    const uint3 group = group_position();
    const uint3 size  = group_size();
    const uint3 at    = position_in_group();
    return { group.x * size.x + at.x, group.y * size.y + at.y, group.z * size.z + at.z };
}
inline uint index_in_group() {
    return position().index;
}
inline uint simd_group() {
    return position().simd;
}
inline uint lane() {
    return position().lane;
}

}  // namespace shim::metal

#pragma GCC diagnostic ignored "-Wattributes"
#define constant const
#define device
#define kernel
#define thread
// In a kernel's parameters only, never for a variable: that memory is shim::shared(). volatile, since it is also an
// attribute, and of the words that may stand before a type only a keyword may be that.
#define threadgroup volatile
