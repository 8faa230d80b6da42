#include "dflash2-common.h"
#include "dflash2-cpu.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

// Each thread searches its part of every row and keeps the best of it; then the rows' parts are merged, some rows per
// thread.

namespace {

using dflash2::Range;
using dflash2::row_of;
using dflash2::share_of;

// A logit and its id as one number, the greater the better: (logit descending, id ascending), NaN as -inf. Never 0.
using Key = uint64_t;

inline Key make_key(float logit, int64_t id) {
    const float value = std::isnan(logit) ? -INFINITY : logit + 0.0f;  // -0 is 0
    uint32_t    bits;
    std::memcpy(&bits, &value, sizeof(bits));
    bits ^= bits >> 31 ? 0xffffffff : 0x80000000;  // as an integer in the order of the floats
    return (Key) bits << 32 | (uint32_t) ~id;
}

inline int32_t id_of(Key key) {
    return (int32_t) ~(uint32_t) key;
}

inline float logit_of(Key key) {
    uint32_t bits = (uint32_t) (key >> 32);
    bits ^= bits >> 31 ? 0x80000000 : 0xffffffff;
    float logit;
    std::memcpy(&logit, &bits, sizeof(logit));
    return logit;
}

// The k greatest of keys come first, in no order
inline void select(Key * keys, int64_t n, int64_t k) {
    if (n > k) {
        std::nth_element(keys, keys + k - 1, keys + n, std::greater<Key>());
    }
}

// Keys that a thread collects before it drops all but the k best. Far more than k, so that even where every logit
// beats those before it the work per logit does not depend on k.
constexpr int64_t KEYS_PER_CANDIDATE = 4;

// Keys of the memory of one thread: those it collects, and its best of each row
inline int64_t keys_per_thread(int64_t k, int64_t n_rows) {
    return KEYS_PER_CANDIDATE * k + n_rows * k;
}

constexpr int64_t LOGITS_AT_ONCE = 64;

// Bit i: x[i] > threshold, and so not NaN
inline uint64_t above(const float * x, float threshold) {
#if defined(__AVX512F__)
    const __m512 all  = _mm512_set1_ps(threshold);
    uint64_t     bits = 0;
    for (int i = 0; i < 4; ++i) {
        bits |= (uint64_t) _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 16 * i), all, _CMP_GT_OQ) << 16 * i;
    }
    return bits;
#elif defined(__AVX__)
    const __m256 all  = _mm256_set1_ps(threshold);
    uint64_t     bits = 0;
    for (int i = 0; i < 8; ++i) {
        const __m256 greater = _mm256_cmp_ps(_mm256_loadu_ps(x + 8 * i), all, _CMP_GT_OQ);
        bits |= (uint64_t) _mm256_movemask_ps(greater) << 8 * i;
    }
    return bits;
#else
    // Nearly always there is none, which takes one vector instruction to tell.
#if defined(__ARM_NEON) && defined(__aarch64__)
    uint32x4_t greater = vdupq_n_u32(0);
    for (int i = 0; i < LOGITS_AT_ONCE; i += 4) {
        greater = vorrq_u32(greater, vcgtq_f32(vld1q_f32(x + i), vdupq_n_f32(threshold)));
    }
    const bool any = vmaxvq_u32(greater) != 0;
#else
    int any = 0;
    for (int i = 0; i < LOGITS_AT_ONCE; ++i) {
        any |= x[i] > threshold;
    }
#endif
    uint64_t bits = 0;
    for (int i = 0; any && i < LOGITS_AT_ONCE; ++i) {
        bits |= (uint64_t) (x[i] > threshold) << i;
    }
    return bits;
#endif
}

inline int lowest_bit(uint64_t bits) {
#if defined(__GNUC__)
    return __builtin_ctzll(bits);
#else
    int i = 0;
    while (!(bits >> i & 1)) {
        ++i;
    }
    return i;
#endif
}

// Puts the k best ids of `ids` into best, in no order, with zeros after them if there are fewer. Each logit is compared
// with the k-th best so far; those above are collected and now and then sorted out.
void search(const float * logits, Range ids, int64_t k, Key * collected, Key * best) {
    const int64_t capacity = KEYS_PER_CANDIDATE * k;
    int64_t       n        = 0;
    int64_t       id       = ids.begin;
    // whatever they are: even -inf is taken if there is nothing better
    while (id < ids.end && n < capacity) {
        collected[n++] = make_key(logits[id], id);
        ++id;
    }
    select(collected, n, k);
    n                    = std::min(n, k);
    float      threshold = n == k ? logit_of(collected[k - 1]) : -INFINITY;
    const auto offer     = [&](int64_t candidate) {
        collected[n++] = make_key(logits[candidate], candidate);
        if (n == capacity) {
            select(collected, n, k);
            n         = k;
            threshold = logit_of(collected[k - 1]);
        }
    };
    // an equal logit further on has a greater id and is never better
    for (; id + LOGITS_AT_ONCE <= ids.end; id += LOGITS_AT_ONCE) {
        for (uint64_t bits = above(logits + id, threshold); bits; bits &= bits - 1) {
            offer(id + lowest_bit(bits));
        }
    }
    for (; id < ids.end; ++id) {
        if (logits[id] > threshold) {
            offer(id);
        }
    }
    select(collected, n, k);
    n = std::min(n, k);
    std::copy(collected, collected + n, best);
    std::fill(best + n, best + k, 0);
}

}  // namespace

size_t ggml_dflash2_topk_work_size(const ggml_tensor * node, int n_tasks) {
    const int64_t k         = node->ne[0];
    const int64_t n_rows    = node->ne[1];
    const int64_t n_to_sort = n_tasks * k;  // of the row that a thread merges
    return n_tasks * (keys_per_thread(k, n_rows) + n_to_sort) * sizeof(Key);
}

void ggml_compute_forward_dflash2_topk(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * logits = dst->src[0];

    const int64_t k       = ggml_get_op_params_i32(dst, 0);
    const int64_t n_vocab = ggml_get_op_params_i32(dst, 1);
    const int64_t n_rows  = dst->ne[1];
    const int64_t stride  = keys_per_thread(k, n_rows);

    Key * const work      = (Key *) params->wdata;
    Key * const collected = work + params->ith * stride;
    Key * const best      = collected + KEYS_PER_CANDIDATE * k;
    const Range ids       = share_of(params, n_vocab);
    for (int64_t row = 0; row < n_rows; ++row) {
        search(row_of(logits, row), ids, k, collected, best + row * k);
    }
    ggml_barrier(params->threadpool);

    Key * const all  = work + params->nth * stride + params->ith * params->nth * k;
    const Range rows = share_of(params, n_rows);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int thread = 0; thread < params->nth; ++thread) {
            const Key * part = work + thread * stride + (KEYS_PER_CANDIDATE + row) * k;
            std::copy(part, part + k, all + thread * k);
        }
        std::partial_sort(all, all + k, all + params->nth * k, std::greater<Key>());
        std::transform(all, all + k, (int32_t *) dst->data + row * k, id_of);
    }
}
