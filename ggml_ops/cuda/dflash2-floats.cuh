#pragma once

// n floats that are loaded and stored in one access; the address must be a multiple of their size.
template <int n>
struct alignas(n * sizeof(float)) dflash2_floats {
    float v[n];
};

template <int n>
static __device__ __forceinline__ dflash2_floats<n> dflash2_load(const float * from) {
    return *reinterpret_cast<const dflash2_floats<n> *>(from);
}

template <int n>
static __device__ __forceinline__ void dflash2_store(float * to, const dflash2_floats<n> & floats) {
    *reinterpret_cast<dflash2_floats<n> *>(to) = floats;
}
