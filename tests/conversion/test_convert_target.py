"""Targets that a drafter does not fit, or that are no targets, are refused."""

from pathlib import Path
from typing import Any

import pytest
from tiny import mutate_gguf

from .conftest import Refuse


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"set_kv": {"qwen3.embedding_length": 320}}, ("hidden_size", "288", "320")),
        ({"set_kv": {"qwen3.block_count": 3}}, ("num_target_layers", "4", "3")),
        ({"set_kv": {"qwen3.nextn_predict_layers": 1}}, ("num_target_layers", "4", "3")),
        ({"drop": ["qwen3.block_count"]}, ("qwen3.block_count", "missing")),
        ({"drop": ["tokenizer.ggml.tokens"]}, ("tokenizer.ggml.tokens",)),
        ({"set_kv": {"general.architecture": "dflash"}}, ("drafter", "target")),
    ],
)
def test_other_target_is_refused(
    tmp_path: Path,
    refuse: Refuse,
    source: Path,
    dense_target: Path,
    changes: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    target = mutate_gguf(dense_target, tmp_path / "other.gguf", **changes)
    refuse(source, target, *words)


def test_target_cut_anywhere_in_its_metadata_is_refused(
    tmp_path: Path, refuse: Refuse, source: Path, dense_target: Path
) -> None:
    raw = dense_target.read_bytes()
    metadata_end = raw.index(b"token_embd.weight")
    target = tmp_path / "cut.gguf"
    for length in [*range(200), *range(200, metadata_end - 8, 97)]:
        target.write_bytes(raw[:length])
        refuse(source, target, "cut.gguf")


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (4, 1),  # version
        (4, 3 << 24),  # version, big-endian
        (16, 2**62),  # number of keys
        (24, 2**62),  # length of the first key
    ],
)
def test_target_with_absurd_numbers_is_refused(
    tmp_path: Path, refuse: Refuse, source: Path, dense_target: Path, offset: int, value: int
) -> None:
    raw = bytearray(dense_target.read_bytes())
    size = 4 if offset == 4 else 8
    raw[offset : offset + size] = value.to_bytes(size, "little")
    target = tmp_path / "absurd.gguf"
    target.write_bytes(raw)
    refuse(source, target, "absurd.gguf", str(value))
