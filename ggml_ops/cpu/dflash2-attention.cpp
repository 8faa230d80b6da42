#include "common.h"
#include "dflash2-common.h"
#include "dflash2-cpu.h"
#include "dflash2-x86.h"
#include "ggml-cpu.h"
#include "ggml-dflash2.h"
#include "vec.h"

#include <algorithm>
#include <cmath>

// Attention. For the few rows of a draft, of its verification and of plain decoding ggml's own kernel takes the keys one by
// one for each row and head; this one reads and converts a block of keys and values once for a tile of rows and heads that
// share them, and sums in F32. That is faster for the many rows of a prompt as well. What it gives for a row does not depend
// on the other rows, and what no row sees is not read: it may be another sequence, or no number.

namespace {

using dflash2::in_turns;
using dflash2::Range;
using dflash2::share_of;

// Keys of a block, one bit each
using Keys                     = uint32_t;
constexpr int64_t KEYS_AT_ONCE = 8 * sizeof(Keys);
constexpr int64_t ROWS_AT_ONCE = 32;  // rows of one head or of several: the queries of a tile
constexpr int64_t KEYS_A_TURN  = 8;   // that are transposed together
constexpr int64_t LINE         = 16;  // floats of a cache line: vectors across two of them are slow
static_assert(KEYS_AT_ONCE + KEYS_A_TURN + LINE <= GGML_FA_TILE_KV, "what a thread needs fits where ggml's tiles do");

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

// What a row sees of a block
struct View {
    Keys  keys;
    float bias[KEYS_AT_ONCE];  // minus infinity: not seen
};

// Of one thread
struct Block {
    float * keys;    // [channels][KEYS_AT_ONCE]
    float * values;  // [KEYS_AT_ONCE][channels]
    float * rows;    // [KEYS_A_TURN][channels]: keys before they are transposed
};

char * at(const ggml_tensor * tensor, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) tensor->data + i1 * tensor->nb[1] + i2 * tensor->nb[2] + i3 * tensor->nb[3];
}

// Query i. Those that share keys and values are neighbours, among them the heads of a row
Query query(const Attention & a, int64_t i) {
    const int64_t n_rows   = a.q->ne[1];
    const int64_t n_shared = a.q->ne[2] / a.k->ne[2];  // heads
    const int64_t group    = i / (n_shared * n_rows);
    const int64_t row      = i / n_shared % n_rows;
    const int64_t head     = group % a.k->ne[2] * n_shared + i % n_shared;
    const int64_t batch    = group / a.k->ne[2];

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

// Of n keys from `first` on
View view(const ggml_fp16_t * mask, int64_t first, int64_t n) {
    View view{};
    if (mask) {
        ggml_cpu_fp16_to_fp32(mask + first, view.bias, n);
    }
    std::fill(view.bias + n, view.bias + KEYS_AT_ONCE, -INFINITY);
    for (int64_t j = 0; j < KEYS_AT_ONCE; ++j) {
        view.keys |= (Keys) (view.bias[j] != -INFINITY) << j;
    }
    return view;
}

// A key or value as F32
void load(const ggml_tensor * tensor, int64_t i, int64_t head, int64_t batch, float * out) {
    const char *  row   = at(tensor, i, head, batch);
    const int64_t width = tensor->ne[0];
    if (tensor->type == GGML_TYPE_F16) {
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) row, out, width);
    } else if (tensor->type == GGML_TYPE_F32) {
        std::copy_n((const float *) row, width, out);
    } else {
        ggml_get_type_traits(tensor->type)->to_float(row, out, width);
    }
}

// rows: [KEYS_A_TURN][width], out: [width][KEYS_AT_ONCE], the first of which are written
void transpose(const float * rows, int64_t width, float * out) {
    int64_t c = 0;
#ifdef DFLASH2_X86
    for (; c + 8 <= width; c += 8) {
        dflash2::transpose_8x8(rows + c, width, out + c * KEYS_AT_ONCE, KEYS_AT_ONCE);
    }
#endif
    for (; c < width; ++c) {
        for (int64_t j = 0; j < KEYS_A_TURN; ++j) {
            out[c * KEYS_AT_ONCE + j] = rows[j * width + c];
        }
    }
}

// Those of the keys that some query sees
void load(const Attention & a, int64_t first, Keys which, int64_t head, int64_t batch, const Block & block) {
    const auto is_seen = [which](int64_t j) {
        return (which >> j & 1) != 0;
    };
    for (int64_t turn = 0; turn < KEYS_AT_ONCE; turn += KEYS_A_TURN) {
        if ((which >> turn & ((1 << KEYS_A_TURN) - 1)) == 0) {
            continue;
        }
        for (int64_t j = 0; j < KEYS_A_TURN; ++j) {
            if (is_seen(turn + j)) {
                load(a.k, first + turn + j, head, batch, block.rows + j * a.k->ne[0]);
            }
        }
        transpose(block.rows, a.k->ne[0], block.keys + turn);
    }
    for (int64_t j = 0; j < KEYS_AT_ONCE; ++j) {
        if (is_seen(j)) {
            load(a.v, first + j, head, batch, block.values + j * a.v->ne[0]);
        }
    }
}

#ifdef DFLASH2_SIMD
// Queries whose sums fit the registers of any machine
constexpr int QUERIES_AT_ONCE = GGML_F32_EPR >= 16 ? 4 : GGML_F32_EPR >= 8 ? 2 : 1;

template <int N>
DFLASH2_INLINE void load_vectors(const float * from, GGML_F32_VEC (&to)[N]) {
    DFLASH2_UNROLL
    for (int i = 0; i < N; ++i) {
        to[i] = GGML_F32_VEC_LOAD(from + i * GGML_F32_EPR);
        DFLASH2_HOLD(to[i]);
    }
}

// Products of N queries with the keys of a block
template <int N>
void multiply_keys(const Query * queries, const float * keys, int64_t width, float (*scores)[KEYS_AT_ONCE]) {
    constexpr int PARTS = KEYS_AT_ONCE / GGML_F32_EPR;

    GGML_F32_VEC sums[N][PARTS];
    for (int i = 0; i < N; ++i) {
        std::fill_n(sums[i], PARTS, GGML_F32_VEC_ZERO);
    }
    for (int64_t c = 0; c < width; ++c, keys += KEYS_AT_ONCE) {
        GGML_F32_VEC key[PARTS];
        load_vectors(keys, key);
        DFLASH2_UNROLL
        for (int i = 0; i < N; ++i) {
            const GGML_F32_VEC x = GGML_F32_VEC_SET1(queries[i].q[c]);
            DFLASH2_UNROLL
            for (int part = 0; part < PARTS; ++part) {
                sums[i][part] = GGML_F32_VEC_FMA(sums[i][part], x, key[part]);
            }
        }
    }
    for (int i = 0; i < N; ++i) {
        for (int part = 0; part < PARTS; ++part) {
            GGML_F32_VEC_STORE(scores[i] + part * GGML_F32_EPR, sums[i][part]);
        }
    }
}

// Adds the weighted values of the keys that N queries see, for PARTS vectors of channels from c on while they last
template <int N, int PARTS>
void add_channels(int64_t &     c,
                  const Query * queries,
                  Keys          seen,
                  const float (*weights)[KEYS_AT_ONCE],
                  const float * values,
                  int64_t       width) {
    for (; c + PARTS * GGML_F32_EPR <= width; c += PARTS * GGML_F32_EPR) {
        GGML_F32_VEC sums[N][PARTS];
        for (int i = 0; i < N; ++i) {
            for (int part = 0; part < PARTS; ++part) {
                sums[i][part] = GGML_F32_VEC_LOAD(queries[i].out + c + part * GGML_F32_EPR);
            }
        }
        for (int64_t j = 0; j < KEYS_AT_ONCE; ++j) {
            if ((seen >> j & 1) == 0) {
                continue;
            }
            GGML_F32_VEC value[PARTS];
            load_vectors(values + j * width + c, value);
            DFLASH2_UNROLL
            for (int i = 0; i < N; ++i) {
                const GGML_F32_VEC weight = GGML_F32_VEC_SET1(weights[i][j]);
                DFLASH2_UNROLL
                for (int part = 0; part < PARTS; ++part) {
                    sums[i][part] = GGML_F32_VEC_FMA(sums[i][part], value[part], weight);
                }
            }
        }
        for (int i = 0; i < N; ++i) {
            for (int part = 0; part < PARTS; ++part) {
                GGML_F32_VEC_STORE(queries[i].out + c + part * GGML_F32_EPR, sums[i][part]);
            }
        }
    }
}

template <int N>
void add_values(
    const Query * queries, Keys seen, const float (*weights)[KEYS_AT_ONCE], const float * values, int64_t width) {
    int64_t c = 0;
    add_channels<N, 4>(c, queries, seen, weights, values, width);
    add_channels<N, 1>(c, queries, seen, weights, values, width);
    for (; c < width; ++c) {
        for (int i = 0; i < N; ++i) {
            for (int64_t j = 0; j < KEYS_AT_ONCE; ++j) {
                queries[i].out[c] += (seen >> j & 1) != 0 ? weights[i][j] * values[j * width + c] : 0;
            }
        }
    }
}
#else
constexpr int QUERIES_AT_ONCE = 1;

template <int N>
void multiply_keys(const Query * query, const float * keys, int64_t width, float (*scores)[KEYS_AT_ONCE]) {
    std::fill_n(scores[0], KEYS_AT_ONCE, 0.0f);
    for (int64_t c = 0; c < width; ++c) {
        ggml_vec_mad_f32(KEYS_AT_ONCE, scores[0], keys + c * KEYS_AT_ONCE, query->q[c]);
    }
}

template <int N>
void add_values(
    const Query * query, Keys seen, const float (*weights)[KEYS_AT_ONCE], const float * values, int64_t width) {
    for (int64_t j = 0; j < KEYS_AT_ONCE; ++j) {
        if ((seen >> j & 1) != 0) {
            ggml_vec_mad_f32((int) width, query->out, values + j * width, weights[0][j]);
        }
    }
}
#endif

void rescale(Query & query, int64_t n_out, float max) {
    const float factor = std::exp(query.max - max);  // 0 at first
    ggml_vec_scale_f32((int) n_out, query.out, factor);
    query.sum *= factor;
    query.max = max;
}

template <size_t N>
float greatest(const float (&x)[N]) {
    if constexpr (N == 1) {
        return x[0];
    } else {
        float half[N / 2];
        for (size_t i = 0; i < N / 2; ++i) {
            half[i] = std::max(x[i], x[i + N / 2]);
        }
        return greatest(half);
    }
}

// From the products of a query with the keys of a block to the weights of their values, 0 where it does not see them
void weigh(const Attention & a, Query & query, const View & view, float (&scores)[KEYS_AT_ONCE]) {
    float scale = a.scale;
    if (a.softcap != 0.0f) {
        ggml_vec_scale_f32(KEYS_AT_ONCE, scores, scale);
        ggml_vec_tanh_f32(KEYS_AT_ONCE, scores, scores);
        scale = a.softcap;
    }
    for (int64_t j = 0; j < KEYS_AT_ONCE; ++j) {
        const float score = scale * scores[j] + view.bias[j];
        scores[j]         = view.bias[j] == -INFINITY ? -INFINITY : score;  // else a key that is no number shows
    }
    const float max = greatest(scores);
    if (max > query.max) {
        rescale(query, a.v->ne[0], max);
    }
    query.sum += (float) ggml_vec_soft_max_f32(KEYS_AT_ONCE, scores, scores, query.max);
}

// Adds a block of keys to the first N of n queries that see the same of it
template <int N = QUERIES_AT_ONCE>
int64_t attend(const Attention & a, Query * queries, int64_t n, const View * const * views, const Block & block) {
    if constexpr (N > 1) {
        if (n < N) {
            return attend<N - 1>(a, queries, n, views, block);
        }
    }
    float scores[N][KEYS_AT_ONCE];
    multiply_keys<N>(queries, block.keys, a.k->ne[0], scores);
    for (int i = 0; i < N; ++i) {
        weigh(a, queries[i], *views[i], scores[i]);
    }
    add_values<N>(queries, views[0]->keys, scores, block.values, a.v->ne[0]);
    return N;
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
void attend_tile(const Attention & a, Range tile, int64_t head, int64_t batch, const Block & block) {
    Query         queries[ROWS_AT_ONCE];
    const int64_t n_queries = tile.end - tile.begin;
    for (int64_t i = 0; i < n_queries; ++i) {
        queries[i] = query(a, tile.begin + i);
    }
    const int64_t n_keys = a.k->ne[1];
    for (int64_t first = 0; first < n_keys; first += KEYS_AT_ONCE) {
        const int64_t n = std::min(KEYS_AT_ONCE, n_keys - first);
        View          distinct[ROWS_AT_ONCE];
        const View *  views[ROWS_AT_ONCE];
        Keys          any = 0;
        for (int64_t i = 0; i < n_queries; ++i) {
            // another head of the same row, unless heads have masks of their own
            if (i > 0 && queries[i].mask == queries[i - 1].mask) {
                views[i] = views[i - 1];
                continue;
            }
            distinct[i] = view(queries[i].mask, first, n);
            views[i]    = &distinct[i];
            any |= distinct[i].keys;
        }
        load(a, first, any, head, batch, block);
        for (int64_t i = 0; i < n_queries;) {
            int64_t same = 1;
            while (i + same < n_queries && views[i + same]->keys == views[i]->keys) {
                ++same;
            }
            i += views[i]->keys != 0 ? attend(a, queries + i, same, views + i, block) : same;
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
    return ggml_dflash2_wants_own_kernel(dst) && !params->use_ref && for_all_threads && !has_bias &&
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
    const int64_t n_keys     = KEYS_AT_ONCE * a.k->ne[0];
    const int64_t n_values   = KEYS_AT_ONCE * a.v->ne[0];
    const int64_t scratch    = GGML_PAD(n_keys + n_values + KEYS_A_TURN * a.k->ne[0], LINE);
    float * const lines      = (float *) GGML_PAD((uintptr_t) params->wdata, LINE * sizeof(float));
    float * const keys       = lines + params->ith * scratch;
    const Block   block      = { keys, keys + n_keys, keys + n_keys + n_values };

    const auto attend_range = [&](Range range) {
        for (int64_t i = range.begin; i < range.end;) {
            const int64_t group = i / group_size;
            const int64_t end   = std::min({ i + ROWS_AT_ONCE, (group + 1) * group_size, range.end });
            attend_tile(a, { i, end }, group % n_groups, group / n_groups, block);
            i = end;
        }
    };
    const int64_t n = ggml_nrows(a.q);
    if (n < 4 * params->nth * ROWS_AT_ONCE) {
        attend_range(share_of(params, n));
        return true;
    }
    // the later rows of a prompt see more keys
    in_turns(params, n, ROWS_AT_ONCE, attend_range);
    return true;
}
