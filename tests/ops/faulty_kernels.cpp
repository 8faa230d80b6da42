// Kernels for the test of the shim itself: right ones, and ones with a planted fault. Each is a "conv" node whose first
// parameter says which; 64 threads a block, one block for every 64 floats of the source.

#include "common.cuh"

namespace {

constexpr int n_threads = 64;

struct Arguments {
    const float * in;
    float *       out;
    int           n;
};

// out[block] = sum of the block's 64 floats
void sum_of_block(const Arguments & arguments, bool has_barrier) {
    __shared__ float sums[n_threads];
    sums[threadIdx.x] = arguments.in[blockIdx.x * n_threads + threadIdx.x];
    if (has_barrier) {
        __syncthreads();
    }
    if (threadIdx.x == 17) {
        float sum = 0.0f;
        for (float value : sums) {
            sum += value;
        }
        arguments.out[blockIdx.x] = sum;
    }
}

void good(const Arguments & arguments) {
    sum_of_block(arguments, true);
}

void missing_barrier(const Arguments & arguments) {
    sum_of_block(arguments, false);
}

// The same sum by shuffles within SIMD groups, of whatever width, and shared memory between them
void good_shuffles(const Arguments & arguments) {
    __shared__ float sums[n_threads];
    const int        width = (int) shim::launch().simd_width;
    float            sum   = arguments.in[blockIdx.x * n_threads + threadIdx.x];
    for (int mask = width / 2; mask > 0; mask /= 2) {
        sum += shim::shuffle(sum, shim::position().lane ^ mask);
    }
    sums[threadIdx.x / width] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        arguments.out[blockIdx.x] = width == 64 ? sums[0] : sums[0] + sums[1];
    }
}

// The same sum, by what a reduction and a vote say
void good_reduction(const Arguments & arguments) {
    const unsigned   width = shim::launch().simd_width;
    const float      value = arguments.in[blockIdx.x * n_threads + threadIdx.x];
    const float      sum   = shim::reduce(value, [](float a, float b) { return a + b; });
    const uint64_t   votes = shim::ballot(shim::position().lane != 3);
    __shared__ float sums[n_threads];
    sums[threadIdx.x / width] = votes == ((width == 64 ? 0 : (uint64_t) 1 << width) - 1 - 8) ? sum : NAN;
    __syncthreads();
    if (threadIdx.x == 0) {
        arguments.out[blockIdx.x] = width == 64 ? sums[0] : sums[0] + sums[1];
    }
}

// A second sum reads what may still be the first: the barrier between them is missing.
void missing_second_barrier(const Arguments & arguments) {
    __shared__ float last;
    float            sum = 0.0f;
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 20) {
            last = arguments.in[blockIdx.x * n_threads + i];
        }
        __syncthreads();
        sum += last;
    }
    if (threadIdx.x == 40) {
        arguments.out[blockIdx.x] = sum;
    }
}

void race_of_two_writers(const Arguments & arguments) {
    __shared__ float last;
    last = (float) threadIdx.x;
    __syncthreads();
    arguments.out[blockIdx.x] = last;
}

void race_of_two_blocks(const Arguments & arguments) {
    arguments.out[0] = (float) blockIdx.x;
    arguments.out[1] = 0.0f;
}

void stale_shared_memory(const Arguments & arguments) {
    __shared__ float kept;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        kept = 1.0f;
    }
    __syncthreads();
    arguments.out[blockIdx.x] = kept;
}

void result_not_written(const Arguments & arguments) {
    if (blockIdx.x == 0) {
        arguments.out[0] = 1.0f;
    }
}

void read_behind(const Arguments & arguments) {
    arguments.out[blockIdx.x] = arguments.in[blockIdx.x * n_threads + threadIdx.x + 1];
}

void read_in_front(const Arguments & arguments) {
    const int i               = (int) (blockIdx.x * n_threads + threadIdx.x) - 1;
    arguments.out[blockIdx.x] = arguments.in[i];
}

void write_behind(const Arguments & arguments) {
    arguments.out[2 - blockIdx.x] = 1.0f;  // 2: the padding of a result of 2
}

void write_a_source(const Arguments & arguments) {
    const_cast<float *>(arguments.in)[threadIdx.x] = 0.0f;
}

void null_pointer(const Arguments & arguments) {
    const volatile float * nowhere = nullptr;
    arguments.out[blockIdx.x]      = nowhere[16];
}

void misaligned_vector(const Arguments & arguments) {
    struct alignas(16) Four {
        float v[4];
    };
    arguments.out[blockIdx.x] = reinterpret_cast<const Four *>(arguments.in + 1)->v[0];
}

void index_outside_of_an_array(const Arguments & arguments) {
    __shared__ float values[n_threads];
    values[threadIdx.x + (unsigned) arguments.n / 128] = 1.0f;
    arguments.out[blockIdx.x]                          = values[0];
}

void outside_of_dynamic_shared_memory(const Arguments & arguments) {
    ((volatile float *) shim::shared())[threadIdx.x + 1] = 1.0f;
    arguments.out[blockIdx.x]                            = 1.0f;
}

void barrier_of_some(const Arguments & arguments) {
    if (threadIdx.x < 3) {
        __syncthreads();
    }
    arguments.out[blockIdx.x] = 1.0f;
}

void two_barriers(const Arguments & arguments) {
    if (threadIdx.x < 3) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    arguments.out[blockIdx.x] = 1.0f;
}

void shuffle_of_some(const Arguments & arguments) {
    float value = 1.0f;
    if (threadIdx.x % 2 == 0) {
        value = shim::shuffle(value, 0);
    } else {
        __syncthreads();
    }
    arguments.out[blockIdx.x] = value;
}

// Lane 1 has ended and gives nothing.
void shuffle_from_an_ended_lane(const Arguments & arguments) {
    if (threadIdx.x == 1) {
        return;
    }
    const float value = shim::shuffle(1.0f, 1);
    if (threadIdx.x == 0) {
        arguments.out[blockIdx.x] = value;
    }
}

const std::map<int, void (*)(const Arguments &)> kernels = {
    { 0, good },
    { 1, missing_barrier },
    { 2, good_shuffles },
    { 3, good_reduction },
    { 4, missing_second_barrier },
    { 5, race_of_two_writers },
    { 6, race_of_two_blocks },
    { 7, stale_shared_memory },
    { 8, result_not_written },
    { 9, read_behind },
    { 10, read_in_front },
    { 11, write_behind },
    { 12, write_a_source },
    { 13, null_pointer },
    { 14, misaligned_vector },
    { 15, index_outside_of_an_array },
    { 16, outside_of_dynamic_shared_memory },
    { 17, barrier_of_some },
    { 18, two_barriers },
    { 19, shuffle_of_some },
    { 20, shuffle_from_an_ended_lane },
};

}  // namespace

bool shim::supports(const ggml_tensor * node) {
    return kernels.count(node->op_params[0]) != 0;
}

void shim::compute(ggml_tensor * node) {
    const ggml_tensor *                  in = node->src[0];
    const Arguments                      arguments{ (const float *) in->data, (float *) node->data, (int) in->ne[0] };
    const dim3                           grid((unsigned) in->ne[0] / n_threads);
    const ggml_cuda_kernel_launch_params params(grid, n_threads, n_threads * sizeof(float), 0);
    ggml_cuda_kernel_launch(kernels.at(node->op_params[0]), params, arguments);
}
