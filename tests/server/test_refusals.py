"""What cannot work ends at start: exit status 1, and one line that says what is wrong."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from serving import running_server, server_command
from tiny import Pair, mutate_gguf

from server.answers import stats
from server.options import drafting, exact


def refusal(
    target: Path | None,
    options: Sequence[object],
    message: str,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The one line that has `message`; nothing else may be alarming."""
    command = server_command(target, [*exact(), *options])
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    log = result.stdout + result.stderr
    assert result.returncode == 1, f"status {result.returncode}:\n{log}"
    lines = [line for line in log.splitlines() if message in line]
    assert len(lines) == 1, log
    for sign in ("GGML_ASSERT", "terminate called", "Segmentation", "stack trace"):
        assert sign not in log, log
    return lines[0]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--dflash2-depth", "-1"),
        ("--dflash2-depth", "0"),
        ("--dflash2-depth", "many"),
        ("--dflash2-depth", "3x"),
        ("--dflash2-depth", ""),
        ("--dflash2-verify", "always"),
        ("--dflash2-verify", ""),
        ("--dflash2-head", "f16"),
        ("--dflash2-p-min", "1.5"),
        ("--dflash2-p-min", "-0.1"),
        ("--dflash2-p-min", "nan"),
        ("--dflash2-p-min", "x"),
        ("--dflash2-ctx", "-5"),
        ("--dflash2-ctx", "x"),
        ("--dflash2-ctx", "99999999999"),
    ],
)
def test_bad_value(permutation_pair: Pair, flag: str, value: str) -> None:
    options = ["--draft-dflash2", permutation_pair.drafter, flag, value]
    line = refusal(permutation_pair.target, options, f'argument "{flag}": ')
    assert value in line


def test_flag_without_value(permutation_pair: Pair) -> None:
    refusal(permutation_pair.target, ["--draft-dflash2"], 'argument "--draft-dflash2": expected')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spec-type", "draft-dflash"], "--spec-type"),
        (["-md", "DRAFTER"], "-md"),
        (["-sm", "tensor"], "layer"),
    ],
)
def test_combination_that_cannot_work(
    permutation_pair: Pair, options: list[str], message: str
) -> None:
    drafter = permutation_pair.drafter
    given = [drafter if option == "DRAFTER" else option for option in options]
    line = refusal(permutation_pair.target, [*drafting(drafter), *given], "--draft-dflash2")
    assert message in line


def test_missing_file(permutation_pair: Pair, tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    refusal(permutation_pair.target, drafting(missing), str(missing))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with the letters GGUF"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00{" + b" " * 80, "safetensors"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, "damaged or cut short"),
    ],
    ids=["empty", "safetensors", "damaged"],
)
def test_file_that_is_no_gguf(
    permutation_pair: Pair, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    refusal(permutation_pair.target, drafting(path), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": ["fc.weight"]}, "fc.weight is missing"),
        ({"drop": ["blk.1.attn_conv_base"]}, "blk.1.attn_conv_base is missing"),
        ({"drop": ["tokenizer.ggml.mask_token_id"]}, "mask_token_id is missing"),
        ({"resize": {"selector_hidden.weight": (7, 288)}}, "selector_hidden.weight has shape"),
        ({"set_kv": {"dflash.block_size": 1}}, "dflash.block_size is 1"),
        ({"set_kv": {"tokenizer.ggml.mask_token_id": 320}}, "mask_token_id is 320"),
        ({"set_kv": {"dflash.target_block_count": 36}}, "target of 36 layers"),
    ],
    ids=str,
)
def test_broken_drafter(
    dense_pair: Pair, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """One of each kind: all of them are tried on the engine, which asks the same code."""
    path = mutate_gguf(dense_pair.drafter, tmp_path / "changed.gguf", **change)
    refusal(dense_pair.target, drafting(path), message)


def test_drafter_of_another_target(
    permutation_pair: Pair, dense_pair: Pair, make_drafter: Callable[..., Path]
) -> None:
    refusal(permutation_pair.target, drafting(dense_pair.drafter), "320 tokens, the target of 272")
    last = make_drafter(tap_layers=(0, 1, 3))
    refusal(dense_pair.target, drafting(last), "reads layer 3, the target's last")
    refusal(dense_pair.target, drafting(dense_pair.target), "qwen3")


def test_drafter_that_finds_no_memory(
    dense_target: Path, make_drafter: Callable[..., Path]
) -> None:
    """Room for the target, not for a drafter cache of a hundred million tokens."""
    resource = pytest.importorskip("resource", reason="limits of memory are POSIX's")
    options = [*exact(), *drafting(make_drafter()), "--dflash2-ctx", 100_000_000]
    limit = 8 << 30
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        with running_server(dense_target, options) as server:
            answer = server.complete("abcabc", 20)
            log = server.log()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    with running_server(dense_target, exact()) as plain:
        assert answer["tokens"] == plain.complete("abcabc", 20)["tokens"]
    assert "dflash2" not in answer["timings"]
    assert "without drafts" in log


def test_help_has_every_flag(permutation_pair: Pair) -> None:
    command = [server_command(permutation_pair.target)[0], "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in (
        "draft-dflash2",
        "dflash2-depth",
        "dflash2-verify",
        "dflash2-p-min",
        "dflash2-head",
        "dflash2-ctx",
    ):
        assert f"--{name}" in text
        assert f"LLAMA_ARG_{name.replace('-', '_').upper()}" in text


def test_stock_drafting_in_the_same_binary(permutation_pair: Pair) -> None:
    """Stays what it is: three tokens a pass, and none of our statistics."""
    options = ["--spec-type", "draft-dflash", "-md", permutation_pair.drafter]
    with running_server(permutation_pair.target, [*exact(), *options]) as server:
        timings = server.complete("abc", 1 + 4 * 5)["timings"]
    assert timings["draft_n"] == timings["draft_n_accepted"] == 15
    assert "dflash2" not in timings
    options = drafting(permutation_pair.drafter)
    with running_server(permutation_pair.target, [*exact(), *options]) as server:
        assert stats(server.complete("abc", 1 + 8 * 5))["accepted_tokens"] == 35
