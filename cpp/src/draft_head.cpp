#include "draft_head.h"

#include "llama-dflash2.h"
#include "logging.h"

#include <algorithm>
#include <future>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace dflash2 {

namespace {

constexpr ggml_type copy_type = GGML_TYPE_Q4_0;

// A cycle reads the target once and the head a second time, to draft: below this share of the target's weights (experts
// that a pass leaves out included) a faster head is not worth its memory, and below this size there is nothing to gain
constexpr size_t least_share = 16;
constexpr size_t least_bytes = 16 << 20;
// Types that are not larger by this much are not slower by much either
constexpr double least_growth = 1.25;

bool on_cpu(const ggml_tensor * tensor) {
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    return !device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Why there can be no copy; empty if there can
std::string obstacle(const ggml_tensor * head) {
    if (!head) {
        return "the drafter has a head of its own, or the target's is scaled";
    }
    if (head->ne[0] % ggml_blck_size(copy_type) != 0) {
        return "its rows of " + std::to_string(head->ne[0]) + " numbers are no whole blocks of " +
               std::to_string(ggml_blck_size(copy_type));
    }
    // graphics cards read it fast enough, and weights that are packed for the CPU cannot be read back
    if (!on_cpu(head) || !ggml_backend_buffer_is_host(head->buffer)) {
        return std::string("it lies in memory of the kind ") + ggml_backend_buffer_name(head->buffer);
    }
    return "";
}

bool pays(const ggml_tensor * head, const llama_model * target) {
    const size_t n_bytes = ggml_nbytes(head);
    const auto   smaller = (double) (ggml_row_size(copy_type, head->ne[0]) * head->ne[1]);
    return n_bytes >= least_bytes && n_bytes >= llama_model_size(target) / least_share &&
           (double) n_bytes >= least_growth * smaller;
}

// Those of the CPU, the ones for which its weights are packed first
std::vector<ggml_backend_buffer_type_t> buffer_types() {
    std::vector<ggml_backend_buffer_type_t> types;
    ggml_backend_dev_t                      cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * type = extra ? extra(cpu) : nullptr; type && *type; ++type) {
        types.push_back(*type);
    }
    types.push_back(ggml_backend_dev_buffer_type(cpu));
    return types;
}

}  // namespace

DraftHead::DraftHead(const std::string & choice,
                     const llama_model * drafter,
                     const llama_model * target,
                     int32_t             n_threads) {
    if (choice == "target") {
        return;
    }
    const ggml_tensor * head = llama_dflash2_head(drafter, target);
    if (head && head->type == copy_type) {
        return;
    }
    const std::string reason = obstacle(head);
    if (choice != "auto" && !reason.empty()) {
        throw std::invalid_argument("[load] no copy of the target's head in " + choice + ": " + reason +
                                    "; let the head be automatic, or the target's");
    }
    if (!reason.empty() || (choice == "auto" && !pays(head, target))) {
        return;
    }
    if (!allocate(head) || !fill(head, n_threads)) {
        tensor_ = nullptr;
        buffer_.reset();
        log_line(LogLevel::warning,
                 "no memory for a copy of the target's head, the drafter computes with the target's");
        return;
    }
    log_line(LogLevel::info, std::string("the drafter computes with a copy of the target's head in ") +
                                 ggml_type_name(copy_type) + " instead of " + ggml_type_name(head->type) + ", " +
                                 std::to_string(n_bytes() >> 20) + " MiB");
}

// In the first kind of memory whose products the CPU computes: there they are fastest
bool DraftHead::allocate(const ggml_tensor * head) {
    for (ggml_backend_buffer_type_t type : buffer_types()) {
        context_.reset(ggml_init({ 4 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true }));
        tensor_ = ggml_new_tensor_2d(context_.get(), copy_type, head->ne[0], head->ne[1]);
        ggml_set_name(tensor_, "dflash2_head");
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), type));
        if (!buffer_) {
            continue;
        }
        ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_tensor * rows    = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, head->ne[0], 1);
        ggml_tensor * product = ggml_mul_mat(context_.get(), tensor_, rows);
        if (ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), product)) {
            return true;
        }
    }
    return false;
}

bool DraftHead::fill(const ggml_tensor * head, int32_t n_threads) try {
    const ggml_to_float_t to_float  = ggml_get_type_traits(head->type)->to_float;
    const int64_t         n_row     = head->ne[0];
    const int64_t         n_rows    = head->ne[1];
    const size_t          row_bytes = ggml_row_size(copy_type, n_row);
    const int64_t         share     = (n_rows + n_threads - 1) / n_threads;
    std::vector<char>     data(row_bytes * n_rows);
    std::vector<float>    buffers(n_row * n_threads);

    const auto convert = [&](int32_t thread) noexcept {
        float * const buffer = buffers.data() + thread * n_row;
        for (int64_t i = thread * share; i < std::min(n_rows, (thread + 1) * share); ++i) {
            const char * source = (const char *) head->data + i * head->nb[1];
            if (head->type != GGML_TYPE_F32) {
                to_float(source, buffer, n_row);
            }
            const float * numbers = head->type == GGML_TYPE_F32 ? (const float *) source : buffer;
            ggml_quantize_chunk(copy_type, numbers, data.data() + i * row_bytes, 0, 1, n_row, nullptr);
        }
    };
    std::vector<std::future<void>> others;
    for (int32_t thread = 1; thread < n_threads; ++thread) {
        others.push_back(std::async(std::launch::async, convert, thread));
    }
    convert(0);
    others.clear();  // waits for them
    ggml_backend_tensor_set(tensor_, data.data(), 0, data.size());
    return true;
} catch (const std::bad_alloc &) {
    return false;
} catch (const std::system_error &) {
    return false;  // no more threads
}

}  // namespace dflash2
