// The Metal ops as a device of the shim, for test_metal_shim.py: the encoders, and the kernels that they dispatch.

#include "dflash2-kargs.h"
#include "dflash2-metal.h"
#include "ggml-backend-impl.h"
#include "metal_device.h"

// Makes macros of the words of the Metal language, until they are undefined again.
#include "metal.h"

#include "dflash2-conv.metal"
#include "dflash2-score.metal"
#include "dflash2-topk.metal"
#undef constant
#undef device
#undef kernel
#undef thread
#undef threadgroup

namespace {

using namespace shim::metal;

void conv(const Bindings & bound) {
    kernel_dflash2_conv_f32(bound.arguments<ggml_metal_kargs_dflash2_conv>(0), bound.buffer<char>(1),
                            bound.buffer<char>(2), bound.buffer<float>(3), bound.buffer<char>(4),
                            bound.buffer<float>(5), position_in_grid());
}

void topk(const Bindings & bound) {
    kernel_dflash2_topk_f32(bound.arguments<ggml_metal_kargs_dflash2_topk>(0), bound.buffer<char>(1),
                            bound.buffer<dflash2_candidate>(2), bound.buffer<int>(3),
                            (dflash2_candidate *) shim::shared(), group_position(), index_in_group(), simd_group(),
                            lane());
}

void merge(const Bindings & bound) {
    kernel_dflash2_topk_merge(bound.arguments<ggml_metal_kargs_dflash2_topk>(0), bound.buffer<dflash2_candidate>(1),
                              bound.buffer<dflash2_candidate>(2), bound.buffer<int>(3),
                              (dflash2_candidate *) shim::shared(), group_position(), index_in_group(), simd_group(),
                              lane());
}

template <typename table>
void score(const Bindings & bound) {
    kernel_dflash2_score<table>(bound.arguments<ggml_metal_kargs_dflash2_score>(0), bound.buffer<char>(1),
                                bound.buffer<int>(2), bound.buffer<char>(3), bound.buffer<char>(4),
                                bound.buffer<char>(5), bound.buffer<char>(6), bound.buffer<float>(7),
                                (float *) shim::shared(), group_position(), position_in_group(), group_size());
}

}  // namespace

const std::map<std::string, Kernel> & shim::metal::kernels() {
    static const std::map<std::string, Kernel> kernels = {
        { "kernel_dflash2_conv_f32", conv },
        { "kernel_dflash2_topk_f32", topk },
        { "kernel_dflash2_topk_merge", merge },
        { "kernel_dflash2_score_f32", score<dflash2_f32> },
        { "kernel_dflash2_score_f16", score<dflash2_f16> },
        { "kernel_dflash2_score_bf16", score<dflash2_bf16> },
        { "kernel_dflash2_score_q8_0", score<dflash2_q8_0> },
        { "kernel_dflash2_score_q4_0", score<dflash2_q4_0> },
    };
    return kernels;
}

namespace {

ggml_metal_device device_of_test;

}  // namespace

bool shim::supports(const ggml_tensor * node) {
    device_of_test.props.has_simdgroup_reduction = true;
    return ggml_metal_dflash2_supported(&device_of_test, node);
}

// In memory as large as the device asks for
void shim::compute(ggml_tensor * node) {
    const size_t size  = static_cast<const Tensor *>(node)->image.size;
    const size_t extra = node->op == GGML_OP_DFLASH2_TOPK ? ggml_metal_op_dflash2_topk_extra(node) : 0;
    const Image  image = { GGML_TYPE_F32, {}, {}, size + extra, nullptr };
    Tensor       op(image);

    void * const        data = op.data;
    ggml_backend_buffer owner{};
    static_cast<ggml_tensor &>(op) = *node;
    op.data                        = data;
    op.buffer                      = &owner;
    for (ggml_tensor * source : op.src) {
        if (source) {
            source->buffer = &owner;
        }
    }
    ggml_metal_encoder encoder(trial.backward);
    switch (op.op) {
    case GGML_OP_DFLASH2_CONV:
        ggml_metal_op_dflash2_conv(&device_of_test, &encoder, &op);
        break;
    case GGML_OP_DFLASH2_TOPK:
        ggml_metal_op_dflash2_topk(&device_of_test, &encoder, &op);
        break;
    default:
        ggml_metal_op_dflash2_score(&device_of_test, &encoder, &op);
    }
    encoder.run();
    if (!op.memory.intact()) {
        throw Fault("something was written beside the result");
    }
    std::memcpy(node->data, op.data, size);
}

extern "C" {

// Whether a device takes an op, 0 to 2 in the order of their numbers, score with tables of these types
bool metal_supports(
    int op, int predecessor_type, int successor_type, bool has_simdgroup_reduction, bool compiles, int max_threads) {
    // Never freed: what is known of a device is kept under its address.
    auto * device = new ggml_metal_device;

    device->props.has_simdgroup_reduction = has_simdgroup_reduction;
    device->compiles                      = compiles;
    device->max_threads                   = max_threads;
    ggml_tensor predecessor{};
    ggml_tensor successor{};
    ggml_tensor node{};
    predecessor.type = (ggml_type) predecessor_type;
    successor.type   = (ggml_type) successor_type;
    node.op          = (ggml_op) (GGML_OP_DFLASH2_CONV + op);
    node.src[3]      = &predecessor;
    node.src[4]      = &successor;
    return ggml_metal_dflash2_supported(device, &node);
}

// What the encoders need of ggml-base, which is not linked

const char * ggml_type_name(ggml_type type) {
    static const std::map<ggml_type, const char *> names = {
        { GGML_TYPE_F32, "f32" },   { GGML_TYPE_F16, "f16" },   { GGML_TYPE_BF16, "bf16" },
        { GGML_TYPE_Q8_0, "q8_0" }, { GGML_TYPE_Q4_0, "q4_0" },
    };
    return names.at(type);
}

void ggml_abort(const char * file, int line, const char *, ...) {
    throw shim::Fault(std::string(file) + ":" + std::to_string(line) + ": ggml_abort");
}
}
