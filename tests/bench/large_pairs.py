"""Pairs with a vocabulary of a real model: what a cycle costs does not depend on good weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tiny.drafter import convolutions, dflash2_metadata, drafter_layer, drafter_metadata
from tiny.sizes import Sizes
from tiny.target import N_EMBD, write_last_token_target
from tiny.vocabulary import BOS, MASK, add_vocabulary
from tiny.writing import Pair, add_value, normal, write_model

_BLOCK_SIZE, _TOP_K, _RANK, _N_TAP, _GROUP = 8, 16, 256, 2, 16


@dataclass(frozen=True)
class Shape(Sizes):
    """Of a Qwen3 target; its drafter has the same layers, but fewer."""

    n_layer: int
    n_vocab: int
    n_layer_drafter: int = 5
    target_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0
    head_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0


QWEN3_0_6B = Shape(1024, 3072, 16, 8, 128, n_layer=28, n_vocab=151_936)
# its target in the types that llama-quantize makes of it for Q4_0
QWEN3_4B = Shape(
    2560,
    9728,
    32,
    8,
    128,
    n_layer=36,
    n_vocab=151_936,
    target_type=gguf.GGMLQuantizationType.Q4_0,
    head_type=gguf.GGMLQuantizationType.Q6_K,
)
# of the same architecture, for runs that only try the benchmark out
SMALL = Shape(288, 96, 4, 2, 32, n_layer=6, n_vocab=4096)


def write_random_pair(folder: Path, shape: Shape = QWEN3_0_6B) -> Pair:
    """Random weights, the drafter in Q8_0: no draft is accepted. Files that are there are kept."""
    stem = f"random-{shape.n_layer}x{shape.n_embd}"
    pair = Pair(folder / f"{stem}.gguf", folder / f"{stem}-drafter.gguf")
    if not pair.target.exists():
        _write(
            pair.target,
            "qwen3",
            shape.metadata(shape.n_layer, freq_base=1e6),
            _target(shape),
            shape,
            seed=1,
            weights=_BLOCKS[shape.target_type],
            head=_BLOCKS[shape.head_type],
        )
    if not pair.drafter.exists():
        metadata = _drafter_metadata(shape) | dflash2_metadata(_N_TAP, _GROUP, _RANK, _TOP_K)
        _write(pair.drafter, "dflash", metadata, _drafter(shape), shape, seed=2)
    return pair


def write_plain_drafter(folder: Path, shape: Shape) -> Path:
    """A drafter of DFlash 1: that of `write_random_pair` without convolutions and selector."""
    path = folder / f"random-{shape.n_layer}x{shape.n_embd}-plain-drafter.gguf"
    if not path.exists():
        tensors = {
            name: size
            for name, size in _drafter(shape).items()
            if "_conv" not in name and not name.startswith("selector")
        }
        _write(path, "dflash", _drafter_metadata(shape), tensors, shape, seed=2)
    return path


def _drafter_metadata(shape: Shape) -> dict[str, Any]:
    return shape.metadata(shape.n_layer_drafter, freq_base=1e6) | {
        # a GGUF names the layer whose input is read
        ".target_layers": [1 + layer for layer in _taps(shape)],
        ".block_size": _BLOCK_SIZE,
        "tokenizer.ggml.mask_token_id": MASK,
    }


def write_constant_pair(folder: Path, n_vocab: int = QWEN3_0_6B.n_vocab) -> Pair:
    """Greedy drafts are accepted whole, sampled ones mostly: all rows of a cycle are decided.

    All embeddings are alike and the layers add nothing, so that the target's logits, and those of
    every slot of the drafter, are the same at every position.
    """
    pair = Pair(folder / f"constant-{n_vocab}.gguf", folder / f"constant-{n_vocab}-drafter.gguf")
    rng = np.random.default_rng(3)
    if not pair.target.exists():
        # logits spread by 6: the drafter's candidates have nearly all of the probability. Those of
        # the special tokens are far below
        head = normal(rng, n_vocab, N_EMBD, std=6 * N_EMBD**-0.5)
        head[BOS : MASK + 1] = 0
        write_last_token_target(
            pair.target,
            {
                "token_embd.weight": np.ones((n_vocab, N_EMBD), np.float32),
                "output_norm.weight": np.ones(N_EMBD, np.float32),
                "output.weight": head,
            },
            hybrid=False,
            context_weight=0.0,
            seed=4,
        )
    if not pair.drafter.exists():
        rank = 16
        tensors = {
            "fc.weight": np.eye(N_EMBD, dtype=np.float32),
            "enc.output_norm.weight": np.ones(N_EMBD, np.float32),
            "output_norm.weight": np.ones(N_EMBD, np.float32),
            "selector_predecessor.weight": np.zeros((n_vocab, rank), np.float32),
            "selector_successor.weight": np.zeros((n_vocab, rank), np.float32),
            "selector_hidden.weight": np.zeros((rank, N_EMBD), np.float32),
            **drafter_layer(rng, "blk.0", output_scale=0.0),
            **convolutions(rng, "blk.0", _N_TAP, _GROUP),
        }
        metadata = drafter_metadata(1, _BLOCK_SIZE, tap_layers=[0]) | dflash2_metadata(
            _N_TAP, _GROUP, rank, _TOP_K
        )
        write_model(pair.drafter, "dflash", metadata, tensors, n_vocab, "f16")
    return pair


def _taps(shape: Shape) -> list[int]:
    return [int(layer) for layer in np.linspace(1, shape.n_layer - 2, 5)]


def _target(shape: Shape) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.n_vocab, shape.n_embd)}
    for index in range(shape.n_layer):
        tensors |= _layer(shape, f"blk.{index}")
    return tensors | {"output_norm.weight": (shape.n_embd,)}


def _drafter(shape: Shape) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (shape.n_embd, len(_taps(shape)) * shape.n_embd),
        "enc.output_norm.weight": (shape.n_embd,),
        "output_norm.weight": (shape.n_embd,),
        "selector_predecessor.weight": (shape.n_vocab, _RANK),
        "selector_successor.weight": (shape.n_vocab, _RANK),
        "selector_hidden.weight": (_RANK, shape.n_embd),
    }
    for index in range(shape.n_layer_drafter):
        blk = f"blk.{index}"
        tensors |= _layer(shape, blk)
        for name in (f"{blk}.attn_conv", f"{blk}.ffn_conv"):
            tensors[f"{name}_base"] = (2, _N_TAP, shape.n_embd)
            tensors[f"{name}_proj.weight"] = (2 * _N_TAP * shape.n_embd // _GROUP, shape.n_embd)
    return tensors


def _layer(shape: Shape, blk: str) -> dict[str, tuple[int, ...]]:
    n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    return {
        f"{blk}.attn_norm.weight": (shape.n_embd,),
        f"{blk}.attn_q.weight": (n_q, shape.n_embd),
        f"{blk}.attn_k.weight": (n_kv, shape.n_embd),
        f"{blk}.attn_v.weight": (n_kv, shape.n_embd),
        f"{blk}.attn_q_norm.weight": (shape.head_dim,),
        f"{blk}.attn_k_norm.weight": (shape.head_dim,),
        f"{blk}.attn_output.weight": (shape.n_embd, n_q),
        f"{blk}.ffn_norm.weight": (shape.n_embd,),
        f"{blk}.ffn_gate.weight": (shape.n_ff, shape.n_embd),
        f"{blk}.ffn_up.weight": (shape.n_ff, shape.n_embd),
        f"{blk}.ffn_down.weight": (shape.n_embd, shape.n_ff),
    }


def _write(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    shape: Shape,
    seed: int,
    weights: "_Blocks | None" = None,
    head: "_Blocks | None" = None,
) -> None:
    """Writes tensor by tensor: no more than the largest is ever in memory."""
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, arch)
    add_vocabulary(writer, shape.n_vocab)
    for key, value in metadata.items():
        add_value(writer, arch + key if key.startswith(".") else key, value)
    weights = weights or _BLOCKS[gguf.GGMLQuantizationType.Q8_0]
    blocks = {name: head if head and name == "token_embd.weight" else weights for name in tensors}
    for name, size in tensors.items():
        if len(size) == 2:
            n_bytes = int(np.prod(size)) // blocks[name].n_values * blocks[name].dtype.itemsize
            writer.add_tensor_info(name, size, np.dtype(np.float32), n_bytes, blocks[name].type)
        else:
            n_bytes = 4 * int(np.prod(size))
            writer.add_tensor_info(name, size, np.dtype(np.float32), n_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for name, size in tensors.items():
        writer.write_tensor_data(_random(rng, name, size, blocks[name]))
    writer.close()
    unfinished.rename(path)


@dataclass(frozen=True)
class _Blocks:
    """ggml's blocks of a type: a scale, and bytes that may all be random.

    Attributes:
        n_values: Numbers of a block.
        largest: Of them, in scales.
    """

    type: gguf.GGMLQuantizationType
    n_values: int
    dtype: np.dtype[Any]
    largest: int


_BLOCKS = {
    blocks.type: blocks
    for blocks in (
        _Blocks(
            gguf.GGMLQuantizationType.Q8_0,
            32,
            np.dtype([("scale", "<f2"), ("bytes", "i1", (32,))]),
            127,
        ),
        _Blocks(
            gguf.GGMLQuantizationType.Q4_0,
            32,
            np.dtype([("scale", "<f2"), ("bytes", "i1", (16,))]),
            8,
        ),
        _Blocks(
            gguf.GGMLQuantizationType.Q6_K,
            256,
            np.dtype([("bytes", "i1", (192,)), ("scales", "i1", (16,)), ("scale", "<f2")]),
            32,
        ),
    )
}


def _random(
    rng: np.random.Generator, name: str, size: tuple[int, ...], weights: _Blocks
) -> NDArray[Any]:
    """Norms of 1, convolutions near the identity, matrices that keep the size of their input."""
    if len(size) == 1:
        return np.ones(size, np.float32)
    if len(size) == 3:
        base = normal(rng, *size, std=0.1)
        base[:, 0] += 1
        return base
    std = size[-1] ** -0.5
    if name == "token_embd.weight":
        # also the head: logits spread by 3, and what the layers add drowns the last token
        std *= 3
    elif name == "selector_predecessor.weight":
        std = 1.0
    elif "_conv_proj" in name:
        std *= 0.1
    blocks = np.ones(int(np.prod(size)) // weights.n_values, weights.dtype)
    blocks["bytes"] = rng.integers(-127, 128, blocks["bytes"].shape, np.int8)
    # evenly spread numbers: the largest is sqrt(3) deviations
    blocks["scale"] = std * 3**0.5 / weights.largest
    return blocks
