"""Stock llama.cpp's own converter makes the same of the demo drafter as ours.

Needs PyTorch, Transformers and the pinned llama.cpp, so it runs when it is asked for.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from dflash2.convert import convert_drafter
from dflash2.convert.gguf_metadata import read_metadata
from pin import Pin
from prepare import prepare

from .reading import metadata, tensors

pytestmark = pytest.mark.skipif(
    os.environ.get("DFLASH2_TEST_STOCK_CONVERTER") != "1",
    reason="set DFLASH2_TEST_STOCK_CONVERTER=1 where PyTorch and Transformers are installed",
)

# Our key for the target's number of layers, and what stock leaves to its default of false.
OURS_ALONE = {"dflash.target_block_count", "dflash.attention.causal"}
# Guessed from the folder's name.
STOCKS_ALONE = {"general.size_label", "general.basename", "general.finetune"}


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned llama.cpp, unpatched."""
    tree = tmp_path_factory.mktemp("stock") / "llama.cpp"
    prepare(tree, Pin.load(), [])
    return tree


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory, demo_target: Path) -> Path:
    """The demo target's tokenizer as its checkpoint has it, made from the GGUF."""
    folder = tmp_path_factory.mktemp("target")
    keys = {key: value.value for key, value in read_metadata(demo_target).items()}
    tokens = [token.decode() for token in as_list(keys["tokenizer.ggml.tokens"])]
    merges = [merge.decode() for merge in as_list(keys["tokenizer.ggml.merges"])]
    special = [
        {
            "id": number,
            "content": tokens[number],
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for number, kind in enumerate(as_list(keys["tokenizer.ggml.token_type"]))
        if kind == gguf.TokenType.CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    byte_level |= {"trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    config |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    sizes = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30}
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": tokens[1],
        "eos_token": tokens[2],
        "pad_token": tokens[2],
        "unk_token": tokens[0],
        "chat_template": str(keys["tokenizer.chat_template"].decode()),  # type: ignore[attr-defined]
    }
    for name, content in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": options,
        "config.json": config | sizes,
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def as_list(value: object) -> list[Any]:
    assert isinstance(value, list)
    return value


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_stock_converter_makes_the_same(
    tmp_path: Path, stock: Path, target_folder: Path, golden: Path, demo_target: Path, outtype: Any
) -> None:
    theirs = tmp_path / "stock.gguf"
    command = [sys.executable, stock / "convert_hf_to_gguf.py", golden, "--outfile", theirs]
    command += ["--outtype", outtype, "--target-model-dir", target_folder]
    subprocess.run(command, check=True)
    ours = convert_drafter(golden, demo_target, tmp_path / "ours.gguf", outtype=outtype)

    found, expected = metadata(ours), metadata(theirs)
    assert found.keys() - expected.keys() == OURS_ALONE
    assert expected.keys() - found.keys() == STOCKS_ALONE
    assert found["dflash.attention.causal"] == ("BOOL", False)
    for key in (found.keys() & expected.keys()) - {"general.name"}:
        assert found[key] == expected[key], key

    written, wanted = tensors(ours), tensors(theirs)
    assert written.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert written[name].tensor_type is tensor.tensor_type, name
        assert written[name].shape.tolist() == tensor.shape.tolist(), name
        np.testing.assert_array_equal(written[name].data, tensor.data, err_msg=name)
