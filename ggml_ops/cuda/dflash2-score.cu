#include "dflash2.cuh"

#include "dflash2-floats.cuh"
#include "dflash2-tables.cuh"
#include "ggml-dflash2.h"

constexpr int DFLASH2_SCORE_COLUMNS = 32;  // threads that gather a row together
constexpr int DFLASH2_SCORE_ROWS    = 32;  // rows that are gathered at a time: both sets at k 16
constexpr int DFLASH2_SCORE_THREADS = DFLASH2_SCORE_COLUMNS * DFLASH2_SCORE_ROWS;
constexpr int DFLASH2_SCORE_MAX_K   = 64;
constexpr int DFLASH2_SCORE_PAIRS   = DFLASH2_SCORE_MAX_K * DFLASH2_SCORE_MAX_K / DFLASH2_SCORE_THREADS;  // of a thread
constexpr int DFLASH2_SCORE_FLOATS  = 48 * 1024 / sizeof(float) - DFLASH2_SCORE_MAX_K;  // rows in shared memory
constexpr int DFLASH2_SCORE_PAD     = 4;  // floats behind a row, so that 8 rows' 16 bytes lie in different banks

// Strides count floats from row to row, row_size bytes of a table.
struct dflash2_score_args {
    const float *   logits;
    const int32_t * ids;
    const float *   gate;
    const char *    predecessor;
    const char *    successor;
    const char *    anchors;
    float *         scores;
    int64_t         logits_stride;
    int64_t         gate_stride;
    int64_t         anchor_stride;  // in bytes
    int64_t         row_size;
    int             k;
    int             rank;
    int             n_slots;
    float           multiplier;
    float           softcap;
};

// tanhf is a coarse approximation under -use_fast_math: its error of 5e-4 times a softcap of 20 would be seen in the
// scores.
static __device__ __forceinline__ float dflash2_tanh(float x) {
    const float bounded = x > 10.0f ? 10.0f : x < -10.0f ? -10.0f : x;  // where tanh is 1 in F32; NaN stays NaN
    const float e       = expm1f(2.0f * bounded);
    return e / (e + 2.0f);
}

static __device__ __forceinline__ float dflash2_unary(float logit, float multiplier, float softcap) {
    const float scaled = multiplier != 0.0f ? multiplier * logit : logit;
    return softcap != 0.0f ? softcap * dflash2_tanh(scaled / softcap) : scaled;
}

// Ranks that are in shared memory at a time.
static __host__ __device__ __forceinline__ int dflash2_score_tile(int k) {
    return (DFLASH2_SCORE_FLOATS / (2 * k) - DFLASH2_SCORE_PAD) / DFLASH2_SCORE_COLUMNS * DFLASH2_SCORE_COLUMNS;
}

// One block scores a slot of a sequence: it gathers the k predecessor rows, times the gate, and the k successor rows
// once into shared memory, as many ranks at a time as fit (all of 256 up to k 23), and each thread multiplies out pairs
// of them. 1024 threads, so that at k 16 all rows are on their way at once: the time of this kernel is two dependent
// reads, of an id and its row.
//
// Bytes moved at K 16, r 256, 7 slots: 224 rows, 115 KB in F16, 229 KB in F32, 61 KB in Q8_0, and 7 KB each of gate and
// scores. Floor: 0.04 us on H100 (3.35 TB/s), 0.03 us on H200 (4.8), 0.13 us on RTX 4090 (1.0): what counts is the
// launch and the latency.
template <ggml_type type>
static __global__ void __launch_bounds__(DFLASH2_SCORE_THREADS, 1) dflash2_score(const dflash2_score_args args) {
    __shared__ dflash2_floats<4> shared[DFLASH2_SCORE_FLOATS / 4];
    __shared__ float             unary[DFLASH2_SCORE_MAX_K];

    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    const int       k      = args.k;
    const int       row    = blockIdx.x;
    const int       slot   = row % args.n_slots;
    const int       thread = threadIdx.y * DFLASH2_SCORE_COLUMNS + threadIdx.x;
    const int32_t * ids    = args.ids + (int64_t) row * k;
    const float *   gate   = args.gate + row * args.gate_stride;
    const int32_t   anchor = *(const int32_t *) (args.anchors + row / args.n_slots * args.anchor_stride);
    // Read here, so that it arrives together with the rows.
    const float logit = thread < k ? args.logits[row * args.logits_stride + ids[thread]] : 0.0f;

    const int tile                      = dflash2_score_tile(k);
    const int pitch                     = tile + DFLASH2_SCORE_PAD;
    float *   gathered                  = (float *) shared;
    float     sums[DFLASH2_SCORE_PAIRS] = {};
    for (int first = 0; first < args.rank; first += tile) {
        // Behind the last rank zeros fill the four that are read together.
        const int n_ranks = args.rank - first < tile ? (args.rank - first + 3) / 4 * 4 : tile;
        for (int i = threadIdx.y; i < 2 * k; i += DFLASH2_SCORE_ROWS) {
            // ids[i - k]: of i < k the candidates of the slot before, of the rest those of this one
            const bool    is_successor = i >= k;
            const int32_t id           = is_successor || slot > 0 ? ids[i - k] : anchor;
            const char *  table        = is_successor ? args.successor : args.predecessor;
            const char *  values       = table + id * args.row_size;
            // More than 2, and the quantized types spill registers.
#pragma unroll 2
            for (int j = threadIdx.x; j < n_ranks; j += DFLASH2_SCORE_COLUMNS) {
                float value = 0.0f;
                if (first + j < args.rank) {
                    value = dflash2_table_value<type>(values, first + j) * (is_successor ? 1.0f : gate[first + j]);
                }
                gathered[i * pitch + j] = value;
            }
        }
        if (first == 0 && thread < k) {
            unary[thread] = dflash2_unary(logit, args.multiplier, args.softcap);
        }
        __syncthreads();

#pragma unroll
        for (int i = 0; i < DFLASH2_SCORE_PAIRS; ++i) {
            const int pair = i * DFLASH2_SCORE_THREADS + thread;
            if (pair < k * k) {
                const float * predecessor = gathered + pair / k * pitch;
                const float * successor   = gathered + (k + pair % k) * pitch;
#pragma unroll 2
                for (int j = 0; j < n_ranks; j += 4) {
                    const dflash2_floats<4> p = dflash2_load<4>(predecessor + j);
                    const dflash2_floats<4> s = dflash2_load<4>(successor + j);
                    sums[i] += p.v[0] * s.v[0] + p.v[1] * s.v[1] + p.v[2] * s.v[2] + p.v[3] * s.v[3];
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < DFLASH2_SCORE_PAIRS; ++i) {
        const int pair = i * DFLASH2_SCORE_THREADS + thread;
        if (pair < k * k) {
            args.scores[(int64_t) row * k * k + pair] = unary[pair % k] + sums[i];
        }
    }
}

static_assert(DFLASH2_SCORE_MAX_K == GGML_DFLASH2_MAX_CANDIDATES, "each pair of candidates needs a thread");

typedef void (*dflash2_score_kernel)(dflash2_score_args);

// Null for a table that cannot be read here.
static dflash2_score_kernel kernel_for(ggml_type table) {
    switch (table) {
    case GGML_TYPE_F32:
        return dflash2_score<GGML_TYPE_F32>;
    case GGML_TYPE_F16:
        return dflash2_score<GGML_TYPE_F16>;
    case GGML_TYPE_BF16:
        return dflash2_score<GGML_TYPE_BF16>;
    case GGML_TYPE_Q4_0:
        return dflash2_score<GGML_TYPE_Q4_0>;
    case GGML_TYPE_Q4_1:
        return dflash2_score<GGML_TYPE_Q4_1>;
    case GGML_TYPE_Q5_0:
        return dflash2_score<GGML_TYPE_Q5_0>;
    case GGML_TYPE_Q5_1:
        return dflash2_score<GGML_TYPE_Q5_1>;
    case GGML_TYPE_Q8_0:
        return dflash2_score<GGML_TYPE_Q8_0>;
    case GGML_TYPE_Q2_K:
        return dflash2_score<GGML_TYPE_Q2_K>;
    case GGML_TYPE_Q3_K:
        return dflash2_score<GGML_TYPE_Q3_K>;
    case GGML_TYPE_Q4_K:
        return dflash2_score<GGML_TYPE_Q4_K>;
    case GGML_TYPE_Q5_K:
        return dflash2_score<GGML_TYPE_Q5_K>;
    case GGML_TYPE_Q6_K:
        return dflash2_score<GGML_TYPE_Q6_K>;
    case GGML_TYPE_IQ4_NL:
        return dflash2_score<GGML_TYPE_IQ4_NL>;
    case GGML_TYPE_IQ4_XS:
        return dflash2_score<GGML_TYPE_IQ4_XS>;
    default:
        return nullptr;
    }
}

bool ggml_cuda_dflash2_supported(const ggml_tensor * op) {
    // The other two take every shape of their contract.
    return op->op != GGML_OP_DFLASH2_SCORE ||
           (kernel_for(op->src[3]->type) != nullptr && op->src[4]->type == op->src[3]->type);
}

void ggml_cuda_op_dflash2_score(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * logits      = dst->src[0];
    const ggml_tensor * ids         = dst->src[1];
    const ggml_tensor * gate        = dst->src[2];
    const ggml_tensor * predecessor = dst->src[3];
    const ggml_tensor * successor   = dst->src[4];
    const ggml_tensor * anchors     = dst->src[5];

    dflash2_score_args args = {};
    args.logits             = (const float *) logits->data;
    args.ids                = (const int32_t *) ids->data;
    args.gate               = (const float *) gate->data;
    args.predecessor        = (const char *) predecessor->data;
    args.successor          = (const char *) successor->data;
    args.anchors            = (const char *) anchors->data;
    args.scores             = (float *) dst->data;
    args.logits_stride      = logits->nb[1] / sizeof(float);
    args.gate_stride        = gate->nb[1] / sizeof(float);
    args.anchor_stride      = anchors->nb[anchors->ne[0] == 1];
    args.row_size           = predecessor->nb[1];
    args.k                  = (int) ids->ne[0];
    args.rank               = (int) gate->ne[0];
    args.n_slots            = ggml_get_op_params_i32(dst, 0);
    args.multiplier         = ggml_get_op_params_f32(dst, 1);
    args.softcap            = ggml_get_op_params_f32(dst, 2);

    const dim3                           block(DFLASH2_SCORE_COLUMNS, DFLASH2_SCORE_ROWS);
    const ggml_cuda_kernel_launch_params params((unsigned) ids->ne[1], block, (size_t) 0, ctx.stream());
    ggml_cuda_kernel_launch(kernel_for(predecessor->type), params, args);
}
