#pragma once

// The CUDA face of the shim. Stands for ggml's header of this name: what the sources in ggml_ops/cuda need of it and of
// CUDA C++.

#include "nodes.h"

#include "ggml-impl.h"

#include <cmath>

#define GGML_COMMON_DECL_CUDA
#define GGML_COMMON_IMPL_CUDA
#define __device__
#include "ggml-common.h"

// The language

#define __global__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ SHIM_SHARED

#define threadIdx (shim::position().thread)
#define blockIdx (shim::position().block)
#define blockDim (shim::launch().block)
#define gridDim (shim::launch().grid)

typedef shim::Dim dim3;
typedef int       cudaStream_t;

inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float __uint_as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

using std::max;
using std::min;

inline float __fadd_rn(float a, float b) {
    return a + b;
}

inline float __fmul_rn(float a, float b) {
    return a * b;
}

inline void __syncthreads(const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    shim::barrier(file, line);
}

// Blocks run one after another, and a thread runs until it waits.
template <typename T>
T atomicAdd(T * address, T value) {
    const T old = *address;
    *address += value;
    return old;
}

// ggml

// Where a kernel may start before the one in front of it has ended, and where it waits for that.
inline void ggml_cuda_pdl_lc() {}

inline void ggml_cuda_pdl_sync() {}

struct ggml_cuda_pool {};

// Scratch memory, guarded like a tensor.
template <typename T>
class ggml_cuda_pool_alloc {
public:
    explicit ggml_cuda_pool_alloc(ggml_cuda_pool &) {}
    ~ggml_cuda_pool_alloc() noexcept(false) {
        if (memory_ && !memory_->intact() && std::uncaught_exceptions() == 0) {
            throw shim::Fault("something was written beside the scratch memory");
        }
    }

    T * alloc(size_t n) {
        memory_ = std::make_unique<shim::Buffer>(n * sizeof(T), shim::trial.at_end);
        return get();
    }
    T * get() { return memory_ ? (T *) memory_->data() : nullptr; }

private:
    std::unique_ptr<shim::Buffer> memory_;
};

struct ggml_backend_cuda_context {
    ggml_cuda_pool   scratch;
    ggml_cuda_pool & pool() { return scratch; }
    cudaStream_t     stream() { return 0; }
};

struct ggml_cuda_kernel_launch_params {
    ggml_cuda_kernel_launch_params(const dim3 & grid, const dim3 & block, size_t shared_bytes, cudaStream_t) :
        launch{ grid, block, shared_bytes, (unsigned) shim::trial.simd_width, shim::trial.backward } {}

    shim::Launch launch;
};

template <typename Kernel, typename... Args>
void ggml_cuda_kernel_launch(Kernel kernel, const ggml_cuda_kernel_launch_params & params, Args &&... args) {
    shim::run(params.launch, [&] { kernel(args...); });
}
