"""A file or pair that cannot work is refused at load, in words, and never ends the process."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from dflash2 import Dflash2Engine, ModelLoadError, ModelMismatchError, SamplingParams
from tiny import Pair, mutate_gguf

Make = Callable[..., Path]


def open_engine(target: Path, drafter: Path | None = None, **options: Any) -> Dflash2Engine:
    return Dflash2Engine(target, drafter, device="cpu", n_threads=1, n_ctx=256, **options)


@pytest.fixture
def scratch_file(tmp_path: Path) -> Path:
    return tmp_path / "changed.gguf"


def test_missing_file(tmp_path: Path, dense_pair: Pair) -> None:
    missing = tmp_path / "none.gguf"
    with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
        open_engine(missing)
    with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
        open_engine(dense_pair.target, missing)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with the letters GGUF"),
        (b"hello, world", "does not begin with the letters GGUF"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00{" + b" " * 80, "safetensors"),
        (b"GGUF", "damaged or cut short"),
        (b"GGUF\xff\xff\xff\xff" + b"\xff" * 64, "damaged or cut short"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, "damaged or cut short"),
    ],
    ids=["empty", "text", "safetensors", "magic only", "version", "counts"],
)
def test_file_that_is_no_gguf(
    scratch_file: Path, dense_pair: Pair, content: bytes, message: str
) -> None:
    scratch_file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        open_engine(scratch_file)
    with pytest.raises(ModelLoadError, match=message):
        open_engine(dense_pair.target, scratch_file)


def test_gguf_that_is_no_model(scratch_file: Path) -> None:
    writer = gguf.GGUFWriter(scratch_file, "adapter")
    writer.add_tensor("something", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"no text model.*token_embd"):
        open_engine(scratch_file)


def test_target_and_drafter_exchanged(dense_pair: Pair) -> None:
    with pytest.raises(ModelLoadError, match="given as the target"):
        open_engine(dense_pair.drafter)
    with pytest.raises(ModelLoadError, match="architecture is qwen3, a drafter has dflash"):
        open_engine(dense_pair.target, dense_pair.target)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_file_cut_short(scratch_file: Path, dense_pair: Pair, part: float, role: str) -> None:
    whole = getattr(dense_pair, role).read_bytes()
    scratch_file.write_bytes(whole[: int(len(whole) * part)])
    pair = dense_pair._replace(**{role: scratch_file})
    with pytest.raises(ModelLoadError, match=r"changed.gguf.*(cut short|file bounds|corrupted)"):
        open_engine(*pair)


def set_kv(key: str, value: Any) -> dict[str, Any]:
    return {"set_kv": {key: value}}


def drop(*names: str) -> dict[str, Any]:
    return {"drop": names}


# change of the drafter, and what the message must name
BROKEN_DRAFTERS: list[tuple[dict[str, Any], str]] = [
    (drop("fc.weight"), "fc.weight is missing"),
    (drop("enc.output_norm.weight"), "enc.output_norm.weight"),
    (drop("output_norm.weight"), "output_norm.weight"),
    (drop("selector_hidden.weight"), "selector_hidden.weight is missing"),
    (drop("selector_predecessor.weight"), "selector_predecessor.weight is missing"),
    (drop("selector_successor.weight"), "selector_successor.weight is missing"),
    (drop("blk.1.attn_conv_base"), "blk.1.attn_conv_base is missing"),
    (drop("blk.1.ffn_conv_base"), "blk.1.ffn_conv_base is missing"),
    (drop("blk.0.attn_conv_proj.weight"), "blk.0.attn_conv_proj.weight is missing"),
    (drop("blk.0.ffn_conv_proj.weight"), "blk.0.ffn_conv_proj.weight is missing"),
    (drop("blk.0.attn_q.weight"), "blk.0.attn_q.weight"),
    (drop("blk.1.attn_k_norm.weight"), "blk.1.attn_k_norm.weight"),
    (drop("blk.0.ffn_down.weight"), "blk.0.ffn_down.weight"),
    ({"resize": {"fc.weight": (288, 576)}}, r"fc.weight has shape \[576, 288\].*\[864, 288\]"),
    ({"resize": {"selector_hidden.weight": (7, 288)}}, "selector_hidden.weight has shape"),
    ({"resize": {"blk.0.attn_conv_base": (2, 3, 288)}}, "blk.0.attn_conv_base has shape"),
    ({"resize": {"blk.0.ffn_conv_proj.weight": (71, 288)}}, "blk.0.ffn_conv_proj.weight has shape"),
    ({"resize": {"blk.0.attn_q.weight": (100, 288)}}, "blk.0.attn_q.weight"),
    ({"rename": {"selector_hidden.weight": "selector_hiden.weight"}}, "selector_hidden.weight"),
    (drop("dflash.target_layers"), "dflash.target_layers is missing"),
    (drop("dflash.block_size"), "dflash.block_size is missing"),
    (drop("dflash.embedding_length"), "dflash.embedding_length is missing"),
    (drop("dflash.block_count"), "dflash.block_count is missing"),
    (drop("dflash.conv_kernel_size"), "dflash.conv_kernel_size is missing"),
    (drop("dflash.conv_group_size"), "dflash.conv_group_size is missing"),
    (drop("dflash.selector_rank"), "dflash.selector_rank is missing"),
    (drop("dflash.selector_top_k"), "dflash.selector_top_k is missing"),
    (drop("dflash.attention.head_count"), "dflash.attention.head_count is missing"),
    (drop("tokenizer.ggml.mask_token_id"), "mask_token_id is missing"),
    (drop("tokenizer.ggml.tokens"), "no tokenizer"),
    (set_kv("dflash.block_size", 0), "dflash.block_size is 0"),
    (set_kv("dflash.block_size", 1), "dflash.block_size is 1"),
    (set_kv("dflash.conv_group_size", 0), "dflash.conv_group_size is 0"),
    (set_kv("dflash.conv_group_size", 7), "288 is not a multiple of dflash.conv_group_size 7"),
    (set_kv("dflash.selector_top_k", 65), "dflash.selector_top_k 65 is more than 64"),
    (set_kv("dflash.logit_scale", -1.0), "dflash.logit_scale is -1"),
    (set_kv("dflash.final_logit_softcapping", float("nan")), "softcapping is nan"),
    *(
        ({"set_type": {name: gguf.GGMLQuantizationType.I32}}, f"{name} holds integers")
        for name in (
            "selector_predecessor.weight",
            "selector_hidden.weight",
            "blk.0.ffn_conv_proj.weight",
            "blk.1.attn_q.weight",
        )
    ),
    (set_kv("dflash.block_count", 3), "blk.2.attn_conv_base is missing"),
    (set_kv("dflash.block_count", 4_000_000_000), "dflash.block_count"),
    (set_kv("dflash.attention.head_count", 3), "not a multiple of head_count_kv"),
    (set_kv("dflash.attention.value_length", 16), "key_length 32 differs from value_length 16"),
    (set_kv("dflash.rope.dimension_count", 33), "rope.dimension_count is 33"),
    (set_kv("dflash.rope.dimension_count", 64), "rope.dimension_count is 64"),
    (set_kv("dflash.target_layers", [0, 1, 2]), "target_layers holds 0"),
    (set_kv("dflash.target_layers", [1, 2]), "fc.weight has shape"),
    (set_kv("tokenizer.ggml.mask_token_id", 320), "mask_token_id is 320"),
    (set_kv("dflash.sample_from_anchor", True), "sample_from_anchor"),
    (set_kv("dflash.attention.causal", "yes"), "attention.causal is of type str"),
    (set_kv("dflash.hidden_activation", "relu6"), "relu6"),
    (set_kv("dflash.block_size", 100_000), "dflash.block_size is 100000"),
    (set_kv("dflash.hyper_connection_count", 4), "hyper_connection_count"),
    (set_kv("dflash.rope.dimension_sections", [0, 0, 0, 5]), "rope.dimension_sections"),
    (set_kv("dflash.attention.layer_norm_rms_epsilon", -1.0), "epsilon is -1"),
    (set_kv("tokenizer.ggml.model", "none"), "tokenizer.ggml.model is none"),
    ({"rename": {"blk.0.ffn_norm.weight": "d2t"}}, "reduced one .tensor d2t"),
]

# change of the target, and what the message must name
BROKEN_TARGETS: list[tuple[dict[str, Any], str]] = [
    (drop("blk.3.attn_q.weight"), "blk.3.attn_q.weight"),
    (drop("qwen3.block_count"), "qwen3.block_count is missing"),
    (set_kv("qwen3.block_count", 0), "qwen3.block_count is 0"),
    (set_kv("qwen3.block_count", 513), "qwen3.block_count is 513"),
    (set_kv("qwen3.nextn_predict_layers", 5), "qwen3.nextn_predict_layers is 5"),
    (set_kv("qwen3.expert_count", 5000), "qwen3.expert_count is 5000"),
    (set_kv("qwen3.expert_used_count", 2), "qwen3.expert_used_count is 2"),
    (set_kv("qwen3.rope.scaling.type", "magic"), "rope.scaling.type is 'magic'"),
    (set_kv("qwen3.rope.dimension_count", 31), "rope.dimension_count is 31"),
    (set_kv("qwen3.attention.layer_norm_rms_epsilon", float("nan")), "epsilon"),
    (set_kv("qwen3.attention.causal", False), "from left to right"),
    (set_kv("tokenizer.ggml.tokens", ["a"] * 320), "holds 'a' twice"),
    (set_kv("tokenizer.ggml.model", "no_vocab"), "tokenizer.ggml.model is no_vocab"),
    (set_kv("tokenizer.ggml.model", "telepathy"), "telepathy"),
]


@pytest.mark.parametrize(
    ("change", "message"), BROKEN_TARGETS, ids=[str(change)[:80] for change, _ in BROKEN_TARGETS]
)
def test_broken_target(
    scratch_file: Path, dense_pair: Pair, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        open_engine(mutate_gguf(dense_pair.target, scratch_file, **change))


@pytest.mark.parametrize("dflash2", [True, False])
def test_target_without_used_tokens(
    scratch_file: Path, dense_target: Path, make_drafter: Make, dflash2: bool
) -> None:
    unused = set_kv("tokenizer.ggml.token_type", [int(gguf.TokenType.UNUSED)] * 320)
    target = mutate_gguf(dense_target, scratch_file, **unused)
    with pytest.raises(ModelMismatchError, match="only 0 tokens of the target are not marked"):
        open_engine(target, make_drafter(dflash2=dflash2))


@pytest.mark.parametrize(
    ("change", "message"), BROKEN_DRAFTERS, ids=[str(change) for change, _ in BROKEN_DRAFTERS]
)
def test_broken_drafter(
    scratch_file: Path, dense_pair: Pair, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        open_engine(dense_pair.target, mutate_gguf(dense_pair.drafter, scratch_file, **change))


@pytest.mark.parametrize(
    ("tokens", "rows", "message"),
    [
        (np.arange(300, 316), 16, None),
        (np.arange(310, 326), 16, "d2t holds token id 320"),
        (np.arange(-1, 15), 16, "d2t holds token id -1"),
        (np.arange(16), 15, "output.weight has shape"),
        (np.arange(16, dtype=np.float32), 16, "d2t is not I64"),
    ],
    ids=["good", "beyond", "below", "rows", "type"],
)
def test_reduced_vocabulary(
    scratch_file: Path,
    dense_target: Path,
    make_drafter: Make,
    tokens: np.ndarray,
    rows: int,
    message: str | None,
) -> None:
    reader = gguf.GGUFReader(make_drafter(dflash2=False))
    writer = gguf.GGUFWriter(scratch_file, "dflash")
    for field in list(reader.fields.values())[4:]:
        item = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), field.types[0], item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    kind = np.int64 if tokens.dtype != np.float32 else np.float32
    writer.add_tensor("d2t", tokens.astype(kind))
    writer.add_tensor("output.weight", np.ones((rows, 288), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if message is None:
        open_engine(dense_target, scratch_file).close()
    else:
        with pytest.raises(ModelLoadError, match=message):
            open_engine(dense_target, scratch_file)


def test_window_that_no_layer_has(dense_target: Path, make_drafter: Make) -> None:
    with pytest.raises(ModelLoadError, match="names no layer that slides"):
        open_engine(dense_target, make_drafter(window=16, sliding=(False, False)))


def test_kernel_that_is_not_f32(scratch_file: Path, dense_pair: Pair) -> None:
    reader = gguf.GGUFReader(dense_pair.drafter)
    kernel = next(t for t in reader.tensors if t.name == "blk.0.attn_conv_base")
    data = bytearray(dense_pair.drafter.read_bytes())
    # the type stands after the name, the number of dimensions and their sizes
    at = (
        data.index(b"blk.0.attn_conv_base")
        + len("blk.0.attn_conv_base")
        + 4
        + 8 * len(kernel.shape)
    )
    assert int.from_bytes(data[at : at + 4], "little") == gguf.GGMLQuantizationType.F32
    data[at : at + 4] = gguf.GGMLQuantizationType.F16.to_bytes(4, "little")
    scratch_file.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"attn_conv_base is not F32|damaged"):
        open_engine(dense_pair.target, scratch_file)


def test_window_narrower_than_the_block(dense_target: Path, make_drafter: Make) -> None:
    with pytest.raises(ModelLoadError, match="sliding_window 7 is smaller than the block of 8"):
        open_engine(dense_target, make_drafter(window=7))
    open_engine(dense_target, make_drafter(window=8)).close()


def test_tap_at_and_beyond_the_last_layer(dense_target: Path, make_drafter: Make) -> None:
    with pytest.raises(ModelMismatchError, match="reads layer 3, the target's last"):
        open_engine(dense_target, make_drafter(tap_layers=(0, 1, 3)))
    with pytest.raises(ModelMismatchError, match="reads layer 40, the target has layers 0 to 3"):
        open_engine(dense_target, make_drafter(tap_layers=(0, 1, 40)))


def test_drafter_of_a_target_with_more_layers(scratch_file: Path, dense_pair: Pair) -> None:
    other = mutate_gguf(dense_pair.drafter, scratch_file, set_kv={"dflash.target_block_count": 36})
    with pytest.raises(ModelMismatchError, match="target of 36 layers, this one has 4"):
        open_engine(dense_pair.target, other)
    same = mutate_gguf(dense_pair.drafter, scratch_file, set_kv={"dflash.target_block_count": 4})
    open_engine(dense_pair.target, same).close()


def test_drafter_of_another_hidden_size_and_vocabulary(
    demo_target: Path, demo_drafter: Path, dense_pair: Pair
) -> None:
    with pytest.raises(ModelMismatchError, match="hidden size 576, the target 288"):
        open_engine(dense_pair.target, demo_drafter)
    with pytest.raises(ModelMismatchError, match="hidden size 288, the target 576"):
        open_engine(demo_target, dense_pair.drafter)


def test_drafter_of_another_vocabulary(
    scratch_file: Path, dense_pair: Pair, permutation_pair: Pair
) -> None:
    with pytest.raises(ModelMismatchError, match="320 tokens, the target of 272"):
        open_engine(permutation_pair.target, dense_pair.drafter)
    tokens = gguf.GGUFReader(dense_pair.drafter).fields["tokenizer.ggml.tokens"].contents()
    # another order of the bytes: the same size, another vocabulary
    tokens[:256] = tokens[255::-1]
    other = mutate_gguf(dense_pair.drafter, scratch_file, set_kv={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(ModelMismatchError, match="256 of 320 tokens differ"):
        open_engine(dense_pair.target, other)


def test_target_whose_graph_has_no_taps(
    scratch_file: Path, dense_pair: Pair, tmp_path: Path
) -> None:
    # architecture smollm3 has the same tensors but for the q and k norms, and no taps in llama.cpp
    norms = [f"blk.{i}.attn_{part}_norm.weight" for i in range(4) for part in "qk"]
    reader = gguf.GGUFReader(dense_pair.target)
    keys = [name for name in reader.fields if name.startswith("qwen3.")]
    target = mutate_gguf(
        dense_pair.target,
        scratch_file,
        drop=norms,
        rename={key: key.replace("qwen3.", "smollm3.") for key in keys},
        set_kv={"general.architecture": "smollm3"},
    )
    open_engine(target).close()
    with pytest.raises(ModelMismatchError, match="gives a drafter no hidden states"):
        open_engine(target, dense_pair.drafter)


def test_not_a_number_in_the_weights(scratch_file: Path, dense_pair: Pair) -> None:
    data = bytearray(dense_pair.target.read_bytes())
    reader = gguf.GGUFReader(dense_pair.target)
    norm = next(t for t in reader.tensors if t.name == "output_norm.weight")
    data[norm.data_offset : norm.data_offset + norm.n_bytes] = np.full(
        norm.n_elements, np.nan, np.float32
    ).tobytes()
    scratch_file.write_bytes(data)
    with (
        open_engine(scratch_file) as engine,
        pytest.raises(RuntimeError, match="logits are not finite"),
    ):
        engine.generate("abc")


def test_refusals_leak_nothing(dense_pair: Pair, scratch_file: Path) -> None:
    broken = mutate_gguf(dense_pair.drafter, scratch_file, drop=["output_norm.weight"])
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("resident memory is read from /proc, which this system does not have")

    def refuse(times: int) -> int:
        for _ in range(times):
            with pytest.raises(ModelLoadError):
                open_engine(dense_pair.target, broken)
        gc.collect()
        return int(pages.read_text().split()[1]) * 4096

    before = refuse(10)
    # one leaked target has 2 MB of weights
    assert refuse(40) - before < 20e6


def test_an_engine_after_a_refusal_works(dense_pair: Pair, scratch_file: Path) -> None:
    scratch_file.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError):
        open_engine(scratch_file)
    with open_engine(*dense_pair) as engine:
        assert engine.generate("abc", SamplingParams(max_tokens=3)).stats.generated_tokens == 3
