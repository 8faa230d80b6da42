#include "dflash2-common.h"
#include "dflash2-cpu.h"
#include "ggml-dflash2.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

// The rows are one length that the threads share, so that few of them are cut. Each thread keeps the best of every row that
// it has a part of; then the parts of a row are merged, some rows per thread.

namespace {

using dflash2::Range;
using dflash2::row_of;
using dflash2::share_of;

// A logit and its id as one number, the greater the better: (logit descending, id ascending), NaN as -inf
using Key = int64_t;

constexpr Key NO_KEY = INT64_MIN;  // below every key

inline Key make_key(float logit, int64_t id) {
    const float value = std::isnan(logit) ? -INFINITY : logit + 0.0f;  // -0 is 0
    int32_t     bits;
    std::memcpy(&bits, &value, sizeof(bits));
    bits ^= bits < 0 ? INT32_MAX : 0;  // as an integer in the order of the floats
    return (Key) ((uint64_t) bits << 32 | (uint32_t) ~id);
}

inline int32_t id_of(Key key) {
    return (int32_t) ~key;
}

inline float logit_of(Key key) {
    int32_t bits = (int32_t) (key >> 32);
    bits ^= bits < 0 ? INT32_MAX : 0;
    float logit;
    std::memcpy(&logit, &bits, sizeof(logit));
    return logit;
}

// Puts a key where it belongs among the k best so far, which are sorted; the last of them is dropped. No branch depends
// on the keys, so that rows in which every logit beats those before it take no longer.
inline void insert(Key * best, int64_t k, Key key) {
    for (int64_t i = k - 1; i > 0; --i) {
        best[i] = std::max(best[i], std::min(best[i - 1], key));
    }
    best[0] = std::max(best[0], key);
}

constexpr int64_t LOGITS_AT_ONCE = 64;
static_assert(LOGITS_AT_ONCE >= GGML_DFLASH2_MAX_CANDIDATES, "a row's first threshold takes one of each group");
constexpr int64_t HEAD  = 64 * LOGITS_AT_ONCE;
constexpr int64_t AHEAD = 1024;  // what the memory needs, rather than what the hardware guesses: a fifth of the time

inline void prefetch(const float * x) {
#if defined(__GNUC__)
    for (int i = 0; i < LOGITS_AT_ONCE; i += 64 / sizeof(float)) {
        __builtin_prefetch(x + i);
    }
#else
    GGML_UNUSED(x);
#endif
}

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

inline int highest_bit(uint64_t bits) {
#if defined(__GNUC__)
    return 63 - __builtin_clzll(bits);
#else
    int i = 63;
    while (!(bits >> i & 1)) {
        --i;
    }
    return i;
#endif
}

// A number that k of the first HEAD logits exceed and few others do, or -inf: below the k-th of the greatest ones of as
// many groups of them as are compared at once. It saves the start, where nearly every logit is among the best so far.
float first_threshold(const float * logits, int64_t k) {
    float greatest[LOGITS_AT_ONCE];
    std::fill_n(greatest, LOGITS_AT_ONCE, -INFINITY);
    for (int64_t i = 0; i < HEAD; i += LOGITS_AT_ONCE) {
        for (int64_t j = 0; j < LOGITS_AT_ONCE; ++j) {
            greatest[j] = logits[i + j] > greatest[j] ? logits[i + j] : greatest[j];
        }
    }
    std::nth_element(greatest, greatest + k - 1, greatest + LOGITS_AT_ONCE, std::greater<float>());
    const float kth = greatest[k - 1];
    // a little less than it, and not by a denormal number, which some programs have switched off
    return std::isfinite(kth) ? kth - std::max(1e-6f * std::fabs(kth), 1e-30f) : -INFINITY;
}

// The k best of `ids`, sorted; NO_KEY at the end if there are fewer. Each logit is compared with the k-th best so far,
// which few of them beat.
void search(const float * logits, Range ids, int64_t k, Key * best) {
    std::fill(best, best + k, NO_KEY);
    int64_t id        = ids.begin;
    float   threshold = ids.end - ids.begin < HEAD ? -INFINITY : first_threshold(logits + id, k);
    if (threshold == -INFINITY) {
        // whatever they are: even -inf is taken if there is nothing better
        for (; id < std::min(ids.begin + k, ids.end); ++id) {
            insert(best, k, make_key(logits[id], id));
        }
        if (id == ids.end) {
            return;
        }
        threshold = logit_of(best[k - 1]);
    }
    const auto offer = [&](int64_t candidate) {
        const Key key = make_key(logits[candidate], candidate);
        if (key > best[k - 1]) {
            insert(best, k, key);
        }
    };
    for (; id + LOGITS_AT_ONCE <= ids.end; id += LOGITS_AT_ONCE) {
        prefetch(logits + id + AHEAD);
        // an equal logit further on has a greater id and is never better
        uint64_t bits = above(logits + id, threshold);
        if (bits) {
            // from the last on: where logits ascend, those before it are then no longer among the best
            do {
                const int bit = highest_bit(bits);
                bits ^= (uint64_t) 1 << bit;
                offer(id + bit);
            } while (bits);
            threshold = best[k - 1] == NO_KEY ? threshold : logit_of(best[k - 1]);
        }
    }
    for (; id < ids.end; ++id) {
        offer(id);
    }
}

}  // namespace

size_t ggml_dflash2_topk_work_size(const ggml_tensor * node, int n_tasks) {
    const int64_t k      = node->ne[0];
    const int64_t n_rows = node->ne[1];
    // of each thread: the best of its part of every row, and those of one row from all threads
    return n_tasks * (n_rows * k + n_tasks * k) * sizeof(Key);
}

void ggml_compute_forward_dflash2_topk(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * logits = dst->src[0];

    const int64_t k       = ggml_get_op_params_i32(dst, 0);
    const int64_t n_vocab = ggml_get_op_params_i32(dst, 1);
    const int64_t n_rows  = dst->ne[1];

    Key * const parts = (Key *) params->wdata;  // [k, rows, threads]
    const Range share = share_of(params, n_rows * n_vocab);
    for (int64_t row = 0; row < n_rows; ++row) {
        const Range ids = { std::clamp<int64_t>(share.begin - row * n_vocab, 0, n_vocab),
                            std::clamp<int64_t>(share.end - row * n_vocab, 0, n_vocab) };
        search(row_of(logits, row), ids, k, parts + (params->ith * n_rows + row) * k);
    }
    ggml_barrier(params->threadpool);

    const int64_t n_found = params->nth * k;
    Key * const   found   = parts + params->nth * n_rows * k + params->ith * n_found;
    const Range   rows    = share_of(params, n_rows);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int64_t thread = 0; thread < params->nth; ++thread) {
            std::copy_n(parts + (thread * n_rows + row) * k, k, found + thread * k);
        }
        std::partial_sort(found, found + k, found + n_found, std::greater<Key>());
        std::transform(found, found + k, (int32_t *) dst->data + row * k, id_of);
    }
}
