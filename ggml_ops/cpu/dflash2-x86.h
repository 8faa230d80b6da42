#pragma once

// Vectors of bytes, of sums of four of them, and of floats, in the two widths that x86 has for them. Neither: DFLASH2_X86 is
// not defined.

#include "dflash2-common.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#define DFLASH2_X86 512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define DFLASH2_X86 256
#endif

#ifdef DFLASH2_X86

#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
// of intrinsics that begin with an undefined vector: https://gcc.gnu.org/PR105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

// Without a name: the same functions are of another width in another variant of ggml-cpu
namespace dflash2 {
namespace {

inline void prefetch(const void * p) {
    _mm_prefetch((const char *) p, _MM_HINT_T0);
}

// 8 rows of 8 floats to 8 columns
inline void transpose_8x8(const float * from, size_t from_stride, float * to, size_t to_stride) {
    __m256 rows[8], pairs[8];
    DFLASH2_UNROLL
    for (int i = 0; i < 8; ++i) {
        // a half of each of two rows that lie four apart, so that all that is left to do stays within halves
        const float * p = from + i % 4 * from_stride + i / 4 * 4;
        rows[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * from_stride), 1);
    }
    DFLASH2_UNROLL
    for (int i = 0; i < 8; i += 2) {
        pairs[i]     = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    DFLASH2_UNROLL
    for (int i = 0; i < 8; i += 4) {
        float * p = to + i * to_stride;
        _mm256_storeu_ps(p, _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44));
        _mm256_storeu_ps(p + to_stride, _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE));
        _mm256_storeu_ps(p + 2 * to_stride, _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44));
        _mm256_storeu_ps(p + 3 * to_stride, _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE));
    }
}

inline __m256i load_256(const void * p) {
    return _mm256_loadu_si256((const __m256i *) p);
}

// 16 bytes with two numbers each: first the lower ones
inline __m256i halves_256(const void * p) {
    const __m128i x = _mm_loadu_si128((const __m128i *) p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(15));
}

#if DFLASH2_X86 == 512
using Bytes  = __m512i;
using Floats = __m512;

inline Bytes load_bytes(const void * p) {
    return _mm512_loadu_si512(p);
}

inline void store_bytes(void * p, Bytes x) {
    _mm512_storeu_si512(p, x);
}

inline Bytes all_bytes(int x) {
    return _mm512_set1_epi8((char) x);
}

inline Bytes negative(Bytes ints) {
    return _mm512_sub_epi32(_mm512_setzero_si512(), ints);
}

inline Floats load_floats(const float * p) {
    return _mm512_loadu_ps(p);
}

inline void store_floats(float * p, Floats x) {
    _mm512_storeu_ps(p, x);
}

inline Floats multiply(Floats a, Floats b) {
    return _mm512_mul_ps(a, b);
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
}

inline Floats to_floats(Bytes ints) {
    return _mm512_cvtepi32_ps(ints);
}

inline Floats widen_f16(const void * p) {
    return _mm512_cvtph_ps(load_256(p));
}

inline Floats widen_bf16(const void * p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16));
}

inline __m256 fold(Floats x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

// Adds the sums of four neighbours of `a` (0 to 255) times those of `b` (signed)
inline Bytes dot(Bytes ints, Bytes a, Bytes b) {
    return _mm512_dpbusd_epi32(ints, a, b);
}

// Signed `a` is made unsigned by an offset, which the caller takes off the sums
constexpr int SIGN_OFFSET = 128;

inline Bytes lift(Bytes a) {
    return _mm512_xor_si512(a, _mm512_set1_epi8((char) 0x80));
}

inline Bytes dot_lifted(Bytes ints, Bytes a, Bytes b) {
    return dot(ints, a, b);
}

inline Bytes low_bits(Bytes x, int n) {
    return _mm512_and_si512(x, _mm512_set1_epi8((char) ((1 << n) - 1)));
}

// Bytes that are masked afterwards: bits of a neighbour come in
inline Bytes shift_right(Bytes x, int n) {
    return _mm512_srl_epi16(x, _mm_cvtsi32_si128(n));
}

// The bits of `high` above the four of `low`
inline Bytes join(Bytes low, Bytes high) {
    return _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
}

// Two blocks of 32 values, `stride` bytes apart
inline Bytes blocks(const void * p, size_t stride) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_256(p)), load_256((const char *) p + stride), 1);
}

inline Bytes blocks_of_halves(const void * p, size_t stride) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(halves_256(p)), halves_256((const char *) p + stride), 1);
}

// The same 32 bytes for both, shifted right by n, and by `step` more in the second
inline Bytes blocks_shifted(const void * p, int n, int step) {
    const __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi16((short) n), _mm256_set1_epi16((short) (n + step)), 1);
    return _mm512_srlv_epi16(_mm512_broadcast_i64x4(load_256(p)), shifts);
}

// A number for all values of each block, in F16 `stride` bytes apart
inline Floats of_blocks(const uint16_t * f16, size_t stride) {
    uint16_t second;
    std::memcpy(&second, (const char *) f16 + stride, sizeof(second));
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_set1_epi16((short) second), _mm_set1_epi16((short) *f16)));
}

// Eight numbers, in the lower lanes
inline Floats eight_floats(const uint8_t * numbers) {
    const __m256 eight = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) numbers)));
    return _mm512_insertf32x8(_mm512_setzero_ps(), eight, 0);
}

// Of eight numbers those of two blocks, the first of them and the next, for all of their values
inline Floats of_blocks(Floats eight, int first) {
    return _mm512_permutexvar_ps(_mm512_inserti64x4(_mm512_set1_epi32(first), _mm256_set1_epi32(first + 1), 1), eight);
}

// A number for each 16 values
inline Floats of_sixteens(const int8_t * numbers) {
    int32_t four;
    std::memcpy(&four, numbers, sizeof(four));
    const __m128i each = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_shuffle_epi8(_mm_cvtsi32_si128(four), each)));
}

inline Floats all(uint16_t f16) {
    return _mm512_cvtph_ps(_mm256_set1_epi16((short) f16));
}
#else
using Bytes  = __m256i;
using Floats = __m256;

inline Bytes load_bytes(const void * p) {
    return load_256(p);
}

inline void store_bytes(void * p, Bytes x) {
    _mm256_storeu_si256((__m256i *) p, x);
}

inline Bytes all_bytes(int x) {
    return _mm256_set1_epi8((char) x);
}

inline Bytes negative(Bytes ints) {
    return _mm256_sub_epi32(_mm256_setzero_si256(), ints);
}

inline Floats load_floats(const float * p) {
    return _mm256_loadu_ps(p);
}

inline void store_floats(float * p, Floats x) {
    _mm256_storeu_ps(p, x);
}

inline Floats multiply(Floats a, Floats b) {
    return _mm256_mul_ps(a, b);
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
}

inline Floats to_floats(Bytes ints) {
    return _mm256_cvtepi32_ps(ints);
}

inline Floats widen_f16(const void * p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}

inline Floats widen_bf16(const void * p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
}

inline __m256 fold(Floats x) {
    return x;
}

// Adds the sums of four neighbours of `a` (0 to 128, for sums of two must fit 16 bits) times those of `b` (signed)
inline Bytes dot(Bytes ints, Bytes a, Bytes b) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(ints, a, b);
#else
    return _mm256_add_epi32(ints, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
}

// Signed `a` stays as it is: its sign goes over to `b`
constexpr int SIGN_OFFSET = 0;

inline Bytes lift(Bytes a) {
    return a;
}

inline Bytes dot_lifted(Bytes ints, Bytes a, Bytes b) {
    return dot(ints, _mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
}

inline Bytes low_bits(Bytes x, int n) {
    return _mm256_and_si256(x, _mm256_set1_epi8((char) ((1 << n) - 1)));
}

// Bytes that are masked afterwards: bits of a neighbour come in
inline Bytes shift_right(Bytes x, int n) {
    return _mm256_srli_epi16(x, n);
}

// The bits of `high` above the four of `low`
inline Bytes join(Bytes low, Bytes high) {
    return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
}

// One block of 32 values: there is no next one
inline Bytes blocks(const void * p, size_t /* stride */) {
    return load_256(p);
}

inline Bytes blocks_of_halves(const void * p, size_t /* stride */) {
    return halves_256(p);
}

// A number for all values of the block, in F16
inline Floats of_blocks(const uint16_t * f16, size_t /* stride */) {
    return _mm256_cvtph_ps(_mm_set1_epi16((short) *f16));
}

inline Floats eight_floats(const uint8_t * numbers) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) numbers)));
}

// Eight numbers as 16 bits, twice
inline Bytes twice_eight_shorts(const uint8_t * numbers) {
    return _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) numbers)));
}

// Sixteen numbers as 16 bits, those of even number in the lower half
inline Bytes even_and_odd_shorts(const int8_t * numbers) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *) numbers), order));
}

// Number i of each half, in all places of that half
inline Bytes spread_short(Bytes shorts, int i) {
    return _mm256_shuffle_epi8(shorts, _mm256_set1_epi16((short) ((2 * i + 1) << 8 | 2 * i)));
}

// Sums of two products
inline Bytes dot_shorts(Bytes a, Bytes b) {
    return _mm256_madd_epi16(a, b);
}

// As dot(), the sums of two times a scale of 16 bits
inline Bytes dot_scaled(Bytes ints, Bytes a, Bytes b, Bytes scale) {
    return _mm256_add_epi32(ints, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), scale));
}

inline Bytes subtract(Bytes ints, Bytes others) {
    return _mm256_sub_epi32(ints, others);
}

inline Bytes multiply(Bytes ints, int by) {
    return _mm256_mullo_epi32(ints, _mm256_set1_epi32(by));
}

inline Floats all(uint16_t f16) {
    return _mm256_cvtph_ps(_mm_set1_epi16((short) f16));
}
#endif

// The sum of each of eight vectors, always in the same order
inline __m256 sums_of(const Floats * x) {
    const auto pair = [&](int i) {
        return _mm256_hadd_ps(fold(x[i]), fold(x[i + 1]));
    };
    const __m256 a = _mm256_hadd_ps(pair(0), pair(2));
    const __m256 b = _mm256_hadd_ps(pair(4), pair(6));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

}  // namespace
}  // namespace dflash2

#endif
