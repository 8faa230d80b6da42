#pragma once

#include "ggml-cpu-impl.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cstdint>

// The vectors of SVE and RVV have no size at compile time: there the compiler makes them of the plain loops.
#if defined(GGML_SIMD) && !defined(__ARM_FEATURE_SVE) && !defined(__riscv_v_intrinsic)
#define DFLASH2_SIMD
#endif

// For functions and loops whose arrays of vectors are to be registers, whatever a compiler thinks of their size
#ifdef _MSC_VER
#define DFLASH2_INLINE __forceinline
#define DFLASH2_UNROLL
#elif defined(__clang__)
#define DFLASH2_INLINE inline __attribute__((always_inline))
#define DFLASH2_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DFLASH2_INLINE inline __attribute__((always_inline))
#define DFLASH2_UNROLL _Pragma("GCC unroll 16")
#endif

// Keeps a vector in a register: GCC reads it from memory again at each use, and these loops wait for reads
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
#define DFLASH2_HOLD(x) asm("" : "+v"(x))
#else
#define DFLASH2_HOLD(x)
#endif

namespace dflash2 {

// Row i of a tensor of which dimension 0 is dense
inline const float * row_of(const ggml_tensor * tensor, int64_t i) {
    return (const float *) ((const char *) tensor->data + i * tensor->nb[1]);
}

struct Range {
    int64_t begin;
    int64_t end;
};

// What one thread does of n_items equal pieces of work
inline Range share_of(const ggml_compute_params * params, int64_t n_items) {
    const int64_t n = params->nth;
    return { (n_items * params->ith + n - 1) / n, (n_items * (params->ith + 1) + n - 1) / n };
}

// Hands out n_items, `size` at a time, to whichever thread is free: pieces may differ in work, and cores in speed. First
// waits for all threads
template <typename Function>
void in_turns(const ggml_compute_params * params, int64_t n_items, int64_t size, const Function & function) {
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    for (int64_t turn = params->ith; turn * size < n_items; turn = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        function(Range{ turn * size, std::min(n_items, (turn + 1) * size) });
    }
}

}  // namespace dflash2
