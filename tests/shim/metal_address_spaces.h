#pragma once

// The Metal shading language for clang, to be compiled and not run: with address spaces, and functions without bodies.

typedef unsigned char  uint8_t;
typedef signed char    int8_t;
typedef int            int32_t;
typedef unsigned       uint32_t;
typedef unsigned long  uint64_t;
typedef unsigned short ushort;
typedef unsigned       uint;
typedef __fp16 half;

struct uint3 {
    uint x, y, z;
};

int  min(int a, int b);
uint simd_max(uint x);
uint simd_min(uint x);

enum class mem_flags { mem_threadgroup };

void threadgroup_barrier(mem_flags flags);

namespace precise {

float tanh(float x);

}  // namespace precise

template <typename To, typename From>
To as_type(From from) {
    return __builtin_bit_cast(To, from);
}

#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define kernel
