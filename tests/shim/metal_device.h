#pragma once

// ggml-metal's device functions on the executor, as far as encoders call them: include this in one file only. Kernels
// are found under their names in shim::metal::kernels(). Dispatches between two barriers run in one order or the other,
// since nothing orders them on a device.

#include "ggml-metal-device.h"
#include "nodes.h"

#include <map>
#include <memory>

namespace shim::metal {

// What is bound to a kernel's parameters
struct Bindings {
    std::map<int, std::vector<unsigned char>> bytes;
    std::map<int, void *>                     buffers;
    size_t                                    threadgroup_bytes = 0;

    template <typename T>
    const T & arguments(int index) const {
        return *(const T *) (const void *) bytes.at(index).data();
    }

    template <typename T>
    T * buffer(int index) const {
        return (T *) buffers.at(index);
    }
};

// Called once for every thread
using Kernel = std::function<void(const Bindings &)>;

const std::map<std::string, Kernel> & kernels();

}  // namespace shim::metal

struct ggml_metal_device {
    ggml_metal_device_props props{};
    bool                    compiles    = true;
    int                     max_threads = 1024;
};

struct ggml_metal_library {
    ggml_metal_device * dev;
    std::string         source;

    std::map<std::string, std::unique_ptr<ggml_metal_pipeline>> pipelines;
};

struct ggml_metal_pipeline {
    ggml_metal_device *         dev;
    const shim::metal::Kernel * kernel;
};

struct ggml_metal_encoder {
    explicit ggml_metal_encoder(bool is_backward) : backward(is_backward) {}

    void run() {
        if (backward) {
            std::reverse(side_by_side.begin(), side_by_side.end());
        }
        for (const auto & dispatch : side_by_side) {
            dispatch();
        }
        side_by_side.clear();
    }

    const bool                         backward;
    const shim::metal::Kernel *        kernel = nullptr;
    shim::metal::Bindings              bindings;
    std::vector<std::function<void()>> side_by_side;
};

const ggml_metal_device_props * ggml_metal_device_get_props(ggml_metal_device_t dev) {
    return &dev->props;
}

ggml_metal_library_t ggml_metal_library_init_from_source(ggml_metal_device_t dev, const char * source, bool) {
    return dev->compiles ? new ggml_metal_library{ dev, source, {} } : nullptr;
}

ggml_metal_pipeline_with_params ggml_metal_library_get_pipeline(ggml_metal_library_t lib, const char * name) {
    ggml_metal_pipeline_with_params result{};
    result.pipeline = lib->pipelines[name].get();
    return result;
}

ggml_metal_pipeline_with_params
ggml_metal_library_compile_pipeline(ggml_metal_library_t lib, const char * base, const char * name, ggml_metal_cv_t) {
    const auto found = shim::metal::kernels().find(base);
    if (found != shim::metal::kernels().end() && lib->source.find(base) != std::string::npos) {
        lib->pipelines[name].reset(new ggml_metal_pipeline{ lib->dev, &found->second });
    }
    return ggml_metal_library_get_pipeline(lib, name);
}

int ggml_metal_pipeline_max_theads_per_threadgroup(ggml_metal_pipeline_with_params pipeline) {
    return pipeline.pipeline->dev->max_threads;
}

// Every tensor has a buffer of its own here.
ggml_metal_buffer_id ggml_metal_buffer_get_id(ggml_metal_buffer_t, const ggml_tensor * tensor) {
    return { (void *) &static_cast<const shim::Tensor *>(tensor)->memory, 0 };
}

void ggml_metal_encoder_set_pipeline(ggml_metal_encoder_t encoder, ggml_metal_pipeline_with_params pipeline) {
    if (!pipeline.pipeline) {
        throw shim::Fault("there is no such kernel");
    }
    encoder->kernel = pipeline.pipeline->kernel;
}

void ggml_metal_encoder_set_bytes(ggml_metal_encoder_t encoder, void * data, size_t size, int index) {
    const auto * bytes             = (const unsigned char *) data;
    encoder->bindings.bytes[index] = { bytes, bytes + size };
}

void ggml_metal_encoder_set_buffer(ggml_metal_encoder_t encoder, ggml_metal_buffer_id id, int index) {
    const shim::Buffer & memory = *(const shim::Buffer *) id.metal;
    if (id.offs >= memory.size() || id.offs % 4 != 0) {
        throw shim::Fault("buffer " + std::to_string(index) + " is bound at " + std::to_string(id.offs) + " of " +
                          std::to_string(memory.size()) + " bytes");
    }
    encoder->bindings.buffers[index] = memory.data() + id.offs;
}

void ggml_metal_encoder_set_threadgroup_memory_size(ggml_metal_encoder_t encoder, size_t size, int index) {
    if (index != 0 || size % 16 != 0 || size > 32 * 1024) {
        throw shim::Fault("threadgroup memory " + std::to_string(index) + " of " + std::to_string(size) + " bytes");
    }
    encoder->bindings.threadgroup_bytes = size;
}

void ggml_metal_encoder_dispatch_threadgroups(
    ggml_metal_encoder_t encoder, int n_x, int n_y, int n_z, int x, int y, int z) {
    if (n_x <= 0 || n_y <= 0 || n_z <= 0) {
        throw shim::Fault("a dispatch without threadgroups");
    }
    shim::Launch launch;
    launch.grid         = { (unsigned) n_x, (unsigned) n_y, (unsigned) n_z };
    launch.block        = { (unsigned) x, (unsigned) y, (unsigned) z };
    launch.shared_bytes = encoder->bindings.threadgroup_bytes;
    launch.backward     = encoder->backward;
    encoder->side_by_side.push_back([launch, kernel = encoder->kernel, bindings = encoder->bindings] {
        shim::run(launch, [&] { (*kernel)(bindings); });
    });
}

void ggml_metal_encoder_memory_barrier(ggml_metal_encoder_t encoder) {
    encoder->run();
}
