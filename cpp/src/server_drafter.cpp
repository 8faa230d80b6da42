#include "server_drafter.h"

#include "llama-ext.h"
#include "weight_layout.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace dflash2 {

namespace {

llama_context_params context_params(const common_params & params, const Target & target, const DrafterInfo & info) {
    const common_params_speculative_draft & draft    = params.speculative.draft;
    const auto                              n_slots  = (uint32_t) params.n_parallel;
    const uint32_t                          per_slot = llama_n_ctx_seq(target.context());
    const auto                              limit    = (uint32_t) params.speculative.dflash2.n_ctx;

    llama_context_params result = llama_context_default_params();  // rotary settings: the drafter's own alone

    const int32_t own_threads = draft.cpuparams.n_threads;
    const int32_t own_batch   = draft.cpuparams_batch.n_threads;
    result.n_threads          = own_threads > 0 ? own_threads : params.cpuparams.n_threads;
    result.n_threads_batch    = own_batch > 0 ? own_batch : result.n_threads;
    result.flash_attn_type    = params.flash_attn_type;
    result.offload_kqv        = !params.no_kv_offload;
    result.op_offload         = !params.no_op_offload;
    result.no_perf            = params.no_perf;
    result.type_k             = draft.cache_type_k;
    result.type_v             = draft.cache_type_v;
    result.swa_full           = false;
    result.n_seq_max          = n_slots;
    // Where slots share the target's cache they share this one, unless a window is involved: in a shared ring one slot
    // pushes out what another still needs
    result.kv_unified = params.kv_unified && info.window == 0 && limit == 0;
    result.n_ctx      = result.kv_unified ? llama_n_ctx(target.context()) : n_slots * (limit > 0 ? limit : per_slot);
    return result;
}

bool is_remote(ggml_backend_dev_t device) {
    return std::string(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device))) == "RPC";
}

bool contains(const std::vector<ggml_backend_dev_t> & devices, ggml_backend_dev_t device) {
    return std::find(devices.begin(), devices.end(), device) != devices.end();
}

// The drafter's layers go where -devd says, else where the target's are, but not over the network. It computes with the
// target's head where that lies, so the target's other devices are named too, with no share of its layers.
void place_layers(common_params & own, const common_params_speculative_draft & draft, const llama_model * target) {
    std::vector<ggml_backend_dev_t> theirs;
    for (int32_t i = 0; i < llama_model_n_devices(target); ++i) {
        theirs.push_back(llama_model_get_device(target, i));
    }
    const bool given = !draft.devices.empty();
    if (!given && std::none_of(theirs.begin(), theirs.end(), is_remote)) {
        return;
    }
    std::vector<ggml_backend_dev_t> devices;
    for (ggml_backend_dev_t device : given ? draft.devices : theirs) {
        if (device && (given || !is_remote(device))) {
            devices.push_back(device);
        }
    }
    std::fill(std::begin(own.tensor_split), std::end(own.tensor_split), 0.0f);
    for (size_t i = 0; i < devices.size(); ++i) {
        size_t free  = 0;
        size_t total = 0;
        ggml_backend_dev_memory(devices[i], &free, &total);
        own.tensor_split[i] = (float) std::max<size_t>(1, free);
    }
    if (devices.empty()) {
        own.n_gpu_layers = 0;
    }
    for (ggml_backend_dev_t device : theirs) {
        if (!contains(devices, device)) {
            devices.push_back(device);
        }
    }
    devices.push_back(nullptr);
    own.devices = devices;
}

}  // namespace

std::unique_ptr<Drafter>
open_server_drafter(const common_params & params, const Target & target, const DrafterInfo & info) {
    const common_params_speculative_draft & draft = params.speculative.draft;

    common_params own          = params;  // the model's params point into it
    own.n_gpu_layers           = draft.n_gpu_layers;
    own.tensor_buft_overrides  = draft.tensor_buft_overrides;
    own.load_progress_callback = nullptr;
    // set for the target's sake, or asked for
    own.no_extra_bufts &= !keeps_layout(GgufFile(params.model.path));
    own.no_extra_bufts |= keeps_layout(GgufFile(draft.mparams.path));
    own.kv_overrides.clear();
    place_layers(own, draft, target.model());
    Drafter::Params opened{ draft.mparams.path, common_model_params_to_llama(own),
                            context_params(params, target, info) };
    opened.draft_head = params.speculative.dflash2.draft_head;
    return std::make_unique<Drafter>(opened, target, info, draft.n_max);
}

DrafterMemory memory_of(const Drafter & drafter, const Target & target) {
    DrafterMemory memory;
    memory.features   = target.feature_bytes();
    memory.rows       = target.row_bytes();
    memory.vocabulary = drafter.vocabulary_bytes();
    for (const auto & [type, data] : llama_get_memory_breakdown(drafter.context())) {
        memory.weights += data.model;
        memory.cache += data.context;
        memory.compute += data.compute;
    }
    memory.head = drafter.head().n_bytes();
    return memory;
}

}  // namespace dflash2
