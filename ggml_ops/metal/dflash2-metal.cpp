#include "dflash2-metal.h"

#include "dflash2-kargs.h"
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

namespace {

// The .metal files as one text
const char * const kernels =
#include "dflash2-kernels.inc"
    ;

const char * const conv_kernel  = "kernel_dflash2_conv_f32";
const char * const topk_kernel  = "kernel_dflash2_topk_f32";
const char * const merge_kernel = "kernel_dflash2_topk_merge";

ggml_metal_buffer_id buffer_of(const ggml_tensor * tensor) {
    const ggml_tensor * owner = tensor->view_src ? tensor->view_src : tensor;
    return ggml_metal_buffer_get_id((ggml_metal_buffer_t) owner->buffer->context, tensor);
}

// The kernels, compiled when a device is first asked for one; NULL if that failed. They are no part of ggml-metal's own
// library, for which one kernel that does not compile is the end of the whole device.
ggml_metal_library_t library_of(ggml_metal_device_t dev) {
    static std::mutex                                          mutex;
    static std::map<ggml_metal_device_t, ggml_metal_library_t> libraries;

    const std::lock_guard<std::mutex> lock(mutex);
    const auto [entry, is_new] = libraries.try_emplace(dev, nullptr);
    if (is_new) {
        entry->second = ggml_metal_library_init_from_source(dev, kernels, true);
    }
    return entry->second;
}

ggml_metal_pipeline_with_params pipeline_of(ggml_metal_device_t dev, const std::string & kernel) {
    ggml_metal_library_t lib = library_of(dev);
    if (!lib) {
        return {};
    }
    const ggml_metal_pipeline_with_params known = ggml_metal_library_get_pipeline(lib, kernel.c_str());
    return known.pipeline ? known : ggml_metal_library_compile_pipeline(lib, kernel.c_str(), kernel.c_str(), nullptr);
}

// Every kernel asks for at most this many threads.
bool can_run(ggml_metal_device_t dev, const std::string & kernel) {
    const ggml_metal_pipeline_with_params pipeline = pipeline_of(dev, kernel);
    return pipeline.pipeline && ggml_metal_pipeline_max_theads_per_threadgroup(pipeline) >= DFLASH2_N_THREADS;
}

std::string score_kernel(const ggml_tensor * op) {
    return std::string("kernel_dflash2_score_") + ggml_type_name(op->src[3]->type);
}

int32_t n_lists_of(int64_t n) {
    return (n + DFLASH2_TOPK_CHUNK - 1) / DFLASH2_TOPK_CHUNK;
}

// From the start of the ids to the lists
size_t lists_offset(const ggml_tensor * op) {
    return GGML_PAD(op->ne[1] * op->nb[1], sizeof(ggml_metal_dflash2_candidate));
}

bool can_read_table(ggml_type type) {
    switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_0:
        return true;
    default:
        return false;
    }
}

}  // namespace

bool ggml_metal_dflash2_supported(ggml_metal_device_t dev, const ggml_tensor * op) {
    switch (op->op) {
    case GGML_OP_DFLASH2_CONV:
        return can_run(dev, conv_kernel);
    case GGML_OP_DFLASH2_TOPK:
        return ggml_metal_device_get_props(dev)->has_simdgroup_reduction && can_run(dev, topk_kernel) &&
               can_run(dev, merge_kernel);
    case GGML_OP_DFLASH2_SCORE:
        return can_read_table(op->src[3]->type) && op->src[4]->type == op->src[3]->type &&
               can_run(dev, score_kernel(op));
    default:
        return false;
    }
}

size_t ggml_metal_op_dflash2_topk_extra(const ggml_tensor * op) {
    const int64_t k       = op->ne[0];
    const int64_t n_vocab = ggml_get_op_params_i32(op, 1);

    size_t n_candidates = 0;
    for (int64_t n_lists = n_lists_of(n_vocab); n_lists > 1; n_lists = n_lists_of(n_lists * k)) {
        n_candidates += op->ne[1] * n_lists * k;
    }
    return lists_offset(op) - op->ne[1] * op->nb[1] + n_candidates * sizeof(ggml_metal_dflash2_candidate);
}

void ggml_metal_op_dflash2_conv(ggml_metal_device_t dev, ggml_metal_encoder_t enc, const ggml_tensor * op) {
    const ggml_tensor * x        = op->src[0];
    const ggml_tensor * coeff    = op->src[1];
    const ggml_tensor * base     = op->src[2];
    const ggml_tensor * residual = op->src[3];

    const int32_t n_channels = x->ne[0];
    const int32_t n_taps     = base->ne[1];
    const int32_t n_groups   = coeff->ne[0] / (2 * n_taps);

    ggml_metal_kargs_dflash2_conv args = {
        /*.n_channels   =*/n_channels,
        /*.n_taps       =*/n_taps,
        /*.n_groups     =*/n_groups,
        /*.group_size   =*/n_channels / n_groups,
        /*.side         =*/ggml_get_op_params_i32(op, 0),
        /*.n_block_rows =*/ggml_get_op_params_i32(op, 1),
        /*.has_residual =*/residual != nullptr,
        /*.nb_x         =*/x->nb[1],
        /*.nb_coeff     =*/coeff->nb[1],
        /*.nb_residual  =*/residual ? residual->nb[1] : 0,
    };

    ggml_metal_encoder_set_pipeline(enc, pipeline_of(dev, conv_kernel));
    ggml_metal_encoder_set_bytes(enc, &args, sizeof(args), 0);
    ggml_metal_encoder_set_buffer(enc, buffer_of(x), 1);
    ggml_metal_encoder_set_buffer(enc, buffer_of(coeff), 2);
    ggml_metal_encoder_set_buffer(enc, buffer_of(base), 3);
    ggml_metal_encoder_set_buffer(enc, buffer_of(residual ? residual : x), 4);
    ggml_metal_encoder_set_buffer(enc, buffer_of(op), 5);

    const int n_groups_of_threads = (n_channels + DFLASH2_N_THREADS - 1) / DFLASH2_N_THREADS;
    ggml_metal_encoder_dispatch_threadgroups(enc, n_groups_of_threads, x->ne[1], 1, DFLASH2_N_THREADS, 1, 1);
}

void ggml_metal_op_dflash2_topk(ggml_metal_device_t dev, ggml_metal_encoder_t enc, const ggml_tensor * op) {
    const ggml_tensor * logits = op->src[0];
    const int64_t       n_rows = op->ne[1];

    ggml_metal_kargs_dflash2_topk args = {
        /*.n         =*/ggml_get_op_params_i32(op, 1),
        /*.k         =*/(int32_t) op->ne[0],
        /*.n_lists   =*/0,
        /*.nb_logits =*/logits->nb[1],
    };

    const ggml_metal_buffer_id ids    = buffer_of(op);
    ggml_metal_buffer_id       from   = buffer_of(logits);
    ggml_metal_buffer_id       lists  = ids;
    const char *               kernel = topk_kernel;
    // the best of each SIMD group, twice: see the kernel
    const size_t n_bests = 2 * DFLASH2_N_THREADS / DFLASH2_SIMD_WIDTH;

    lists.offs += lists_offset(op);
    for (;;) {
        args.n_lists = n_lists_of(args.n);

        ggml_metal_encoder_set_pipeline(enc, pipeline_of(dev, kernel));
        ggml_metal_encoder_set_bytes(enc, &args, sizeof(args), 0);
        ggml_metal_encoder_set_buffer(enc, from, 1);
        // the last stage leaves no lists, and an offset must lie within its buffer
        ggml_metal_encoder_set_buffer(enc, args.n_lists > 1 ? lists : ids, 2);
        ggml_metal_encoder_set_buffer(enc, ids, 3);
        ggml_metal_encoder_set_threadgroup_memory_size(enc, n_bests * sizeof(ggml_metal_dflash2_candidate), 0);
        ggml_metal_encoder_dispatch_threadgroups(enc, args.n_lists, n_rows, 1, DFLASH2_N_THREADS, 1, 1);
        if (args.n_lists == 1) {
            break;
        }

        // the next stage reads what this one writes, and dispatches run side by side
        ggml_metal_encoder_memory_barrier(enc);
        from   = lists;
        kernel = merge_kernel;
        args.n = args.n_lists * args.k;
        lists.offs += n_rows * args.n * sizeof(ggml_metal_dflash2_candidate);
    }
}

void ggml_metal_op_dflash2_score(ggml_metal_device_t dev, ggml_metal_encoder_t enc, const ggml_tensor * op) {
    const ggml_tensor * logits      = op->src[0];
    const ggml_tensor * ids         = op->src[1];
    const ggml_tensor * gate        = op->src[2];
    const ggml_tensor * predecessor = op->src[3];
    const ggml_tensor * successor   = op->src[4];
    const ggml_tensor * anchors     = op->src[5];

    const int32_t k          = ids->ne[0];
    const float   multiplier = ggml_get_op_params_f32(op, 1);

    ggml_metal_kargs_dflash2_score args = {
        /*.k          =*/k,
        /*.rank       =*/(int32_t) gate->ne[0],
        /*.n_slots    =*/ggml_get_op_params_i32(op, 0),
        /*.multiplier =*/multiplier == 0.0f ? 1.0f : multiplier,
        /*.softcap    =*/ggml_get_op_params_f32(op, 2),
        /*.nb_logits  =*/logits->nb[1],
        /*.nb_gate    =*/gate->nb[1],
        /*.nb_table   =*/predecessor->nb[1],
        /*.nb_anchors =*/anchors->nb[anchors->ne[0] == 1],
    };

    const int    n_predecessors = std::min(k, DFLASH2_N_THREADS / k);  // of one threadgroup
    const int    n_parts        = (k + n_predecessors - 1) / n_predecessors;
    const size_t tile_size      = (k + n_predecessors) * DFLASH2_SCORE_STRIDE * sizeof(float);

    ggml_metal_encoder_set_pipeline(enc, pipeline_of(dev, score_kernel(op)));
    ggml_metal_encoder_set_bytes(enc, &args, sizeof(args), 0);
    ggml_metal_encoder_set_buffer(enc, buffer_of(logits), 1);
    ggml_metal_encoder_set_buffer(enc, buffer_of(ids), 2);
    ggml_metal_encoder_set_buffer(enc, buffer_of(gate), 3);
    ggml_metal_encoder_set_buffer(enc, buffer_of(predecessor), 4);
    ggml_metal_encoder_set_buffer(enc, buffer_of(successor), 5);
    ggml_metal_encoder_set_buffer(enc, buffer_of(anchors), 6);
    ggml_metal_encoder_set_buffer(enc, buffer_of(op), 7);
    ggml_metal_encoder_set_threadgroup_memory_size(enc, GGML_PAD(tile_size, 16), 0);
    ggml_metal_encoder_dispatch_threadgroups(enc, n_parts, logits->ne[1], 1, k, n_predecessors, 1);
}
