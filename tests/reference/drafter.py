"""The drafter: features of the target in, a lattice of candidates out."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference.files import Array, read_gguf, read_safetensors
from reference.layers import attention, rms_norm, rope, swiglu, visible
from reference.selector import (
    Ids,
    conv,
    conv_coefficients,
    greedy_walk,
    output_transform,
    scores,
    top_k,
)

# GGUF name without ".weight" -> name in a checkpoint; layer names are written without their prefix
MODEL_NAMES = {
    "fc": "fc.weight",
    "enc.output_norm": "hidden_norm.weight",
    "output_norm": "norm.weight",
    "selector_predecessor": "candidate_selector.predecessor_codebook",
    "selector_successor": "candidate_selector.successor_codebook",
    "selector_hidden": "candidate_selector.hidden_projection.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "attn_q": "self_attn.q_proj.weight",
    "attn_k": "self_attn.k_proj.weight",
    "attn_v": "self_attn.v_proj.weight",
    "attn_output": "self_attn.o_proj.weight",
    "attn_q_norm": "self_attn.q_norm.weight",
    "attn_k_norm": "self_attn.k_norm.weight",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj": "attention_conv.kernel_projection.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "ffn_gate": "mlp.gate_proj.weight",
    "ffn_up": "mlp.up_proj.weight",
    "ffn_down": "mlp.down_proj.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj": "mlp_conv.kernel_projection.weight",
}


@dataclass(frozen=True)
class DrafterConfig:
    """What the tensors of a drafter do not say themselves."""

    head_dim: int
    eps: float
    rope_base: float
    block_size: int
    mask_token: int
    tap_layers: tuple[int, ...]  # 0-based target layers, whose output is read
    windows: tuple[int | None, ...]  # of each layer; None: full attention
    causal: tuple[bool, ...]  # of each layer
    top_k: int = 1
    logit_scale: float = 1.0
    softcap: float = 0.0
    embedding_scale: float = 1.0


@dataclass(frozen=True)
class Draft:
    """One drafted block, with what was computed on the way."""

    context: Array  # [context, n_embd] fused features
    residuals: list[Array]  # per layer [rows, n_embd]
    hidden: Array  # [rows, n_embd] after the final norm
    logits: Array  # [slots, vocabulary] of the head, before the output transform
    ids: Ids  # [slots, K]
    unary: Array  # [slots, K]
    scores: Array  # [slots, K predecessors, K candidates]

    @property
    def path(self) -> list[int]:
        return greedy_walk(self.ids, self.scores)


class Drafter:
    """A DFlash 2 drafter; without convolutions and selector a DFlash 1 drafter.

    The lattice of the latter has one candidate a slot and scores of zero. `embedding` and `head`
    are the target's, [vocabulary, n_embd].
    """

    def __init__(
        self, config: DrafterConfig, tensors: Mapping[str, Array], embedding: Array, head: Array
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.head = head
        self.model = {name: value for name, value in tensors.items() if not name.startswith("blk.")}
        self.layers: list[dict[str, Array]] = [{} for _ in config.windows]
        for name, value in tensors.items():
            if name.startswith("blk."):
                _, index, rest = name.split(".", 2)
                self.layers[int(index)][rest] = value

    @classmethod
    def from_checkpoint(cls, folder: Path, embedding: Array, head: Array) -> "Drafter":
        top = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {**top, **top["dflash_config"]}
        n_layer = config["num_hidden_layers"]
        sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
        causal = config.get("is_causal")
        file = read_safetensors(folder / "model.safetensors")
        tensors = {name: file[stored] for name, stored in MODEL_NAMES.items() if stored in file}
        for index in range(n_layer):
            for name, stored in LAYER_NAMES.items():
                if f"layers.{index}.{stored}" in file:
                    tensors[f"blk.{index}.{name}"] = file[f"layers.{index}.{stored}"]
        return cls(
            DrafterConfig(
                head_dim=config["head_dim"],
                eps=config["rms_norm_eps"],
                rope_base=config["rope_theta"],
                block_size=config["block_size"],
                mask_token=config["mask_token_id"],
                tap_layers=tuple(config["target_layer_ids"]),
                windows=tuple(config["sliding_window"] if slides else None for slides in sliding),
                causal=tuple(slides if causal is None else causal for slides in sliding),
                top_k=config.get("selector_top_k", 1),
                logit_scale=config.get("output_multiplier", 1.0),
                softcap=config.get("final_logit_softcapping", 0.0),
                embedding_scale=config.get("input_embedding_scale", 1.0),
            ),
            tensors,
            embedding,
            head,
        )

    @classmethod
    def from_gguf(cls, path: Path, embedding: Array, head: Array) -> "Drafter":
        config, file = read_gguf(path)
        n_layer = config["block_count"]
        window = config.get("attention.sliding_window")
        sliding = config.get("attention.sliding_window_pattern", [False] * n_layer)
        return cls(
            DrafterConfig(
                head_dim=config["attention.key_length"],
                eps=config["attention.layer_norm_rms_epsilon"],
                rope_base=config["rope.freq_base"],
                block_size=config["block_size"],
                mask_token=config["tokenizer.ggml.mask_token_id"],
                tap_layers=tuple(layer - 1 for layer in config["target_layers"]),
                windows=tuple(window if slides else None for slides in sliding),
                causal=tuple(
                    config.get("attention.causal", False)
                    or (slides and config.get("attention.sliding_window_causal", False))
                    for slides in sliding
                ),
                top_k=config.get("selector_top_k", 1),
                logit_scale=config.get("logit_scale", 1.0),
                softcap=config.get("final_logit_softcapping", 0.0),
                embedding_scale=config.get("embedding_scale", 1.0),
            ),
            {name.removesuffix(".weight"): value for name, value in file.items()},
            embedding,
            head,
        )

    def fuse(self, features: Array) -> Array:
        """[rows, taps * n_embd] -> [rows, n_embd]."""
        return rms_norm(
            features @ self.model["fc"].T, self.model["enc.output_norm"], self.config.eps
        )

    def draft(
        self, features: Array, anchor: int, block_size: int | None = None, first_position: int = 0
    ) -> Draft:
        """Drafts the block after the target features [context, taps * n_embd].

        Args:
            anchor: the token that follows the context.
            block_size: rows, anchor included; the trained number when absent.
            first_position: of the context's first row.
        """
        config = self.config
        rows = block_size or config.block_size
        context = self.fuse(features.astype(np.float64))
        positions = first_position + np.arange(len(context) + rows)
        tokens = [anchor] + [config.mask_token] * (rows - 1)
        x = self.embedding[tokens] * config.embedding_scale
        residuals = []
        for index in range(len(self.layers)):
            x = self._layer(index, x, context, positions)
            residuals.append(x)
        hidden = rms_norm(x, self.model["output_norm"], config.eps)
        slots = hidden[1:]
        logits = slots @ self.head.T
        ids = top_k(logits, config.top_k)
        unary, score = self.score(slots, logits, ids, anchor)
        return Draft(context, residuals, hidden, logits, ids, unary, score)

    def score(self, slots: Array, logits: Array, ids: Ids, anchor: int) -> tuple[Array, Array]:
        """Unary [slots, K] and pair scores [slots, K, K] of the given candidates."""
        unary = output_transform(
            np.take_along_axis(logits, ids, axis=1), self.config.logit_scale, self.config.softcap
        )
        if "selector_hidden" not in self.model:
            return unary, np.zeros((len(ids), 1, 1))
        pair = scores(
            ids,
            unary,
            anchor,
            slots @ self.model["selector_hidden"].T,
            self.model["selector_predecessor"],
            self.model["selector_successor"],
        )
        return unary, pair

    def _layer(self, index: int, x: Array, context: Array, positions: Array) -> Array:
        layer, config = self.layers[index], self.config
        n_context = len(context)

        a = rms_norm(x, layer["attn_norm"], config.eps)
        enter, leave = self._convolutions(layer, "attn", a)
        a = enter(a)
        q = self._heads(a @ layer["attn_q"].T, layer["attn_q_norm"], positions[n_context:])
        sources = np.concatenate([context, a])
        k = self._heads(sources @ layer["attn_k"].T, layer["attn_k_norm"], positions)
        v = (sources @ layer["attn_v"].T).reshape(len(sources), -1, config.head_dim)
        mask = visible(
            positions[n_context:], positions, config.windows[index], causal=config.causal[index]
        )
        o = attention(q, k, v, mask).reshape(len(x), -1) @ layer["attn_output"].T
        x = x + leave(o)

        m = rms_norm(x, layer["ffn_norm"], config.eps)
        enter, leave = self._convolutions(layer, "ffn", m)
        y = swiglu(enter(m), layer["ffn_gate"], layer["ffn_up"], layer["ffn_down"])
        return x + leave(y)

    def _heads(self, x: Array, norm: Array, positions: Array) -> Array:
        heads = rms_norm(x.reshape(len(x), -1, self.config.head_dim), norm, self.config.eps)
        return rope(
            heads, positions, self.config.rope_base, self.config.head_dim, interleaved=False
        )

    @staticmethod
    def _convolutions(
        layer: Mapping[str, Array], sublayer: str, x: Array
    ) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """The convolutions before and after a sublayer of normalised input x; none in DFlash 1."""
        if f"{sublayer}_conv_proj" not in layer:
            return (lambda rows: rows), (lambda rows: rows)
        base = layer[f"{sublayer}_conv_base"]
        delta = conv_coefficients(x, layer[f"{sublayer}_conv_proj"], base.shape[1])
        return (
            lambda rows: conv(rows, base[0], delta[:, 0]),
            lambda rows: conv(rows, base[1], delta[:, 1]),
        )
