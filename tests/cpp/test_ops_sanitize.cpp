// The CPU kernels of the ops, compiled into this test with the sanitizers: every tensor and the working memory lie in
// blocks of the heap of exactly their size, so that an access beside one of them ends the test, and a wrong result too.

#include "check.h"
#include "dflash2-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-dflash2.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

class Barrier {
public:
    explicit Barrier(int n_threads) : n_threads(n_threads) {}

    std::atomic<int> chunk{ 0 };

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        const int                    round = rounds;
        if (++n_waiting == n_threads) {
            n_waiting = 0;
            ++rounds;
            all.notify_all();
        }
        all.wait(lock, [&] { return rounds != round; });
    }

private:
    const int               n_threads;
    int                     n_waiting = 0;
    int                     rounds    = 0;
    std::mutex              mutex;
    std::condition_variable all;
};

}  // namespace

// In place of ggml's, whose threads are not ours
void ggml_barrier(ggml_threadpool * threads) {
    reinterpret_cast<Barrier *>(threads)->wait();
}

void ggml_threadpool_chunk_set(ggml_threadpool * threads, int value) {
    reinterpret_cast<Barrier *>(threads)->chunk = value;
}

int ggml_threadpool_chunk_add(ggml_threadpool * threads, int value) {
    return reinterpret_cast<Barrier *>(threads)->chunk.fetch_add(value);
}

namespace {

using Kernel = void (*)(const ggml_compute_params *, ggml_tensor *);

#ifdef __AVX2__
constexpr bool HAS_MUL_MAT = true;
#else
constexpr bool HAS_MUL_MAT = false;
#endif

// Tensors whose data are blocks of the heap of their own
class Tensors {
public:
    Tensors() : context(ggml_init({ 64 * ggml_tensor_overhead(), nullptr, true })) {}
    ~Tensors() { ggml_free(context); }
    Tensors(const Tensors &)             = delete;
    Tensors & operator=(const Tensors &) = delete;

    ggml_tensor * add(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        ggml_tensor * tensor = ggml_new_tensor_3d(context, type, ne0, ne1, ne2);
        return allocate(tensor);
    }

    // Rows of which the next begins `gap` values after the end of the one before
    ggml_tensor * add_rows(int64_t ne0, int64_t ne1, int64_t gap) {
        ggml_tensor * tensor = ggml_new_tensor_2d(context, GGML_TYPE_F32, ne0, ne1);
        tensor->nb[1]        = (ne0 + gap) * sizeof(float);
        tensor->nb[2] = tensor->nb[3] = tensor->nb[1] * ne1;
        return allocate(tensor);
    }

    ggml_tensor * allocate(ggml_tensor * tensor) {
        blocks.emplace_back(ggml_nbytes(tensor));
        tensor->data = blocks.back().data();
        std::fill(blocks.back().begin(), blocks.back().end(), (char) 0xff);
        return tensor;
    }

    ggml_context * const context;

private:
    std::vector<std::vector<char>> blocks;
};

std::mt19937 generator(1);

float * row(const ggml_tensor * tensor, int64_t i) {
    return (float *) ((char *) tensor->data + i * tensor->nb[1]);
}

ggml_tensor * fill(ggml_tensor * tensor) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < ggml_nrows(tensor); ++i) {
        std::generate_n(row(tensor, i), tensor->ne[0], [&] { return normal(generator); });
    }
    return tensor;
}

ggml_tensor * fill_ids(ggml_tensor * tensor, int32_t n_vocab) {
    std::generate_n((int32_t *) tensor->data, ggml_nelements(tensor),
                    [&] { return (int32_t) (generator() % n_vocab); });
    return tensor;
}

// Rows that every rounding of activations leaves as they are: integers, for each block times a power of two. One of the
// block is 127 or -127, which makes that power its scale
ggml_tensor * fill_exact(ggml_tensor * tensor, int64_t block) {
    for (int64_t i = 0; i < tensor->ne[1]; ++i) {
        for (int64_t first = 0; first < tensor->ne[0]; first += block) {
            float *       values = row(tensor, i) + first;
            const int64_t n      = std::min(block, tensor->ne[0] - first);
            const float   scale  = std::ldexp(1.0f, -7 - (int) (generator() % 3));
            std::generate_n(values, n, [&] { return scale * (float) ((int) (generator() % 255) - 127); });
            values[generator() % n] = generator() % 2 ? 127 * scale : -127 * scale;
        }
    }
    return tensor;
}

// `values` as a type stores them; they become what that gives back
ggml_tensor * store(Tensors & tensors, ggml_type type, ggml_tensor * values) {
    const int64_t n_rows = values->ne[1];
    ggml_tensor * stored = tensors.add(type, values->ne[0], n_rows);
    if (type == GGML_TYPE_F32) {
        std::copy(row(values, 0), row(values, n_rows), row(stored, 0));
    } else {
        ggml_quantize_chunk(type, row(values, 0), stored->data, 0, n_rows, values->ne[0], nullptr);
        ggml_get_type_traits(type)->to_float(stored->data, row(values, 0), ggml_nelements(values));
    }
    return stored;
}

void run(Kernel kernel, ggml_tensor * node, size_t work_size, int n_threads) {
    std::vector<char>        work(work_size, (char) 0xff);
    Barrier                  barrier(n_threads);
    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back([&, i] {
            const ggml_compute_params params = {
                i, n_threads, work.size(), work.data(), reinterpret_cast<ggml_threadpool *>(&barrier), false,
            };
            kernel(&params, node);
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
}

bool near(float found, double expected) {
    return std::fabs(found - expected) <= 1e-4 * (1 + std::fabs(expected));
}

void check_conv(int64_t n_channels, int64_t group, int64_t n_taps, int64_t n_block_rows, int64_t gap, int n_threads) {
    const int64_t n_rows = 2 * n_block_rows, n_groups = n_channels / group;
    for (const int side : { 0, 1 }) {
        Tensors       tensors;
        ggml_tensor * x        = fill(tensors.add_rows(n_channels, n_rows, gap));
        ggml_tensor * coeff    = fill(tensors.add_rows(2 * n_taps * n_groups, n_rows, gap));
        ggml_tensor * base     = fill(tensors.add(GGML_TYPE_F32, n_channels, n_taps, 2));
        ggml_tensor * residual = side ? fill(tensors.add_rows(n_channels, n_rows, gap)) : nullptr;
        ggml_tensor * y =
            tensors.allocate(ggml_dflash2_conv(tensors.context, x, coeff, base, residual, side, (int) n_block_rows));
        run(ggml_compute_forward_dflash2_conv, y, 0, n_threads);
        for (int64_t i = 0; i < n_rows; ++i) {
            for (int64_t c = 0; c < n_channels; ++c) {
                double sum = residual ? row(residual, i)[c] : 0.0;
                for (int64_t tap = 0; tap < n_taps && tap <= i % n_block_rows; ++tap) {
                    const int64_t which = side * n_taps + tap;
                    sum += ((double) row(base, which)[c] + row(coeff, i)[which * n_groups + c / group]) *
                           row(x, i - tap)[c];
                }
                CHECK(near(row(y, i)[c], sum));
            }
        }
    }
}

void check_topk(int64_t n_logits, int n_vocab, int k, int64_t gap, int n_threads, const std::function<float()> & next) {
    Tensors       tensors;
    ggml_tensor * logits = tensors.add_rows(n_logits, 3, gap);
    ggml_tensor * ids    = tensors.allocate(ggml_dflash2_topk(tensors.context, logits, k, n_vocab));
    for (int64_t i = 0; i < logits->ne[1]; ++i) {
        std::generate_n(row(logits, i), n_logits, next);
    }
    run(ggml_compute_forward_dflash2_topk, ids, ggml_dflash2_topk_work_size(ids, n_threads), n_threads);
    for (int64_t i = 0; i < logits->ne[1]; ++i) {
        std::vector<int32_t> order(n_vocab);
        for (int32_t id = 0; id < n_vocab; ++id) {
            order[id] = id;
        }
        const auto value = [&](int32_t id) {
            const float logit = row(logits, i)[id];
            return std::isnan(logit) ? -INFINITY : logit;
        };
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
        CHECK(std::equal(order.begin(), order.begin() + k, (const int32_t *) row(ids, i)));
    }
}

void check_score(ggml_type type, int64_t k, int64_t rank, int n_slots, int64_t gap, int n_threads) {
    const int     n_vocab = 50, n_seqs = 2;
    const int64_t n_rows = n_slots * n_seqs;
    Tensors       tensors;
    ggml_tensor * logits    = fill(tensors.add_rows(n_vocab, n_rows, gap));
    ggml_tensor * gate      = fill(tensors.add_rows(rank, n_rows, gap));
    ggml_tensor * ids       = fill_ids(tensors.add(GGML_TYPE_I32, k, n_rows), n_vocab);
    ggml_tensor * anchors   = fill_ids(tensors.add(GGML_TYPE_I32, n_seqs), n_vocab);
    ggml_tensor * values[2] = { fill(tensors.add(GGML_TYPE_F32, rank, n_vocab)),
                                fill(tensors.add(GGML_TYPE_F32, rank, n_vocab)) };
    ggml_tensor * tables[2] = { store(tensors, type, values[0]), store(tensors, type, values[1]) };
    ggml_tensor * scores    = tensors.allocate(
        ggml_dflash2_score(tensors.context, logits, ids, gate, tables[0], tables[1], anchors, n_slots, 0.5f, 3.0f));
    run(ggml_compute_forward_dflash2_score, scores, ggml_dflash2_score_work_size(scores, n_threads), n_threads);
    const auto id_of = [&](int64_t i, int64_t c) {
        return ((const int32_t *) ids->data)[i * k + c];
    };
    for (int64_t i = 0; i < n_rows; ++i) {
        for (int64_t p = 0; p < k; ++p) {
            const int32_t before = i % n_slots ? id_of(i - 1, p) : ((const int32_t *) anchors->data)[i / n_slots];
            for (int64_t c = 0; c < k; ++c) {
                double sum = 3 * std::tanh(0.5 * row(logits, i)[id_of(i, c)] / 3);
                for (int64_t j = 0; j < rank; ++j) {
                    sum += (double) row(values[0], before)[j] * row(gate, i)[j] * row(values[1], id_of(i, c))[j];
                }
                CHECK(near(((const float *) scores->data)[(i * k + p) * k + c], sum));
            }
        }
    }
}

void check_attention(int64_t width, int64_t value_width, int64_t n_rows, int64_t n_keys, int n_threads) {
    const int64_t n_heads = 4, n_shared = 2;
    Tensors       tensors;
    ggml_tensor * q      = fill(tensors.add(GGML_TYPE_F32, width, n_rows, n_heads));
    ggml_tensor * keys   = fill(tensors.add(GGML_TYPE_F32, width, n_keys, n_heads / n_shared));
    ggml_tensor * values = fill(tensors.add(GGML_TYPE_F32, value_width, n_keys, n_heads / n_shared));
    ggml_tensor * mask   = tensors.add(GGML_TYPE_F16, n_keys, n_rows);
    for (int64_t i = 0; i < n_keys * n_rows; ++i) {
        ((ggml_fp16_t *) mask->data)[i] = ggml_fp32_to_fp16(i % n_keys && generator() % 3 == 0 ? -INFINITY : 0);
    }
    ggml_tensor * node =
        tensors.allocate(ggml_flash_attn_ext(tensors.context, q, keys, values, mask, 0.25f, 0.0f, 0.0f));
    const auto kernel = [](const ggml_compute_params * params, ggml_tensor * dst) {
        CHECK(ggml_compute_forward_dflash2_attention(params, dst));
    };
    CHECK(!ggml_dflash2_wants_own_kernel(node));
    ggml_dflash2_own_kernel(node);
    // More than it may use is not there: for each thread keys and values of a block, a quarter of the keys once more, and
    // what brings all of them to a line of the cache
    const int64_t n_floats = 32 * (width + value_width) + 8 * width;
    run(kernel, node, (n_threads * (n_floats + 16) + 16) * sizeof(float), n_threads);

    const auto row3 = [](const ggml_tensor * tensor, int64_t i, int64_t j) {
        return (const float *) ((const char *) tensor->data + i * tensor->nb[1] + j * tensor->nb[2]);
    };
    for (int64_t i = 0; i < n_rows * n_heads; ++i) {
        const int64_t       r = i % n_rows, head = i / n_rows, shared = head / n_shared;
        std::vector<double> sums(value_width);
        double              total = 0;
        for (int64_t j = 0; j < n_keys; ++j) {
            double score = 0;
            for (int64_t c = 0; c < width; ++c) {
                score += (double) row3(q, r, head)[c] * row3(keys, j, shared)[c];
            }
            const double weight =
                std::exp(0.25 * score + ggml_fp16_to_fp32(((const ggml_fp16_t *) mask->data)[r * n_keys + j]));
            total += weight;
            for (int64_t c = 0; c < value_width; ++c) {
                sums[c] += weight * row3(values, j, shared)[c];
            }
        }
        for (int64_t c = 0; c < value_width; ++c) {
            CHECK(near(row3(node, head, r)[c], sums[c] / total));
        }
    }
}

void check_mul_mat(ggml_type type, int64_t n, int64_t n_weights, int64_t n_rows, int64_t gap, int n_threads) {
    Tensors       tensors;
    ggml_tensor * values  = fill(tensors.add(GGML_TYPE_F32, n, n_weights));
    ggml_tensor * weights = store(tensors, type, values);
    ggml_tensor * x       = fill_exact(tensors.add_rows(n, n_rows, gap), std::max<int64_t>(32, ggml_blck_size(type)));
    ggml_tensor * node    = tensors.allocate(ggml_mul_mat(tensors.context, weights, x));
    const auto    refuses = [](const ggml_compute_params * params, ggml_tensor * dst) {
        CHECK(!ggml_compute_forward_dflash2_mul_mat(params, dst));
    };
    const auto kernel = [](const ggml_compute_params * params, ggml_tensor * dst) {
        CHECK(ggml_compute_forward_dflash2_mul_mat(params, dst));
    };
    run(refuses, node, 0, 1);
    ggml_dflash2_own_kernel(node);
    if (!HAS_MUL_MAT) {
        CHECK(ggml_dflash2_mul_mat_work_size(node) == 0);
        run(refuses, node, 0, 1);
        return;
    }
    run(kernel, node, ggml_dflash2_mul_mat_work_size(node), n_threads);
    for (int64_t i = 0; i < n_rows; ++i) {
        for (int64_t j = 0; j < n_weights; ++j) {
            double sum = 0;
            for (int64_t c = 0; c < n; ++c) {
                sum += (double) row(values, j)[c] * row(x, i)[c];
            }
            CHECK(near(row(node, i)[j], sum));
        }
    }
}

}  // namespace

int main() {
    ggml_cpu_init();
    for (const int n_threads : { 1, 2, 5 }) {
        for (const int64_t n_keys : { 1, 31, 33, 70 }) {
            for (const int64_t n_rows : { 2, 5, 40 }) {
                check_attention(64, 64, n_rows, n_keys, n_threads);
                check_attention(37, 83, n_rows, n_keys, n_threads);
            }
        }
    }
    for (const int64_t n_weights : { 1, 3, 7, 33 }) {
        for (const int n_threads : { 1, 2, 5 }) {
            for (const int64_t n_rows : { 1, 3, 8 }) {
                for (const int64_t n : { 1, 37, 300, 576 }) {
                    check_mul_mat(GGML_TYPE_F16, n, n_weights, n_rows, 3, n_threads);
                    check_mul_mat(GGML_TYPE_BF16, n, n_weights, n_rows, 0, n_threads);
                }
                for (const ggml_type type : { GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K }) {
                    check_mul_mat(type, 256, n_weights, n_rows, 0, n_threads);
                    check_mul_mat(type, 2816, n_weights, n_rows, 3, n_threads);
                }
            }
            for (const int64_t n_rows : { 1, 3, 8, 11, 32 }) {
                for (const int64_t n : { 32, 96, 576 }) {
                    check_mul_mat(GGML_TYPE_Q8_0, n, n_weights, n_rows, 0, n_threads);
                    check_mul_mat(GGML_TYPE_Q4_0, n, n_weights, n_rows, 3, n_threads);
                    check_mul_mat(GGML_TYPE_Q4_1, n, n_weights, n_rows, 0, n_threads);
                }
            }
        }
    }
    for (const int n_threads : { 1, 2, 5 }) {
        for (const int64_t gap : { 0, 3 }) {
            for (const int64_t n_taps : { 1, 2, 3 }) {
                for (const int64_t n_block_rows : { 1, 2, 5 }) {
                    check_conv(7, 1, n_taps, n_block_rows, gap, n_threads);
                    check_conv(24, 8, n_taps, n_block_rows, gap, n_threads);
                    check_conv(272, 16, n_taps, n_block_rows, gap, n_threads);
                    check_conv(275, 275, n_taps, n_block_rows, gap, n_threads);
                }
            }
            std::normal_distribution<float> normal;
            float                           last     = 0;
            const std::function<float()>    orders[] = {
                [&] { return normal(generator); },
                [&] { return last += 1; },
                [&] { return (float) (generator() % 3); },
                [] { return -INFINITY; },
                [&] { return generator() % 2 ? std::numeric_limits<float>::quiet_NaN() : normal(generator); },
            };
            for (const auto & next : orders) {
                for (const int k : { 1, 16, 64 }) {
                    for (const int n_vocab : { 64, 127, 513, 1000 }) {
                        check_topk(n_vocab, n_vocab, k, gap, n_threads, next);
                        check_topk(n_vocab + 5, n_vocab, k, gap, n_threads, next);
                    }
                }
            }
            for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0 }) {
                for (const int n_slots : { 1, 2, 7 }) {
                    for (const int64_t k : { 1, 3, 16 }) {
                        check_score(type, k, 32, n_slots, gap, n_threads);
                        if (!ggml_is_quantized(type)) {
                            check_score(type, k, 5, n_slots, gap, n_threads);
                        }
                    }
                }
            }
        }
    }
    return 0;
}
