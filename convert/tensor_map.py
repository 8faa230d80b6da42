"""The tensors of a drafter: their names in safetensors and in GGUF, and their shapes."""

from collections.abc import Mapping
from dataclasses import dataclass

from .config import DrafterConfig
from .errors import ConversionError, mismatch
from .safetensors import SourceTensor

_CODEBOOKS = ("predecessor_codebook", "successor_codebook")


@dataclass(frozen=True)
class MappedTensor:
    """One tensor of the drafter.

    Attributes:
        name: Its name in GGUF.
        source_name: Its name in a released checkpoint.
        shape: Its shape there, slowest dimension first.
        keep_f32: Whether it stays F32 in every output type.
    """

    name: str
    source_name: str
    shape: tuple[int, ...]
    keep_f32: bool = False


def expected_tensors(config: DrafterConfig) -> list[MappedTensor]:
    """Lists every tensor a drafter of this configuration has, in the order of the output."""
    hidden = config.hidden_size
    tensors = [
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
    """Pairs every expected tensor with the checkpoint's.

    Raises:
        ConversionError: A tensor is missing, unknown, doubled, or of another shape.
    """
    by_name: dict[str, SourceTensor] = {}
    for stored_name, tensor in tensors.items():
        name = _released_name(stored_name)
        if name in by_name:
            message = f"tensor {name} is stored twice, once as {stored_name}"
            raise ConversionError(message)
        by_name[name] = tensor
    expected = expected_tensors(config)
    missing = [mapped.source_name for mapped in expected if mapped.source_name not in by_name]
    if missing:
        message = f"tensors are missing: {', '.join(missing)}"
        raise ConversionError(message)
    _refuse_unknown(config, by_name.keys() - {mapped.source_name for mapped in expected})
    for mapped in expected:
        found = by_name[mapped.source_name].shape
        if found != mapped.shape:
            raise mismatch(
                list(found),
                at=f"shape of tensor {mapped.source_name}",
                needed=f"{list(mapped.shape)} by config.json",
            )
    return [(mapped, by_name[mapped.source_name]) for mapped in expected]


def _layer(config: DrafterConfig, layer: int) -> list[MappedTensor]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    n_q, n_kv = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes: dict[str, tuple[str, tuple[int, ...], bool]] = {
        "attn_norm.weight": ("input_layernorm.weight", (hidden,), True),
        "attn_q.weight": ("self_attn.q_proj.weight", (n_q, hidden), False),
        "attn_k.weight": ("self_attn.k_proj.weight", (n_kv, hidden), False),
        "attn_v.weight": ("self_attn.v_proj.weight", (n_kv, hidden), False),
        "attn_output.weight": ("self_attn.o_proj.weight", (hidden, n_q), False),
        "attn_q_norm.weight": ("self_attn.q_norm.weight", (head,), True),
        "attn_k_norm.weight": ("self_attn.k_norm.weight", (head,), True),
        "ffn_norm.weight": ("post_attention_layernorm.weight", (hidden,), True),
        "ffn_gate.weight": ("mlp.gate_proj.weight", (inner, hidden), False),
        "ffn_up.weight": ("mlp.up_proj.weight", (inner, hidden), False),
        "ffn_down.weight": ("mlp.down_proj.weight", (hidden, inner), False),
    }
    if (extra := config.conv_selector) is not None:
        taps = extra.conv_kernel_size
        base = (2, taps, hidden)
        projection = (2 * taps * (hidden // extra.conv_group_size), hidden)
        shapes |= {
            # Stock reads base kernels as F32 whatever the other tensors are.
            "attn_conv_base": ("attention_conv.base_kernel", base, True),
            "attn_conv_proj.weight": ("attention_conv.kernel_projection.weight", projection, False),
            "ffn_conv_base": ("mlp_conv.base_kernel", base, True),
            "ffn_conv_proj.weight": ("mlp_conv.kernel_projection.weight", projection, False),
        }
    return [
        MappedTensor(f"blk.{layer}.{name}", f"layers.{layer}.{source}", shape, keep_f32)
        for name, (source, shape, keep_f32) in shapes.items()
    ]


def _released_name(name: str) -> str:
    name = name.removeprefix("model.")
    if name.endswith(tuple(f"{codebook}.weight" for codebook in _CODEBOOKS)):
        return name.removesuffix(".weight")
    return name


def _refuse_unknown(config: DrafterConfig, names: set[str]) -> None:
    # Caches that torch saves along; the drafter's RoPE comes from config.json.
    unknown = sorted(name for name in names if not name.endswith("rotary_emb.inv_freq"))
    if config.conv_selector is None:
        for name in unknown:
            if "_conv." in name or name.startswith("candidate_selector."):
                message = (
                    f"there is a DFlash 2 tensor {name}, but config.json lacks conv_kernel_size, "
                    "conv_group_size, selector_rank and selector_top_k"
                )
                raise ConversionError(message)
    if unknown:
        message = f"tensors are not known to this converter: {', '.join(unknown)}"
        raise ConversionError(message)
