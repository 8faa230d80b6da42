#pragma once

// Runs one node of a ggml graph on a device whose sources are compiled against a face of the shim. What a test calls.

#include "guard.h"

#include "ggml.h"

#include <map>
#include <memory>

namespace shim {

// What makes a launch harder; the result must not depend on it.
struct Trial {
    bool    at_end;  // every buffer lies against an untouchable page behind it, else in front of it
    bool    backward;
    int32_t simd_width;
};

inline Trial trial;

// For the device: whether it takes the node, and computing it.
bool supports(const ggml_tensor * node);
void compute(ggml_tensor * node);

// A tensor as it lies in memory, gaps between its rows included.
struct Image {
    int32_t      type;
    int64_t      ne[4];
    uint64_t     nb[4];
    uint64_t     size;
    const void * data;  // null: there is no such tensor, or it is the result
};

struct Tensor : ggml_tensor {
    explicit Tensor(const Image & image) : ggml_tensor{}, image(image), memory(image.size, trial.at_end) {
        ggml_tensor::type = (ggml_type) image.type;
        ggml_tensor::data = memory.data();
        std::copy(image.ne, image.ne + 4, ne);
        std::copy(image.nb, image.nb + 4, nb);
        if (image.data) {
            std::memcpy(memory.data(), image.data, image.size);
        }
    }

    const Image & image;
    Buffer        memory;
};

}  // namespace shim

// Computes a node of the op, of which only the last word of the name is given, and writes its memory to out. Null, or
// what went wrong: a text that lives until the next call. n_sources places, which may be empty; params: the 16 words of
// op_params.
extern "C" __attribute__((used)) inline const char * shim_run(const char *        op,
                                                              const int32_t *     params,
                                                              const shim::Image * sources,
                                                              int32_t             n_sources,
                                                              const shim::Image * result,
                                                              const shim::Trial * trial,
                                                              void *              out) {
    static std::string message;
    try {
        shim::trial = *trial;
        shim::Tensor                               node(*result);
        std::vector<std::unique_ptr<shim::Tensor>> given;
        node.op = std::map<std::string, ggml_op>{
            { "conv", GGML_OP_DFLASH2_CONV }, { "topk", GGML_OP_DFLASH2_TOPK }, { "score", GGML_OP_DFLASH2_SCORE }
        }.at(op);
        std::copy(params, params + 16, node.op_params);
        for (int32_t i = 0; i < n_sources; ++i) {
            if (sources[i].data) {
                given.push_back(std::make_unique<shim::Tensor>(sources[i]));
                node.src[i] = given.back().get();
            }
        }
        if (!shim::supports(&node)) {
            throw shim::Fault("the node is not supported");
        }
        shim::compute(&node);
        if (!node.memory.intact()) {
            throw shim::Fault("something was written beside the result");
        }
        for (const auto & source : given) {
            if (!source->memory.intact() || std::memcmp(source->data, source->image.data, source->image.size) != 0) {
                throw shim::Fault("a source was written");
            }
        }
        std::memcpy(out, node.data, result->size);
        return nullptr;
    } catch (const std::exception & error) {
        message = error.what();
        return message.c_str();
    }
}
