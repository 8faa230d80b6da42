"""The tensors of a drafter: their names in safetensors and in GGUF, and their shapes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .config import DrafterConfig
from .errors import ConversionError, mismatch
from .safetensors import SourceTensor

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"

_CODEBOOKS = ("predecessor_codebook", "successor_codebook")
_ALIASES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
_SINKS = re.compile(r"(layers\.\d+\.self_attn\.)(sinks|attention_sink_bias)(\.weight)?")
# RoPE caches that torch saves along (the drafter's RoPE comes from config.json), what speculators
# are trained against, and the vocabulary tables, which `vocabulary` reads.
_NOT_WEIGHTS = re.compile(r".*rotary_emb\.inv_freq|verifier_(norm|lm_head)\.weight|d2t|t2d")


class _Tensor(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


AnyTensor = TypeVar("AnyTensor", bound=_Tensor)


@dataclass(frozen=True)
class MappedTensor:
    """One tensor of the drafter.

    Attributes:
        name: Its name in GGUF.
        source_name: Its name in a released checkpoint.
        shape: Its shape there, slowest dimension first.
        keep_f32: Whether it stays F32 in every output type.
        rotated: Whether RoPE turns what it makes: rows, or columns of a norm, are dimensions.
        optional: Whether a drafter may do without.
    """

    name: str
    source_name: str
    shape: tuple[int, ...]
    keep_f32: bool = False
    rotated: bool = False
    optional: bool = False


def embedding_tensor(config: DrafterConfig) -> MappedTensor:
    """The drafter's own embedding; without one it uses its target's."""
    shape = (config.vocab_size, config.hidden_size)
    return MappedTensor("token_embd.weight", EMBEDDING, shape, optional=True)


def head_tensor(config: DrafterConfig) -> MappedTensor:
    """The drafter's own head; without one it uses its target's."""
    shape = (config.draft_vocab_size, config.hidden_size)
    # Rows of a reduced vocabulary are not the target's.
    optional = config.draft_vocab_size == config.vocab_size
    return MappedTensor("output.weight", HEAD, shape, optional=optional)


def expected_tensors(config: DrafterConfig) -> list[MappedTensor]:
    """Lists every tensor a drafter of this configuration may have, in the order of the output."""
    hidden = config.hidden_size
    tensors = [
        embedding_tensor(config),
        head_tensor(config),
        MappedTensor("fc.weight", "fc.weight", (hidden, len(config.target_layer_ids) * hidden)),
        MappedTensor("enc.output_norm.weight", "hidden_norm.weight", (hidden,), keep_f32=True),
        MappedTensor("output_norm.weight", "norm.weight", (hidden,), keep_f32=True),
    ]
    for layer in range(config.num_hidden_layers):
        tensors += _layer(config, layer)
    if (extra := config.conv_selector) is not None:
        codebook = (config.vocab_size, extra.selector_rank)
        tensors += [
            MappedTensor(f"selector_{name}.weight", f"candidate_selector.{source}", shape)
            for name, source, shape in (
                ("predecessor", "predecessor_codebook", codebook),
                ("successor", "successor_codebook", codebook),
                ("hidden", "hidden_projection.weight", (extra.selector_rank, hidden)),
            )
        ]
    return tensors


def match_tensors(
    config: DrafterConfig, tensors: Mapping[str, SourceTensor]
) -> list[tuple[MappedTensor, SourceTensor]]:
    """Pairs every expected tensor that is there with the checkpoint's.

    Args:
        config: The drafter's settings.
        tensors: The checkpoint's tensors by the names of `released_names`.

    Raises:
        ConversionError: A tensor is missing, unknown, or of another shape.
    """
    weights = {name: found for name, found in tensors.items() if not _NOT_WEIGHTS.fullmatch(name)}
    expected = {mapped.source_name: mapped for mapped in expected_tensors(config)}
    if config.conv_selector is None:
        _refuse_conv_selector(weights.keys() - expected.keys())
    return pair_tensors(expected, weights)


def pair_tensors(
    expected: Mapping[str, MappedTensor], tensors: Mapping[str, AnyTensor]
) -> list[tuple[MappedTensor, AnyTensor]]:
    """Pairs tensors of the same name, in the order of the expected ones.

    Raises:
        ConversionError: A tensor is missing, unknown, or of another shape.
    """
    missing = [
        name for name, mapped in expected.items() if not mapped.optional and name not in tensors
    ]
    if missing:
        message = f"tensors are missing: {', '.join(missing)}"
        raise ConversionError(message)
    if unknown := sorted(tensors.keys() - expected.keys()):
        message = f"tensors are not known to this converter: {', '.join(unknown)}"
        raise ConversionError(message)
    pairs = [(mapped, tensors[name]) for name, mapped in expected.items() if name in tensors]
    for mapped, tensor in pairs:
        if tensor.shape != mapped.shape:
            raise mismatch(
                list(tensor.shape),
                at=f"shape of tensor {tensor.name}",
                needed=f"{list(mapped.shape)} by the drafter's settings",
            )
    return pairs


def released_names(tensors: Mapping[str, SourceTensor]) -> dict[str, SourceTensor]:
    """Names tensors as the released checkpoints do, whatever the layout.

    Raises:
        ConversionError: Two tensors have the same name then.
    """
    by_name: dict[str, SourceTensor] = {}
    for stored_name, tensor in tensors.items():
        name = _released_name(stored_name)
        if name in by_name:
            message = f"tensor {name} is stored twice, once as {stored_name}"
            raise ConversionError(message)
        by_name[name] = tensor
    return by_name


def _layer(config: DrafterConfig, layer: int) -> list[MappedTensor]:
    blk, source = f"blk.{layer}", f"layers.{layer}"

    def matrix(name: str, source_name: str, rows: int, columns: int, **kind: bool) -> MappedTensor:
        return MappedTensor(
            f"{blk}.{name}.weight", f"{source}.{source_name}.weight", (rows, columns), **kind
        )

    def vector(name: str, source_name: str, size: int, **kind: bool) -> MappedTensor:
        return MappedTensor(
            f"{blk}.{name}.weight", f"{source}.{source_name}", (size,), keep_f32=True, **kind
        )

    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    n_q, n_kv = config.num_attention_heads * head, config.num_key_value_heads * head
    tensors = [
        vector("attn_norm", "input_layernorm.weight", hidden),
        matrix("attn_q", "self_attn.q_proj", n_q, hidden, rotated=True),
        matrix("attn_k", "self_attn.k_proj", n_kv, hidden, rotated=True),
        matrix("attn_v", "self_attn.v_proj", n_kv, hidden),
        matrix("attn_output", "self_attn.o_proj", hidden, n_q),
        vector("attn_q_norm", "self_attn.q_norm.weight", head, rotated=True),
        vector("attn_k_norm", "self_attn.k_norm.weight", head, rotated=True),
        vector(
            "attn_sinks",
            "self_attn.attention_sink_bias",
            config.num_attention_heads,
            optional=not config.attention_sinks,
        ),
        vector("ffn_norm", "post_attention_layernorm.weight", hidden),
        matrix("ffn_gate", "mlp.gate_proj", inner, hidden),
        matrix("ffn_up", "mlp.up_proj", inner, hidden),
        matrix("ffn_down", "mlp.down_proj", hidden, inner),
    ]
    if (extra := config.conv_selector) is not None:
        taps = extra.conv_kernel_size
        projected = 2 * taps * (hidden // extra.conv_group_size)
        for name, module in (("attn", "attention_conv"), ("ffn", "mlp_conv")):
            tensors += [
                # Stock reads base kernels as F32 whatever the other tensors are.
                MappedTensor(
                    f"{blk}.{name}_conv_base",
                    f"{source}.{module}.base_kernel",
                    (2, taps, hidden),
                    keep_f32=True,
                ),
                matrix(f"{name}_conv_proj", f"{module}.kernel_projection", projected, hidden),
            ]
    return tensors


def _released_name(name: str) -> str:
    name = name.removeprefix("model.")
    if name.endswith(tuple(f"{codebook}.weight" for codebook in _CODEBOOKS)):
        return name.removesuffix(".weight")
    if sinks := _SINKS.fullmatch(name):
        return f"{sinks[1]}attention_sink_bias"
    return _ALIASES.get(name, name)


def _refuse_conv_selector(unknown: set[str]) -> None:
    for name in sorted(unknown):
        if "_conv." in name or name.startswith("candidate_selector."):
            message = (
                f"there is a DFlash 2 tensor {name}, but config.json lacks conv_kernel_size, "
                "conv_group_size, selector_rank and selector_top_k"
            )
            raise ConversionError(message)
