#include "dflash2-common.h"
#include "dflash2-cpu.h"
#include "dflash2-x86.h"
#include "ggml-cpu.h"
#include "ggml-dflash2.h"

// Products of weights with a few rows of activations: those of a draft, of its verification and of plain decoding. ggml's
// own kernels unpack the weights once for each row, or want many rows to pay; here a weight is read and unpacked once for
// a tile of rows, so that several rows cost little more than the reading of the weights, which one row costs too. For some
// types that is faster for the many rows of a prompt as well.
//
// Activations are rounded as ggml rounds them for the type of the weights. What a row gives does not depend on the others,
// to the bit: where rows are few enough for both, a verification computes what plain decoding computes.

#ifndef DFLASH2_X86
bool ggml_compute_forward_dflash2_mul_mat(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

size_t ggml_dflash2_mul_mat_work_size(const ggml_tensor *) {
    return 0;
}
#else
#include "dflash2-weights.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace {

constexpr int     WEIGHTS_AT_ONCE = 4;          // rows of weights, at most
constexpr size_t  NEAR            = 24 * 1024;  // bytes: most of an L1 cache
constexpr int64_t WEIGHTS_A_TURN  = 48;         // that a thread takes at a time, at most: they stay in an L2 cache
constexpr int64_t PIECE           = QK_K;       // activations that are rounded at once: whole blocks of each type

// One op. The chunks of its activations are laid out [tile of rows][chunk][row of the tile], as they are read
template <typename W>
class Product {
public:
    using Chunk = typename W::Chunk;

    // Three rows of weights by four of activations: twelve sums, and what they read, fill the 16 narrow registers
    static constexpr bool NARROW_FLOATS = DFLASH2_X86 == 256 && std::is_same_v<Chunk, FloatChunk>;
    static constexpr int  ROWS_AT_ONCE  = NARROW_FLOATS ? 4 : 8;  // of activations: a tile
    static constexpr int  SUMS_AT_ONCE  = DFLASH2_X86 == 512 ? 16 : NARROW_FLOATS ? 12 : 8;

    // The scales of a whole block take registers too
    static constexpr bool IN_BLOCKS    = std::is_same_v<Chunk, QuantisedBlock>;
    static constexpr int  MOST_WEIGHTS = IN_BLOCKS ? 2 : WEIGHTS_AT_ONCE;

    Product(const ggml_tensor * dst, void * chunks) :
        dst_(dst), weights_(dst->src[0]), x_(dst->src[1]), chunks_(static_cast<Chunk *>(chunks)) {}

    static int64_t n_chunks(const ggml_tensor * weights) { return (weights->ne[0] + W::n_values - 1) / W::n_values; }

    // Chunks of one piece of one row of activations
    void fill_piece(int64_t row, int64_t piece) const {
        constexpr int64_t n_chunks_of_piece = PIECE / W::n_values;

        const int64_t first = piece * PIECE;
        const int64_t n     = std::min(PIECE, n_values() - first);
        // no type takes more than four bytes a value
        alignas(64) char rounded[4 * PIECE];
        ggml_get_type_traits_cpu(W::rounded)->from_float(row_of(x_, row) + first, rounded, n);
        Chunk *       tile = chunks_of(row);
        const int64_t r    = row % ROWS_AT_ONCE;
        for (int64_t i = 0; i * W::n_values < n; ++i) {
            fill<W>(rounded, i * W::n_values, std::min(W::n_values, n - i * W::n_values),
                    tile[(piece * n_chunks_of_piece + i) * tile_size(row) + r]);
        }
    }

    // All rows of activations with some rows of weights, no more than WEIGHTS_A_TURN
    void multiply(Range which) const {
        for (int64_t row = 0; row < x_->ne[1]; row += ROWS_AT_ONCE) {
            multiply_tile(which, row);
        }
    }

private:
    static constexpr int64_t GROUP = W::n_values * W::n_parts;  // values

    int64_t n_values() const { return weights_->ne[0]; }
    int64_t tile_size(int64_t row) const {
        return std::min<int64_t>(ROWS_AT_ONCE, x_->ne[1] - row / ROWS_AT_ONCE * ROWS_AT_ONCE);
    }
    Chunk * chunks_of(int64_t row) const { return chunks_ + row / ROWS_AT_ONCE * ROWS_AT_ONCE * n_chunks(weights_); }

    // The tile that begins with a row, which has R rows or fewer
    template <int R = ROWS_AT_ONCE>
    void multiply_tile(Range which, int64_t row) const {
        if (tile_size(row) == R) {
            multiply_rows<R>(which, row);
        } else if constexpr (R > 1) {
            multiply_tile<R - 1>(which, row);
        }
    }

    // Takes as many chunks of the activations at a time as stay in the nearest cache
    template <int R>
    void multiply_rows(Range which, int64_t row) const {
        constexpr int     N        = std::min(MOST_WEIGHTS, SUMS_AT_ONCE / R);
        constexpr int64_t n_groups = std::max<int64_t>(1, NEAR / (R * W::n_parts * sizeof(Chunk)));

        Floats sums[R * WEIGHTS_A_TURN];  // [R][weights], as in dst
        for (int64_t group = 0; group * GROUP < n_values(); group += n_groups) {
            const Range groups = { group, group + n_groups };
            int64_t     i      = which.begin;
            for (; i + N <= which.end; i += N) {
                add_groups<N, R>(i, row, groups, sums + i - which.begin);
            }
            for (; i < which.end; ++i) {
                add_groups<1, R>(i, row, groups, sums + i - which.begin);
            }
        }
        for (int r = 0; r < R; ++r) {
            float * out = (float *) ((char *) dst_->data + (row + r) * dst_->nb[1]) + which.begin;
            write_sums(sums + r * WEIGHTS_A_TURN, which.end - which.begin, out);
        }
    }

    // The sum of each of n vectors
    static void write_sums(const Floats * vectors, int64_t n, float * out) {
        constexpr int64_t AT_ONCE = 8;

        int64_t i = 0;
        for (; i + AT_ONCE <= n; i += AT_ONCE) {
            _mm256_storeu_ps(out + i, sums_of(vectors + i));
        }
        if (i < n) {
            Floats rest[AT_ONCE] = {};
            float  sums[AT_ONCE];
            std::copy_n(vectors + i, n - i, rest);
            _mm256_storeu_ps(sums, sums_of(rest));
            std::copy_n(sums, n - i, out + i);
        }
    }

    // N rows of weights with R rows of activations. sums: [R][WEIGHTS_A_TURN], of which N; nothing yet before the first group
    template <int N, int R>
    void add_groups(int64_t weight, int64_t row, Range groups, Floats * sums) const {
        const char * from[N];
        Floats       local[N * R] = {};
        for (int n = 0; n < N; ++n) {
            from[n] = (const char *) weights_->data + (weight + n) * weights_->nb[1];
        }
        const auto each_sum = [&](auto && function) {
            DFLASH2_UNROLL
            for (int r = 0; r < R; ++r) {
                DFLASH2_UNROLL
                for (int n = 0; n < N; ++n) {
                    function(sums[r * WEIGHTS_A_TURN + n], local[n * R + r]);
                }
            }
        };
        if (groups.begin > 0) {
            each_sum([](const Floats & sum, Floats & here) { here = sum; });
        }
        const Chunk * chunks = chunks_of(row) + groups.begin * W::n_parts * R;
        const size_t  ahead  = N * weights_->nb[1];  // which is read next
        const int64_t end    = std::min(groups.end, n_values() / GROUP);
        for (int64_t i = groups.begin; i < end; ++i, chunks += W::n_parts * R) {
            for (int n = 0; n < N; ++n) {
                for (size_t line = 0; line < W::size; line += 64) {
                    prefetch(from[n] + i * W::size + ahead + line);
                }
            }
            add_group<N, R>(from, i, chunks, local, std::make_integer_sequence<int, W::n_parts>());
        }
        // rows of blocks of 256 end with a group
        if constexpr (W::rounded != GGML_TYPE_Q8_K) {
            if (end < groups.end && end * GROUP < n_values()) {
                // what lies behind the last value of a row is not to be read
                char padded[N][4 * VALUES] = {};
                for (int n = 0; n < N; ++n) {
                    std::memcpy(padded[n], from[n] + end * W::size, ggml_row_size(W::type, n_values()) - end * W::size);
                    from[n] = padded[n];
                }
                add_group<N, R>(from, 0, chunks, local, std::integer_sequence<int, 0>());
            }
        }
        each_sum([](Floats & sum, const Floats & here) { sum = here; });
    }

    template <int N, int R, int... parts>
    DFLASH2_INLINE static void add_group(const char * const * from,
                                         int64_t              i,
                                         const Chunk *        chunks,
                                         Floats *             sums,
                                         std::integer_sequence<int, parts...>) {
        const auto groups = open(from, i, std::make_integer_sequence<int, N>());
        if constexpr (IN_BLOCKS) {
            add_blocks<N, R>(groups, chunks, sums, std::make_integer_sequence<int, QK_K / VALUES>());
        } else {
            (add_chunk<N, R, parts>(groups, chunks + parts * R, sums), ...);
        }
    }

    template <int... n>
    DFLASH2_INLINE static auto open(const char * const * from, int64_t i, std::integer_sequence<int, n...>) {
        return std::array{ W::open(from[n], i)... };
    }

    template <int N, int R, int part, typename Groups>
    DFLASH2_INLINE static void add_chunk(const Groups & groups, const Chunk * chunks, Floats * sums) {
        decltype(W::template load<part>(groups[0])) weights[N];
        DFLASH2_UNROLL
        for (int n = 0; n < N; ++n) {
            weights[n] = W::template load<part>(groups[n]);
        }
        DFLASH2_UNROLL
        for (int r = 0; r < R; ++r) {
            const auto values = load_values<W>(chunks[r]);
            DFLASH2_UNROLL
            for (int n = 0; n < N; ++n) {
                sums[n * R + r] = add_products<W>(sums[n * R + r], weights[n], values);
            }
        }
    }

    template <int N, int R, int... parts, typename Groups>
    DFLASH2_INLINE static void
    add_blocks(const Groups & groups, const Chunk * chunks, Floats * sums, std::integer_sequence<int, parts...>) {
        Bytes ints[N * R] = {};
        (add_part<N, R, parts>(groups, chunks, ints), ...);
        DFLASH2_UNROLL
        for (int r = 0; r < R; ++r) {
            DFLASH2_UNROLL
            for (int n = 0; n < N; ++n) {
                sums[n * R + r] = W::add_block(sums[n * R + r], ints[n * R + r], groups[n], chunks[r]);
            }
        }
    }

    template <int N, int R, int part, typename Groups>
    DFLASH2_INLINE static void add_part(const Groups & groups, const Chunk * chunks, Bytes * ints) {
        Bytes weights[N], scales[N];
        DFLASH2_UNROLL
        for (int n = 0; n < N; ++n) {
            weights[n] = W::template load<part>(groups[n]);
            scales[n]  = spread_short(groups[n].scales, part);
        }
        DFLASH2_UNROLL
        for (int r = 0; r < R; ++r) {
            Bytes x = load_bytes(chunks[r].x + part * VALUES);
            DFLASH2_HOLD(x);
            DFLASH2_UNROLL
            for (int n = 0; n < N; ++n) {
                ints[n * R + r] = dot_scaled(ints[n * R + r], weights[n], x, scales[n]);
            }
        }
    }

    const ggml_tensor * dst_;
    const ggml_tensor * weights_;
    const ggml_tensor * x_;
    Chunk *             chunks_;
};

template <typename W>
void run(const ggml_compute_params * params, const ggml_tensor * dst) {
    GGML_ASSERT(params->wsize >= ggml_dflash2_mul_mat_work_size(dst) && "asked for after the graph was planned");
    const size_t     misaligned = (uintptr_t) params->wdata % alignof(typename W::Chunk);
    void * const     chunks     = (char *) params->wdata + (misaligned ? alignof(typename W::Chunk) - misaligned : 0);
    const Product<W> product(dst, chunks);

    const int64_t n_pieces = (dst->src[0]->ne[0] + PIECE - 1) / PIECE;
    const Range   share    = share_of(params, n_pieces * dst->ne[1]);
    for (int64_t i = share.begin; i < share.end; ++i) {
        product.fill_piece(i / n_pieces, i % n_pieces);
    }

    // Some eight turns for each thread, that none waits long for the last, and of what every number that is taken at once
    // divides, unless that leaves threads without one
    const int64_t n_weights = dst->ne[0];
    const int64_t fair      = n_weights / (8 * params->nth);
    const int64_t step      = fair < 12 ? WEIGHTS_AT_ONCE : 12;
    const int64_t size      = std::min(WEIGHTS_A_TURN, std::max<int64_t>(1, fair / step) * step);
    in_turns(params, n_weights, size, [&](Range which) { product.multiply(which); });
}

// Whether this kernel can do it as it was asked to
template <typename W>
bool fits(const ggml_tensor * dst) {
    const ggml_tensor * weights   = dst->src[0];
    const ggml_tensor * x         = dst->src[1];
    const bool          is_flat   = ggml_n_dims(weights) <= 2 && ggml_n_dims(x) <= 2 && weights->ne[0] > 0;
    const bool          is_hinted = ggml_get_op_params_i32(dst, 1) != 0;
    // what has something extra is laid out in another way
    return is_flat && !is_hinted && !weights->extra && x->ne[1] <= W::few && x->type == GGML_TYPE_F32 &&
           x->nb[0] == sizeof(float) && weights->nb[0] == ggml_type_size(weights->type);
}

// Calls `function` with an empty value of the weights' type, if this kernel does the product. False: it does not
template <typename Function>
bool with_weights(const ggml_tensor * dst, const Function & function) {
    const auto call = [&](auto weights) {
        const bool does = fits<decltype(weights)>(dst);
        if (does) {
            function(weights);
        }
        return does;
    };
    if (!ggml_dflash2_wants_own_kernel(dst)) {
        return false;
    }
    switch (dst->src[0]->type) {
    case GGML_TYPE_F16:
        return call(F16{});
    case GGML_TYPE_BF16:
        return call(BF16{});
    case GGML_TYPE_Q8_0:
        return call(Q8_0{});
    case GGML_TYPE_Q4_0:
        return call(Q4_0{});
    case GGML_TYPE_Q4_1:
        return call(Q4_1{});
    case GGML_TYPE_Q4_K:
        return call(Q4_K{});
    case GGML_TYPE_Q5_K:
        return call(Q5_K{});
    case GGML_TYPE_Q6_K:
        return call(Q6_K{});
    default:
        return false;
    }
}

}  // namespace

bool ggml_compute_forward_dflash2_mul_mat(const ggml_compute_params * params, ggml_tensor * dst) {
    return !params->use_ref && with_weights(dst, [&](auto weights) { run<decltype(weights)>(params, dst); });
}

size_t ggml_dflash2_mul_mat_work_size(const ggml_tensor * node) {
    size_t size = 0;
    with_weights(node, [&](auto weights) {
        using Chunk = typename decltype(weights)::Chunk;
        size        = node->ne[1] * Product<decltype(weights)>::n_chunks(node->src[0]) * sizeof(Chunk) + alignof(Chunk);
    });
    return size;
}
#endif
