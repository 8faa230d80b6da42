#include "dflash2.cuh"

#include "ggml-dflash2.h"

constexpr int DFLASH2_TOPK_THREADS = 256;
constexpr int DFLASH2_TOPK_ITEMS   = 16;                                         // that a thread holds in registers
constexpr int DFLASH2_TOPK_CHUNK   = DFLASH2_TOPK_THREADS * DFLASH2_TOPK_ITEMS;  // that a block sees
constexpr int DFLASH2_TOPK_GROUPS  = 64;                                         // of threads: at least the greatest k

typedef unsigned long long dflash2_key;

// What orders candidates: the greater key is the greater logit, or at equal logits the smaller id. No two ids have the
// same key, and 0 is no key at all. All on the bits, because the compiler may take subnormals for zero
// (-use_fast_math).
static __device__ __forceinline__ dflash2_key dflash2_topk_key(float logit, uint32_t id) {
    uint32_t bits = __float_as_uint(logit);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        bits = 0xFF800000u;  // NaN counts as -inf
    }
    if (bits == 0x80000000u) {
        bits = 0;  // -0 equals 0
    }
    const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (dflash2_key) ordered << 32 | (uint32_t) ~id;
}

static __device__ __forceinline__ dflash2_key dflash2_topk_key(dflash2_key key, uint32_t) {
    return key;
}

// The k greatest of each chunk of each row, in order: blockIdx.x is the row, blockIdx.y the chunk. Reads logits, or the
// keys that a pass before left, and runs until one chunk is left. keys_out [k, chunks, rows]: 0 where a chunk has
// fewer; or, in the last pass, ids_out [k, rows].
//
// A lower bound on the k-th greatest leaves few to compare with one another: at least k items are no smaller than the
// k-th greatest of the groups' greatest. For logits in no special order that is about 20 of 4096 at k 16, 300 at k 64;
// at most k groups have any, so 1024 at k 16 in the worst order. Nothing is sorted and each logit is read once.
//
// Bytes moved at V 248320, K 16, 7 rows: 6.95 MB of logits, then 55 KB of keys out and in again. Floor: 2.1 us on H100
// (3.35 TB/s), 1.4 us on H200 (4.8), 6.9 us on RTX 4090 (1.0), less where the head's matmul left the logits in L2. 427
// blocks, each with 16 KB of loads on their way, are about three on each multiprocessor of an H100.
template <typename T>
static __global__ void __launch_bounds__(DFLASH2_TOPK_THREADS)
    dflash2_topk(const T * in, int64_t stride, int n_items, int k, dflash2_key * keys_out, int32_t * ids_out) {
    __shared__ dflash2_key greatest[DFLASH2_TOPK_THREADS];
    __shared__ dflash2_key group_greatest[DFLASH2_TOPK_GROUPS];
    __shared__ dflash2_key bound;
    __shared__ dflash2_key listed[DFLASH2_TOPK_CHUNK];
    __shared__ int         n_listed;

    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    const int thread = threadIdx.x;
    const int first  = blockIdx.y * DFLASH2_TOPK_CHUNK + thread;
    const T * row    = in + blockIdx.x * stride;

    dflash2_key items[DFLASH2_TOPK_ITEMS];
    dflash2_key own = 0;
#pragma unroll
    for (int i = 0; i < DFLASH2_TOPK_ITEMS; ++i) {
        const int item = first + i * DFLASH2_TOPK_THREADS;
        items[i]       = item < n_items ? dflash2_topk_key(row[item], item) : 0;
    }
#pragma unroll
    for (int i = 0; i < DFLASH2_TOPK_ITEMS; ++i) {
        own = items[i] > own ? items[i] : own;
    }
    greatest[thread] = own;
    if (thread == 0) {
        n_listed = 0;
    }
    __syncthreads();

    constexpr int group_size = DFLASH2_TOPK_THREADS / DFLASH2_TOPK_GROUPS;
    if (thread < DFLASH2_TOPK_GROUPS) {
        dflash2_key of_group = 0;
#pragma unroll
        for (int i = 0; i < group_size; ++i) {
            const dflash2_key key = greatest[thread * group_size + i];
            of_group              = key > of_group ? key : of_group;
        }
        group_greatest[thread] = of_group;
    }
    __syncthreads();

    if (thread < DFLASH2_TOPK_GROUPS) {
        const dflash2_key of_group = group_greatest[thread];
        int               rank     = 0;
#pragma unroll
        for (int i = 0; i < DFLASH2_TOPK_GROUPS; ++i) {
            const dflash2_key key = group_greatest[i];
            rank += key > of_group || (key == of_group && i < thread) ? 1 : 0;  // equal: groups without a key
        }
        if (rank == k - 1) {
            bound = of_group;
        }
    }
    __syncthreads();

    const dflash2_key least = bound;
#pragma unroll
    for (int i = 0; i < DFLASH2_TOPK_ITEMS; ++i) {
        if (items[i] != 0 && items[i] >= least) {
            listed[atomicAdd(&n_listed, 1)] = items[i];
        }
    }
    __syncthreads();

    // The order within the list is any, the ranks are not.
    const int     n   = n_listed;
    const int64_t out = ids_out ? (int64_t) blockIdx.x * k : ((int64_t) blockIdx.x * gridDim.y + blockIdx.y) * k;
    for (int i = thread; i < n; i += DFLASH2_TOPK_THREADS) {
        const dflash2_key key  = listed[i];
        int               rank = 0;
        for (int j = 0; j < n; ++j) {
            rank += listed[j] > key ? 1 : 0;
        }
        if (rank < k) {
            if (ids_out) {
                ids_out[out + rank] = (int32_t) ~(uint32_t) key;
            } else {
                keys_out[out + rank] = key;
            }
        }
    }
    for (int i = n + thread; i < k && !ids_out; i += DFLASH2_TOPK_THREADS) {
        keys_out[out + i] = 0;
    }
}

static_assert(DFLASH2_TOPK_GROUPS >= GGML_DFLASH2_MAX_CANDIDATES, "each candidate may come of another group");

static int n_chunks(int n_items) {
    return (n_items + DFLASH2_TOPK_CHUNK - 1) / DFLASH2_TOPK_CHUNK;
}

void ggml_cuda_op_dflash2_topk(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * logits  = dst->src[0];
    const int           k       = ggml_get_op_params_i32(dst, 0);
    const int           n_vocab = ggml_get_op_params_i32(dst, 1);
    const int64_t       n_rows  = logits->ne[1];
    int32_t *           ids     = (int32_t *) dst->data;

    const auto launch = [&](auto kernel, auto * in, int64_t stride, int n_items, dflash2_key * out) {
        const dim3                           grid((unsigned) n_rows, (unsigned) n_chunks(n_items));
        const ggml_cuda_kernel_launch_params params(grid, DFLASH2_TOPK_THREADS, (size_t) 0, ctx.stream());
        ggml_cuda_kernel_launch(kernel, params, in, stride, n_items, k, out, out ? nullptr : ids);
    };

    // The keys of one pass, and of the one after it
    const int                         n_first  = n_chunks(n_vocab) > 1 ? n_chunks(n_vocab) * k : 0;
    const int                         n_second = n_chunks(n_first) > 1 ? n_chunks(n_first) * k : 0;
    ggml_cuda_pool_alloc<dflash2_key> first(ctx.pool());
    ggml_cuda_pool_alloc<dflash2_key> second(ctx.pool());
    if (n_first > 0) {
        first.alloc(n_first * n_rows);
    }
    if (n_second > 0) {
        second.alloc(n_second * n_rows);
    }

    dflash2_key * to = first.get();
    launch(dflash2_topk<float>, (const float *) logits->data, logits->nb[1] / sizeof(float), n_vocab, to);
    for (int n_keys = n_first; to; n_keys = n_chunks(n_keys) * k) {
        const dflash2_key * from = to;
        to                       = n_chunks(n_keys) == 1 ? nullptr : from == first.get() ? second.get() : first.get();
        launch(dflash2_topk<dflash2_key>, from, n_keys, n_keys, to);
    }
}
