#include "common.h"
#include "dflash2-common.h"
#include "dflash2-cpu.h"
#include "ggml-cpu.h"
#include "ggml-dflash2.h"
#include "vec.h"

#include <algorithm>
#include <cmath>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
// of intrinsics that begin with an undefined vector: https://gcc.gnu.org/PR105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// Attention of a few rows: those of a draft, of its verification and of plain decoding. ggml's own kernel takes the keys
// one by one for each row and head; this one reads and converts a block of keys and values once for a tile of rows and
// heads that share them, and sums in F32. What it gives for a row does not depend on the other rows, and what a row does
// not see is not looked at: it may be another sequence, or no number.

namespace {

using dflash2::Range;
using dflash2::share_of;

// Keys of a block, one bit each
using Keys                     = uint32_t;
constexpr int64_t KEYS_AT_ONCE = 8 * sizeof(Keys);
constexpr int64_t ROWS_AT_ONCE = 32;  // rows of one head or of several: the queries of a tile
// From here on ggml takes tiles of rows itself
constexpr int64_t FEW = GGML_FA_TILE_Q;
static_assert(KEYS_AT_ONCE <= GGML_FA_TILE_KV, "what a thread needs fits where ggml's tiles do");

struct Attention {
    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * mask;   // NULL: everything is seen
    const ggml_tensor * sinks;  // NULL: none
    ggml_tensor *       dst;
    float               scale;
    float               softcap;  // 0: none
};

// A row of one head
struct Query {
    const float *       q;
    const ggml_fp16_t * mask;  // of the first key; NULL
    const float *       sink;  // NULL
    float *             out;   // not divided by `sum` yet
    float               max;
    float               sum;
};

char * at(const ggml_tensor * tensor, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) tensor->data + i1 * tensor->nb[1] + i2 * tensor->nb[2] + i3 * tensor->nb[3];
}

// Query i, where those that share keys and values are neighbours
Query query(const Attention & a, int64_t i) {
    const int64_t n_rows = a.q->ne[1];
    const int64_t n_head = a.q->ne[2];
    const int64_t row    = i % n_rows;
    const int64_t head   = i / n_rows % n_head;
    const int64_t batch  = i / n_rows / n_head;

    Query query{};
    query.q = (const float *) at(a.q, row, head, batch);
    if (a.mask) {
        query.mask = (const ggml_fp16_t *) at(a.mask, row, head % a.mask->ne[2], batch % a.mask->ne[3]);
    }
    query.sink = a.sinks ? (const float *) a.sinks->data + head : nullptr;
    query.out  = (float *) at(a.dst, head, row, batch);
    query.max  = -INFINITY;
    std::fill_n(query.out, a.v->ne[0], 0.0f);
    return query;
}

// The keys that a query sees of n
Keys seen_by(const Query & query, int64_t first, int64_t n) {
    constexpr uint16_t minus_infinity = 0xFC00;
    Keys               keys           = 0;
    for (int64_t j = 0; j < n; ++j) {
        keys |= (Keys) (!query.mask || query.mask[first + j] != minus_infinity) << j;
    }
    return keys;
}

// Some keys or values of a block as F32, each at its place in [KEYS_AT_ONCE][ne0]
void load(const ggml_tensor * tensor, int64_t first, Keys which, int64_t head, int64_t batch, float * out) {
    const ggml_to_float_t to_float = ggml_get_type_traits(tensor->type)->to_float;
    const int64_t         width    = tensor->ne[0];
    for (int64_t j = 0; which != 0; ++j, which >>= 1, out += width) {
        if ((which & 1) == 0) {
            continue;
        }
        const char * row = at(tensor, first + j, head, batch);
        if (tensor->type == GGML_TYPE_F16) {
            ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) row, out, width);
        } else if (tensor->type == GGML_TYPE_F32) {
            std::copy_n((const float *) row, width, out);
        } else {
            to_float(row, out, width);
        }
    }
}

#ifdef DFLASH2_SIMD
inline float sum_of(GGML_F32_VEC x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(x);
#else
    float numbers[GGML_F32_EPR];
    GGML_F32_VEC_STORE(numbers, x);
    float sum = 0;
    for (float number : numbers) {
        sum += number;
    }
    return sum;
#endif
}

// Of a query with N keys
template <int N>
void dot(const float * q, const float * const * keys, int64_t width, float * scores) {
    GGML_F32_VEC parts[N];
    std::fill_n(parts, N, GGML_F32_VEC_ZERO);
    int64_t i = 0;
    for (; i + GGML_F32_EPR <= width; i += GGML_F32_EPR) {
        const GGML_F32_VEC x = GGML_F32_VEC_LOAD(q + i);
        for (int j = 0; j < N; ++j) {
            parts[j] = GGML_F32_VEC_FMA(parts[j], x, GGML_F32_VEC_LOAD(keys[j] + i));
        }
    }
    for (int j = 0; j < N; ++j) {
        scores[j] = sum_of(parts[j]);
        for (int64_t c = i; c < width; ++c) {
            scores[j] += q[c] * keys[j][c];
        }
    }
}

void dots(const float * q, const float * const * keys, int64_t n, int64_t width, float * scores) {
    constexpr int AT_ONCE = 4;
    int64_t       j       = 0;
    for (; j + AT_ONCE <= n; j += AT_ONCE) {
        dot<AT_ONCE>(q, keys + j, width, scores + j);
    }
    for (; j < n; ++j) {
        dot<1>(q, keys + j, width, scores + j);
    }
}

// out[c] += sum over j of weights[j] * values[j][c] for the channels of N vectors, from c on while they last
template <int N>
void add_channels(
    int64_t & c, int64_t width, const float * weights, const float * const * values, int64_t n, float * out) {
    for (; c + N * GGML_F32_EPR <= width; c += N * GGML_F32_EPR) {
        GGML_F32_VEC sums[N];
        for (int i = 0; i < N; ++i) {
            sums[i] = GGML_F32_VEC_LOAD(out + c + i * GGML_F32_EPR);
        }
        for (int64_t j = 0; j < n; ++j) {
            const GGML_F32_VEC weight = GGML_F32_VEC_SET1(weights[j]);
            for (int i = 0; i < N; ++i) {
                sums[i] = GGML_F32_VEC_FMA(sums[i], GGML_F32_VEC_LOAD(values[j] + c + i * GGML_F32_EPR), weight);
            }
        }
        for (int i = 0; i < N; ++i) {
            GGML_F32_VEC_STORE(out + c + i * GGML_F32_EPR, sums[i]);
        }
    }
}

void add_values(const float * weights, const float * const * values, int64_t n, int64_t width, float * out) {
    int64_t c = 0;
    // as many sums as hide how long one takes, and as there are registers for
    add_channels<8>(c, width, weights, values, n, out);
    add_channels<4>(c, width, weights, values, n, out);
    add_channels<1>(c, width, weights, values, n, out);
    for (; c < width; ++c) {
        for (int64_t j = 0; j < n; ++j) {
            out[c] += weights[j] * values[j][c];
        }
    }
}
#else
void dots(const float * q, const float * const * keys, int64_t n, int64_t width, float * scores) {
    for (int64_t j = 0; j < n; ++j) {
        ggml_vec_dot_f32((int) width, scores + j, 0, q, 0, keys[j], 0, 1);
    }
}

void add_values(const float * weights, const float * const * values, int64_t n, int64_t width, float * out) {
    for (int64_t j = 0; j < n; ++j) {
        ggml_vec_mad_f32((int) width, out, values[j], weights[j]);
    }
}
#endif

void rescale(Query & query, int64_t n_out, float max) {
    const float factor = std::exp(query.max - max);  // 0 at first
    ggml_vec_scale_f32((int) n_out, query.out, factor);
    query.sum *= factor;
    query.max = max;
}

// Adds the keys of a block that a query sees, at least one
void attend(const Attention & a, Query & query, int64_t first, Keys seen, const float * keys, const float * values) {
    const float * key[KEYS_AT_ONCE];
    const float * value[KEYS_AT_ONCE];
    float         bias[KEYS_AT_ONCE];
    int64_t       n = 0;
    for (int64_t j = 0; seen != 0; ++j, seen >>= 1) {
        if (seen & 1) {
            key[n]   = keys + j * a.k->ne[0];
            value[n] = values + j * a.v->ne[0];
            bias[n]  = query.mask ? GGML_CPU_FP16_TO_FP32(query.mask[first + j]) : 0;
            ++n;
        }
    }
    float scores[KEYS_AT_ONCE];
    dots(query.q, key, n, a.k->ne[0], scores);
    ggml_vec_scale_f32((int) n, scores, a.scale);
    if (a.softcap != 0.0f) {
        ggml_vec_tanh_f32((int) n, scores, scores);
        ggml_vec_scale_f32((int) n, scores, a.softcap);
    }
    ggml_vec_acc_f32((int) n, scores, bias);

    const float max = *std::max_element(scores, scores + n);
    if (max > query.max) {
        rescale(query, a.v->ne[0], max);
    }
    query.sum += (float) ggml_vec_soft_max_f32((int) n, scores, scores, query.max);
    add_values(scores, value, n, a.v->ne[0], query.out);
}

void finish(Query & query, int64_t n_out) {
    if (query.sink) {
        // one more key, whose value is zero
        if (*query.sink > query.max) {
            rescale(query, n_out, *query.sink);
        }
        query.sum += std::exp(*query.sink - query.max);
    }
    ggml_vec_scale_f32((int) n_out, query.out, query.sum > 0 ? 1 / query.sum : 0);
}

// Queries that share keys and values
void attend_tile(const Attention & a, Range tile, int64_t head, int64_t batch, float * keys, float * values) {
    Query         queries[ROWS_AT_ONCE];
    const int64_t n_queries = tile.end - tile.begin;
    for (int64_t i = 0; i < n_queries; ++i) {
        queries[i] = query(a, tile.begin + i);
    }
    const int64_t n_keys = a.k->ne[1];
    const int64_t n_rows = a.q->ne[1];
    for (int64_t first = 0; first < n_keys; first += KEYS_AT_ONCE) {
        const int64_t n = std::min(KEYS_AT_ONCE, n_keys - first);
        Keys          seen[ROWS_AT_ONCE];
        Keys          any = 0;
        for (int64_t i = 0; i < n_queries; ++i) {
            // the same row of another head, unless heads have masks of their own
            const bool known = i >= n_rows && queries[i].mask == queries[i - n_rows].mask;
            seen[i]          = known ? seen[i - n_rows] : seen_by(queries[i], first, n);
            any |= seen[i];
        }
        load(a.k, first, any, head, batch, keys);
        load(a.v, first, any, head, batch, values);
        for (int64_t i = 0; i < n_queries; ++i) {
            if (seen[i] != 0) {
                attend(a, queries[i], first, seen[i], keys, values);
            }
        }
    }
    for (int64_t i = 0; i < n_queries; ++i) {
        finish(queries[i], a.v->ne[0]);
    }
}

bool is_readable(const ggml_tensor * tensor) {
    return tensor->nb[0] == ggml_type_size(tensor->type) &&
           (tensor->type == GGML_TYPE_F32 || ggml_get_type_traits(tensor->type)->to_float);
}

// Whether this kernel can do it as it was asked to
bool fits(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * q        = dst->src[0];
    const ggml_tensor * k        = dst->src[1];
    const ggml_tensor * v        = dst->src[2];
    const ggml_tensor * mask     = dst->src[3];
    const bool          has_bias = ggml_get_op_params_f32(dst, 1) != 0.0f;
    // else ggml, which cuts the keys of a single row into parts, has work for more threads
    const bool for_all_threads = ggml_nrows(q) >= params->nth;
    return ggml_dflash2_wants_few_rows(dst) && !params->use_ref && for_all_threads && q->ne[1] < FEW && !has_bias &&
           q->type == GGML_TYPE_F32 && is_readable(q) && is_readable(k) && is_readable(v) &&
           (!mask || mask->type == GGML_TYPE_F16) && k->ne[2] == v->ne[2] && k->ne[3] == q->ne[3] &&
           v->ne[3] == q->ne[3];
}

}  // namespace

bool ggml_compute_forward_dflash2_attention(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!fits(params, dst)) {
        return false;
    }
    Attention a{ dst->src[0],
                 dst->src[1],
                 dst->src[2],
                 dst->src[3],
                 dst->src[4],
                 dst,
                 ggml_get_op_params_f32(dst, 0),
                 ggml_get_op_params_f32(dst, 2) };
    if (a.softcap != 0.0f) {
        a.scale /= a.softcap;
    }
    const int64_t n_groups   = a.k->ne[2];               // that share keys and values
    const int64_t n_queries  = a.q->ne[1] * a.q->ne[2];  // of a batch
    const int64_t group_size = n_queries / n_groups;
    const int64_t scratch    = KEYS_AT_ONCE * (a.k->ne[0] + a.v->ne[0]);
    float * const keys       = (float *) params->wdata + params->ith * scratch;
    float * const values     = keys + KEYS_AT_ONCE * a.k->ne[0];

    const Range share = share_of(params, ggml_nrows(a.q));
    for (int64_t i = share.begin; i < share.end;) {
        const int64_t group = i / group_size;
        const int64_t end   = std::min({ i + ROWS_AT_ONCE, (group + 1) * group_size, share.end });
        attend_tile(a, { i, end }, group % n_groups, group / n_groups, keys, values);
        i = end;
    }
    return true;
}
