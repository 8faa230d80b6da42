#include "pair.h"

#include "dflash2/errors.h"
#include "ggml-dflash2.h"
#include "gguf_checks.h"
#include "logging.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dflash2 {

namespace {

// A block is a handful of tokens; what exceeds this is damaged, and would be paid for in vocabulary rows
constexpr int32_t max_block = 256;

[[noreturn]] void mismatch(const std::string & what) {
    throw ModelMismatch("[load] " + what);
}

// Families that share the architecture name or its loader but not the way of drafting
void refuse_relatives(const GgufFile & file) {
    if (file.has_tensor("markov_w1.weight")) {
        bad_file(file, "this is a DSpark drafter (tensor markov_w1.weight), DFlash or DFlash 2 is needed");
    }
    if (file.integer("dflash.hyper_connection_count").value_or(0) > 0) {
        bad_file(file,
                 "this is a drafter for DeepSeek V4 (dflash.hyper_connection_count), DFlash or DFlash 2 is needed");
    }
    if (file.boolean("dflash.sample_from_anchor").value_or(false)) {
        bad_file(
            file,
            "dflash.sample_from_anchor is true: drafters that predict from the anchor's own row are not supported");
    }
}

void check_selector(const GgufFile & file, DrafterInfo & info, int64_t n_vocab) {
    constexpr std::array<const char *, 3> selector = { "selector_hidden.weight", "selector_predecessor.weight",
                                                       "selector_successor.weight" };

    const bool has_selector =
        std::any_of(selector.begin(), selector.end(), [&](const char * name) { return file.has_tensor(name); });
    const bool has_settings = file.has_key("dflash.selector_top_k");
    const bool has_conv     = file.has_tensor("blk.0.attn_conv_base");
    if (!has_selector && !has_settings && !has_conv) {
        return;
    }

    const int64_t taps  = positive(file, "dflash.conv_kernel_size");
    const int64_t group = positive(file, "dflash.conv_group_size");
    const int64_t rank  = positive(file, "dflash.selector_rank");
    info.n_cand         = positive(file, "dflash.selector_top_k");

    const int64_t H = info.n_embd;
    if (H % group != 0) {
        bad_file(file, "hidden size " + std::to_string(H) + " is not a multiple of dflash.conv_group_size " +
                           std::to_string(group));
    }
    if (info.n_cand > GGML_DFLASH2_MAX_CANDIDATES) {
        bad_file(file, "dflash.selector_top_k " + std::to_string(info.n_cand) + " is more than " +
                           std::to_string(GGML_DFLASH2_MAX_CANDIDATES) + ", the most this can search for");
    }
    if (info.n_cand > n_vocab) {
        bad_file(file, "dflash.selector_top_k " + std::to_string(info.n_cand) + " exceeds the vocabulary of " +
                           std::to_string(n_vocab));
    }

    // what the best candidates are must not change under the transformation of their logits
    for (const char * key : { "dflash.logit_scale", "dflash.final_logit_softcapping" }) {
        const double value = file.number(key).value_or(1);
        if (!std::isfinite(value) || value < 0) {
            bad_file(file, std::string(key) + " is " + std::to_string(value) + ", a positive number is needed");
        }
    }

    check_shape(file, "selector_hidden.weight", { H, rank });
    check_shape(file, "selector_predecessor.weight", { rank, n_vocab });
    check_shape(file, "selector_successor.weight", { rank, n_vocab });
    for (int32_t i = 0; i < info.n_layer; ++i) {
        const std::string layer = "blk." + std::to_string(i) + ".";
        for (const char * part : { "attn", "ffn" }) {
            check_shape(file, layer + part + "_conv_base", { H, taps, 2 });
            check_shape(file, layer + part + "_conv_proj.weight", { H, 2 * taps * (H / group) });
        }
    }
}

void check_attention(const GgufFile & file, DrafterInfo & info) {
    const int64_t n_head    = positive(file, "dflash.attention.head_count");
    const int64_t n_head_kv = positive(file, "dflash.attention.head_count_kv");
    const int64_t key       = file.integer("dflash.attention.key_length").value_or(info.n_embd / n_head);
    const int64_t value     = file.integer("dflash.attention.value_length").value_or(info.n_embd / n_head);
    if (n_head % n_head_kv != 0) {
        bad_file(file, "head_count " + std::to_string(n_head) + " is not a multiple of head_count_kv " +
                           std::to_string(n_head_kv));
    }
    if (key != value) {
        bad_file(file,
                 "attention.key_length " + std::to_string(key) + " differs from value_length " + std::to_string(value));
    }
    const auto sections = file.integers("dflash.rope.dimension_sections");
    if (!sections.empty() && (sections.size() != 4 || sections[0] < 1)) {
        bad_file(file, "rope.dimension_sections must be four numbers, of which the first is at least 1");
    }
    const int64_t n_rot = file.integer("dflash.rope.dimension_count").value_or(key);
    if (n_rot < 2 || n_rot > key || n_rot % 2 != 0) {
        bad_file(file, "rope.dimension_count is " + std::to_string(n_rot) + ", an even number up to the head size " +
                           std::to_string(key) + " is needed");
    }

    info.causal = file.boolean("dflash.attention.causal").value_or(false);
    info.window =
        file.has_key("dflash.attention.sliding_window") ? positive(file, "dflash.attention.sliding_window") : 0;
    const auto pattern = file.booleans("dflash.attention.sliding_window_pattern");
    if (info.window == 0) {
        return;
    }
    if (std::none_of(pattern.begin(), pattern.end(), [](bool sliding) { return sliding; })) {
        bad_file(file, "attention.sliding_window is " + std::to_string(info.window) +
                           ", but attention.sliding_window_pattern names no layer that slides");
    }
    if ((int64_t) pattern.size() != info.n_layer) {
        bad_file(file, "attention.sliding_window_pattern has " + std::to_string(pattern.size()) + " entries for " +
                           std::to_string(info.n_layer) + " layers");
    }
    info.all_sliding = std::all_of(pattern.begin(), pattern.end(), [](bool sliding) { return sliding; });
    // llama.cpp does not bound the window forwards, so a block wider than the window would see too much
    if (info.window < info.block_size) {
        bad_file(file, "attention.sliding_window " + std::to_string(info.window) + " is smaller than the block of " +
                           std::to_string(info.block_size));
    }
}

// A drafter may have an embedding and a head of its own, the head for a part of the vocabulary: d2t names the token of
// each of its rows
void check_vocabulary(const GgufFile & file, const DrafterInfo & info, int64_t n_vocab) {
    if (file.has_tensor("token_embd.weight")) {
        check_shape(file, "token_embd.weight", { info.n_embd, n_vocab });
    }
    if (!file.has_tensor("d2t")) {
        if (file.has_tensor("output.weight")) {
            check_shape(file, "output.weight", { info.n_embd, n_vocab });
        }
        return;
    }
    if (file.has_tensor("selector_hidden.weight")) {
        bad_file(file, "a DFlash 2 drafter needs the whole vocabulary, this one has a reduced one (tensor d2t)");
    }
    const std::vector<int64_t> tokens = file.read_integers("d2t");
    check_shape(file, "output.weight", { info.n_embd, (int64_t) tokens.size() });
    for (const int64_t token : tokens) {
        if (token < 0 || token >= n_vocab) {
            bad_file(file, "tensor d2t holds token id " + std::to_string(token) + ", ids go from 0 to " +
                               std::to_string(n_vocab - 1));
        }
    }
}

// llama.cpp's kernels take numbers everywhere but in d2t, some of those of the CPU F32 alone, and end the process over
// anything else
void check_types(const GgufFile & file) {
    for (const std::string & name : file.tensor_names()) {
        if (name != "d2t" && !file.is_readable(name)) {
            bad_file(file, "tensor " + name + " holds integers, numbers are needed: convert the drafter again");
        }
        const auto ends_with = [&](const std::string & end) {
            return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
        };
        if ((ends_with("norm.weight") || ends_with("conv_base") || ends_with("attn_sinks.weight")) &&
            !file.is_f32(name)) {
            bad_file(file, "tensor " + name + " is not F32: convert the drafter again");
        }
    }
}

}  // namespace

void check_target(const GgufFile & file) {
    const std::string & arch = file.architecture();
    if (arch.empty()) {
        bad_file(file, "this GGUF is no model: key general.architecture is missing");
    }
    if (arch == "dflash") {
        bad_file(file, "this is a drafter (architecture dflash), it was given as the target: give it as `draft` and "
                       "its target as `model`");
    }
    // the first of several files may hold no tensor at all
    if (!file.has_tensor("token_embd.weight") && file.integer("split.count").value_or(1) < 2) {
        bad_file(file, "this GGUF of architecture " + arch + " is no text model: tensor token_embd.weight is missing");
    }
    check_model(file);
}

DrafterInfo check_drafter(const GgufFile & file) {
    const std::string & arch = file.architecture();
    if (arch != "dflash") {
        bad_file(file, "architecture is " + (arch.empty() ? "missing" : arch) +
                           ", a drafter has dflash: this file cannot be given as `draft`");
    }
    refuse_relatives(file);
    check_model(file);

    DrafterInfo info;
    info.n_embd        = positive(file, "dflash.embedding_length");
    info.n_layer       = positive(file, "dflash.block_count");
    info.block_size    = positive(file, "dflash.block_size");
    info.target_layers = file.has_key("dflash.target_block_count") ? positive(file, "dflash.target_block_count") : 0;
    if (info.block_size < 2 || info.block_size > max_block) {
        bad_file(file, "dflash.block_size is " + std::to_string(info.block_size) +
                           ", from 2 (an anchor and a slot) to " + std::to_string(max_block) + " is needed");
    }

    for (const int64_t tap : file.integers("dflash.target_layers")) {
        if (tap < 1) {
            bad_file(file, "dflash.target_layers holds " + std::to_string(tap) +
                               ", ids are the 0-based layer + 1: convert the drafter again");
        }
        info.taps.push_back((int32_t) std::min<int64_t>(tap, INT32_MAX));
    }
    if (info.taps.empty()) {
        bad_file(file, "key dflash.target_layers is missing: convert the drafter again");
    }

    const auto n_vocab = (int64_t) file.texts("tokenizer.ggml.tokens").size();
    const auto mask    = file.integer("tokenizer.ggml.mask_token_id");
    if (!mask || *mask < 0 || *mask >= n_vocab) {
        bad_file(file, "tokenizer.ggml.mask_token_id is " + (mask ? std::to_string(*mask) : "missing") +
                           ", an id below the vocabulary size " + std::to_string(n_vocab) + " is needed");
    }
    info.mask_token = (Token) *mask;

    check_vocabulary(file, info, n_vocab);
    check_types(file);
    check_shape(file, "fc.weight", { (int64_t) info.taps.size() * info.n_embd, info.n_embd });
    check_selector(file, info, n_vocab);
    check_attention(file, info);
    return info;
}

void check_pair(const DrafterInfo & info, const GgufFile & drafter, const GgufFile & target) {
    const std::string prefix = target.architecture() + ".";
    const int64_t     n_embd = target.required_integer(prefix + "embedding_length");
    // block_count includes layers for multi-token prediction, which are no part of the target's trunk
    const int64_t n_layer =
        target.required_integer(prefix + "block_count") - target.integer(prefix + "nextn_predict_layers").value_or(0);
    const auto        ours   = drafter.texts("tokenizer.ggml.tokens");
    const auto        theirs = target.texts("tokenizer.ggml.tokens");
    const std::string remedy = ": this drafter was made for another target";

    if (info.n_embd != n_embd) {
        mismatch("the drafter has hidden size " + std::to_string(info.n_embd) + ", the target " +
                 std::to_string(n_embd) + remedy);
    }
    if (ours.size() != theirs.size()) {
        mismatch("the drafter has a vocabulary of " + std::to_string(ours.size()) + " tokens, the target of " +
                 std::to_string(theirs.size()) + remedy);
    }
    if (info.target_layers != 0 && info.target_layers != n_layer) {
        mismatch("the drafter was made for a target of " + std::to_string(info.target_layers) +
                 " layers, this one has " + std::to_string(n_layer) + remedy);
    }
    const int32_t last = *std::max_element(info.taps.begin(), info.taps.end());
    if (last > n_layer) {
        mismatch("the drafter reads layer " + std::to_string(last - 1) + ", the target has layers 0 to " +
                 std::to_string(n_layer - 1) + remedy);
    }
    // The graphs of llama.cpp have no input of a layer after the last one
    if (last == n_layer) {
        mismatch("the drafter reads layer " + std::to_string(last - 1) +
                 ", the target's last: its output is not available, only that of layers before it");
    }

    if (target.has_key(prefix + "rope.dimension_sections") && !drafter.has_key("dflash.rope.dimension_sections")) {
        log_line(LogLevel::warning,
                 "the drafter has no dflash.rope.dimension_sections, which drafters of this M-RoPE target carry since "
                 "August 2026: text is drafted as ever, after images convert it again");
    }

    size_t n_differ = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
        n_differ += ours[i] != theirs[i] ? 1 : 0;
    }
    // A fine-tuned target may rename a few reserved tokens; another tokenizer differs nearly everywhere
    if (n_differ > ours.size() / 100) {
        mismatch(std::to_string(n_differ) + " of " + std::to_string(ours.size()) +
                 " tokens differ between the vocabularies of drafter and target" + remedy);
    }
    if (n_differ > 0) {
        log_line(LogLevel::warning, std::to_string(n_differ) +
                                        " tokens have other texts in the drafter's vocabulary than in the target's");
    }
}

int32_t choose_depth(int32_t wanted, const DrafterInfo & info) {
    const int32_t most = info.block_size - 1;
    if (wanted > most) {
        log_line(LogLevel::warning, "depth " + std::to_string(wanted) + " is more than the drafter's block of " +
                                        std::to_string(info.block_size) + " allows: " + std::to_string(most) +
                                        " is used");
    }
    return wanted == -1 ? most : std::min(wanted, most);
}

}  // namespace dflash2
