"""What `inspect_drafter` says about a drafter and its target."""

import json
from pathlib import Path
from typing import Any

import pytest
from dflash2.convert import ConversionError, Inspection, convert_drafter, inspect_drafter
from tiny import mutate_gguf

from . import checkpoints
from .checkpoints import write_checkpoint
from .gguf_bytes import taken_apart
from .layouts import assistant_config, assistant_weights, mimo_config, mimo_weights


@pytest.fixture
def drafter(tmp_path: Path, dense_target: Path, source: Path) -> Path:
    return convert_drafter(source, dense_target, tmp_path / "draft.gguf")


def mismatches(found: Inspection) -> tuple[str, ...]:
    assert found.fit is not None
    return found.fit.mismatches


def warnings(found: Inspection) -> tuple[str, ...]:
    assert found.fit is not None
    return found.fit.warnings


def test_gguf_is_described(drafter: Path, dense_target: Path) -> None:
    found = inspect_drafter(drafter, dense_target)
    assert (found.path, found.format, found.family) == (str(drafter), "gguf", "DFlash 2")
    assert found.config.target_layer_ids == (0, 2)
    assert found.config.num_target_layers == 4
    assert found.mask_token == "<|mask|>"
    sizes = [tensor.data.size for tensor in checkpoints.weights().values()]
    assert (found.n_tensors, found.n_weights) == (len(sizes), sum(sizes))
    # norms and base kernels: 2 + 2 * (4 + 2)
    assert found.tensor_types == {"F16": len(sizes) - 14, "F32": 14}
    assert found.n_bytes == drafter.stat().st_size
    assert mismatches(found) == warnings(found) == ()


def test_checkpoint_is_described_alike(source: Path, drafter: Path, dense_target: Path) -> None:
    found, of_gguf = inspect_drafter(source, dense_target), inspect_drafter(drafter, dense_target)
    assert (found.format, found.tensor_types) == ("safetensors", {"BF16": found.n_tensors})
    assert found.config == of_gguf.config
    assert (found.n_weights, found.mask_token) == (of_gguf.n_weights, of_gguf.mask_token)
    assert found.fit == of_gguf.fit
    assert inspect_drafter(source / "model.safetensors").config == found.config


def test_without_target_nothing_is_said_of_it(source: Path, drafter: Path) -> None:
    assert inspect_drafter(drafter).fit is None
    assert inspect_drafter(drafter).mask_token == "<|mask|>"
    assert inspect_drafter(source).mask_token is None


def test_memory_of_the_demo_drafter(demo_drafter: Path) -> None:
    memory = inspect_drafter(demo_drafter).memory
    # 4 layers x K and V x 3 heads of 64 x 2 bytes
    assert memory.cache_per_1k_tokens == 1000 * 4 * 2 * 3 * 64 * 2
    assert memory.cache_of_windows == 0
    # 5 taps of 576 x 4 bytes
    assert memory.features_per_token == 5 * 576 * 4
    assert 29_160_000 * 2 < memory.weights < demo_drafter.stat().st_size


def test_memory_of_sliding_layers_does_not_grow(tmp_path: Path, dense_target: Path) -> None:
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    settings = checkpoints.config() | sliding
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    memory = inspect_drafter(source, dense_target).memory
    layer_row = 2 * 2 * 32 * 2
    assert memory.cache_of_windows == 64 * layer_row
    assert memory.cache_per_1k_tokens == 1000 * layer_row


def test_layout_is_named(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    found = inspect_drafter(source)
    assert found.family == "DFlash (MiMo)"
    assert found.as_dict()["config"]["layout"] == "MiMo"  # type: ignore[index]


def test_assistant_needs_a_target(tmp_path: Path, dense_target: Path) -> None:
    source = write_checkpoint(tmp_path / "d", assistant_config(), assistant_weights())
    with pytest.raises(ConversionError, match=r"a Muse Glimmer assistant, is missing, .* a target"):
        inspect_drafter(source)
    assert inspect_drafter(source, dense_target).config.vocab_size == 320


def test_everything_has_a_place_in_json(drafter: Path, source: Path, dense_target: Path) -> None:
    for path in (drafter, source):
        document = json.loads(json.dumps(inspect_drafter(path, dense_target).as_dict()))
        assert document["fit"]["fits"] is True
        assert document["config"]["conv_selector"]["selector_top_k"] == 16
        assert document["config"]["target_layer_ids"] == [0, 2]


@pytest.fixture
def other_target(tmp_path: Path, dense_target: Path) -> Path:
    """Of another hidden size, with fewer layers and other tokens."""
    parts = taken_apart(dense_target)
    tokens = [f"{token}_" for token in parts.keys["tokenizer.ggml.tokens"].value[:300]]
    changes: Any = {
        "qwen3.embedding_length": 320,
        "qwen3.block_count": 3,
        "tokenizer.ggml.tokens": tokens,
    }
    return mutate_gguf(dense_target, tmp_path / "other.gguf", set_kv=changes)


def test_every_mismatch_is_listed(drafter: Path, source: Path, other_target: Path) -> None:
    sizes = [
        ("hidden_size", "dflash.embedding_length", "288", "320"),
        ("vocab_size", "tokenizer.ggml.tokens", "320", "300"),
        ("num_target_layers", "dflash.target_block_count", "4", "3"),
        ("target_layer_ids", "dflash.target_layers", "2", "at most 1"),
    ]
    of_checkpoint = mismatches(inspect_drafter(source, other_target))
    of_gguf = mismatches(inspect_drafter(drafter, other_target))
    assert len(of_checkpoint) == len(sizes)
    for (key, gguf_key, found, needed), text, gguf_text in zip(
        sizes, of_checkpoint, of_gguf, strict=False
    ):
        assert f"config.json: {key}" in text
        assert f"draft.gguf: {gguf_key}" in gguf_text
        for words in (text, gguf_text):
            assert f"is {found}, needed: {needed}" in words
    tokens, mask = of_gguf[len(sizes) :]
    assert "300 of 320 tokens differ from those of other.gguf" in tokens
    assert mask == "the mask token 258 is '<|mask|>' in the drafter and '<|mask|>_' in other.gguf"


def test_few_renamed_tokens_are_a_warning(
    tmp_path: Path, drafter: Path, dense_target: Path
) -> None:
    tokens = taken_apart(dense_target).keys["tokenizer.ggml.tokens"].value
    target = tmp_path / "tuned.gguf"
    changes = {"tokenizer.ggml.tokens": [*tokens[:-1], "<|tool|>"]}
    found = inspect_drafter(drafter, mutate_gguf(dense_target, target, set_kv=changes))
    assert mismatches(found) == ()
    (warning,) = warnings(found)
    assert "1 of 320 tokens differ" in warning
    assert f"319: {tokens[-1]!r} and '<|tool|>'" in warning


def test_missing_sections_of_an_mrope_target_are_a_warning(
    drafter: Path, hybrid_target: Path
) -> None:
    found = inspect_drafter(drafter, hybrid_target)
    assert mismatches(found) == ()
    (warning,) = warnings(found)
    assert "dflash.rope.dimension_sections" in warning


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"set_kv": {"general.architecture": "llama"}}, ("general.architecture", "'llama'")),
        ({"set_kv": {"dflash.sample_from_anchor": True}}, ("dflash.sample_from_anchor", "True")),
        ({"set_kv": {"dflash.n_experts": 4}}, ("not known", "dflash.n_experts")),
        ({"set_kv": {"dflash.attention.value_length": 64}}, ("value_length", "64", "key_length")),
        ({"set_kv": {"dflash.conv_group_size": 10}}, ("dflash.conv_group_size", "10", "288")),
        ({"set_kv": {"tokenizer.ggml.mask_token_id": 320}}, ("mask_token_id", "320")),
        ({"set_kv": {"dflash.target_layers": [0, 1]}}, ("dflash.target_layers", "-1")),
        ({"rename": {"fc.weight": "markov_w1.weight"}}, ("DSpark", "markov_w1.weight")),
    ],
)
def test_other_gguf_files_are_refused(
    tmp_path: Path, drafter: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    bad = mutate_gguf(drafter, tmp_path / "bad.gguf", **changes)
    with pytest.raises(ConversionError) as error:
        inspect_drafter(bad)
    for word in ("bad.gguf", *words):
        assert word in str(error.value)


def test_missing_files_are_not_found(tmp_path: Path, drafter: Path) -> None:
    for path in ("nothere.gguf", "nothere"):
        with pytest.raises(FileNotFoundError, match=path):
            inspect_drafter(tmp_path / path)
    with pytest.raises(FileNotFoundError, match=r"no-target\.gguf"):
        inspect_drafter(drafter, tmp_path / "no-target.gguf")
