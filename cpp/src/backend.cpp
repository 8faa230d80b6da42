#include "backend.h"

#include "common.h"
#include "dflash2/system.h"
#include "ggml-cpu.h"
#include "ggml-dflash2.h"
#include "llama-ext.h"
#include "logging.h"
#include "weight_layout.h"

#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>

namespace dflash2 {

namespace {

std::vector<std::string> split_names(const std::string & names) {
    std::vector<std::string> result;
    for (const std::string & name : string_split<std::string>(names, ',')) {
        if (!name.empty()) {
            result.push_back(name);
        }
    }
    return result;
}

std::string known_devices() {
    std::string result = "auto, cpu";
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (ggml_backend_dev_type(ggml_backend_dev_get(i)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            result += std::string(", ") + ggml_backend_dev_name(ggml_backend_dev_get(i));
        }
    }
    return result;
}

// Asked about shapes of a released drafter, with the tables in the type that is the rule
bool has_fused_ops(ggml_backend_dev_t device) {
    constexpr int H = 2560, groups = 160, taps = 2, rank = 256, n_vocab = 151936, n_cand = 16, n_slots = 7;

    const ggml_init_params params = { 16 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true };
    const std::unique_ptr<ggml_context, void (*)(ggml_context *)> context(ggml_init(params), ggml_free);
    ggml_context *                                                ctx = context.get();

    const auto f32 = [ctx](int64_t n, int64_t rows, int64_t depth = 1) {
        return ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n, rows, depth);
    };
    ggml_tensor * x      = f32(H, n_slots + 1);
    ggml_tensor * coeff  = f32(2 * taps * groups, n_slots + 1);
    ggml_tensor * conv   = ggml_dflash2_conv(ctx, x, coeff, f32(H, taps, 2), x, 1, n_slots + 1);
    ggml_tensor * logits = f32(n_vocab, n_slots);
    ggml_tensor * ids    = ggml_dflash2_topk(ctx, logits, n_cand, n_vocab);
    ggml_tensor * table  = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, rank, n_vocab);
    ggml_tensor * anchor = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
    ggml_tensor * scores =
        ggml_dflash2_score(ctx, logits, ids, f32(rank, n_slots), table, table, anchor, n_slots, 0, 0);
    return ggml_backend_dev_supports_op(device, conv) && ggml_backend_dev_supports_op(device, ids) &&
           ggml_backend_dev_supports_op(device, scores);
}

void add_rpc_servers(const std::string & endpoints) {
    if (endpoints.empty()) {
        return;
    }
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    if (!rpc) {
        throw std::invalid_argument("[rpc] this build has no RPC backend: build with -DGGML_RPC=ON");
    }
    using add_server_t    = ggml_backend_reg_t (*)(const char *);
    const auto add_server = (add_server_t) ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server");

    static std::mutex            mutex;
    static std::set<std::string> added;

    const std::lock_guard<std::mutex> lock(mutex);
    for (const std::string & endpoint : split_names(endpoints)) {
        if (added.count(endpoint)) {
            continue;
        }
        // ends the process when nobody speaks its protocol there: callers look first whether somebody listens
        ggml_backend_reg_t server = add_server(endpoint.c_str());
        if (!server) {
            throw std::invalid_argument("[rpc] no answer from " + endpoint +
                                        ": start `ggml-rpc-server` there, the form is host:port");
        }
        ggml_backend_register(server);
        added.insert(endpoint);
    }
}

std::vector<ggml_backend_dev_t> find_devices(const std::string & names) {
    if (names == "auto") {
        return {};
    }
    if (names == "cpu") {
        return { nullptr };
    }
    std::vector<ggml_backend_dev_t> result;
    for (const std::string & name : split_names(names)) {
        ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
        if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            throw std::invalid_argument("[device] no device '" + name + "', there are: " + known_devices());
        }
        result.push_back(device);
    }
    if (result.empty()) {
        throw std::invalid_argument("[device] no device is named in '" + names + "', there are: " + known_devices());
    }
    result.push_back(nullptr);
    return result;
}

ggml_type find_cache_type(const std::string & name) {
    std::string known;
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q5_1,
                                  GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL }) {
        if (name == ggml_type_name(type)) {
            return type;
        }
        known += std::string(known.empty() ? "" : ", ") + ggml_type_name(type);
    }
    throw std::invalid_argument("[cache_type] '" + name + "' is none of " + known);
}

llama_flash_attn_type find_flash_attn(const std::string & name) {
    if (name == "auto") {
        return LLAMA_FLASH_ATTN_TYPE_AUTO;
    }
    if (name == "on") {
        return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    if (name == "off") {
        return LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    throw std::invalid_argument("[flash_attn] '" + name + "' is none of auto, on, off");
}

}  // namespace

BackendParams::BackendParams(const EngineOptions & options) :
    cache_type(find_cache_type(options.cache_type)), n_gpu_layers_(options.n_gpu_layers),
    n_threads_(options.n_threads > 0 ? options.n_threads : common_cpu_get_num_math()),
    flash_attn_(find_flash_attn(options.flash_attn)), own_kernels_(options.fused_ops != "upstream") {
    add_rpc_servers(options.rpc);
    devices_ = find_devices(options.device);
    if (options.device == "cpu") {
        n_gpu_layers_ = 0;
    }
    if (ggml_is_quantized(cache_type) && flash_attn_ == LLAMA_FLASH_ATTN_TYPE_DISABLED) {
        throw std::invalid_argument("[cache_type] '" + options.cache_type +
                                    "' needs flash attention: set flash_attn to auto or on");
    }
}

llama_model_params BackendParams::model_params(const GgufFile & file) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers       = n_gpu_layers_;
    params.use_extra_bufts    = !own_kernels_ || !keeps_layout(file);
    if (!devices_.empty()) {
        params.devices = devices_.data();
    }
    return params;
}

llama_context_params BackendParams::context_params() const {
    llama_context_params params = llama_context_default_params();
    params.n_threads            = n_threads_;
    params.n_threads_batch      = n_threads_;
    params.flash_attn_type      = flash_attn_;
    params.swa_full             = false;
    // A cache of its own for each sequence: in a shared one a sequence's rejected rows can push out keys that another
    // still needs, and a batch of equal blocks stays one micro-batch
    params.kv_unified = false;
    return params;
}

std::vector<std::string> model_devices(const llama_model * model) {
    std::vector<std::string> result;
    for (int32_t i = 0; i < llama_model_n_devices(model); ++i) {
        result.emplace_back(ggml_backend_dev_name(llama_model_get_device(model, i)));
    }
    if (result.empty()) {
        result.emplace_back("CPU");
    }
    return result;
}

void load_backends(const std::string & directory) {
    start_llama();
    ggml_backend_load_all_from_path(directory.c_str());
}

std::vector<Device> devices() {
    start_llama();
    std::vector<Device> result;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        Device             entry;
        entry.name        = ggml_backend_dev_name(device);
        entry.description = ggml_backend_dev_description(device);
        entry.backend     = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
        entry.fused_ops   = has_fused_ops(device) ? "fused" : "composed";
        ggml_backend_dev_memory(device, &entry.memory_free, &entry.memory_total);
        result.push_back(entry);
    }
    return result;
}

std::vector<std::string> cpu_features() {
    std::vector<std::string> result;
    ggml_backend_reg_t       cpu = ggml_backend_reg_by_name("CPU");
    if (!cpu) {
        return result;
    }
    const auto get_features =
        (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features");
    if (!get_features) {
        return result;
    }
    for (const ggml_backend_feature * feature = get_features(cpu); feature->name; ++feature) {
        if (std::string(feature->value) == "1") {
            result.emplace_back(feature->name);
        }
    }
    return result;
}

const char * llama_cpp_version() {
    return DFLASH2_LLAMA_CPP_VERSION;
}

const char * llama_cpp_commit() {
    return DFLASH2_LLAMA_CPP_COMMIT;
}

}  // namespace dflash2
