"""Bad input on the command line: one line, a status, no traceback."""

import pytest

from .conftest import Run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "a", "--temp", "-1"], "temperature must be finite and >= 0, got -1.0"),
        (["-p", "a", "--depth", "0"], "depth must be an integer >= 1"),
        (
            ["-p", "a", "--verify", "luck"],
            "verify must be one of auto, reject, block, match, got 'luck'",
        ),
        (["-p", "a" * 200], "the prompt has 200 tokens"),
        (["-p", "a", "-md", "nothere.gguf"], "the drafter nothere.gguf does not exist"),
        (["-p", "a", "-md", "/nothere"], "the drafter /nothere does not exist"),
    ],
)
@pytest.mark.usefixtures("fakes")
def test_errors_are_one_line(run: Run, pair: list[str], arguments: list[str], message: str) -> None:
    status, out, err = run("generate", *pair, *arguments)
    assert status == 1
    assert out.strip() == ""
    assert err.startswith("dflash2: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_missing_target_is_one_line(run: Run) -> None:
    status, _, err = run("generate", "-m", "nothere.gguf", "-p", "a")
    assert (status, err) == (1, "dflash2: error: the target nothere.gguf does not exist\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["generate", "-p", "a"],
        ["generate", "-p", "a", "-m", "x", "--demo"],
        ["generate", "-m", "x", "-p", "a", "-n", "many"],
        ["generate", "-m", "x", "-p", "a", "--unknown"],
        ["generate", "-m", "x", "-p", "a", "--temper", "1"],
        ["generate", "-m", "x", "-f", "nothere.txt"],
        ["generate", "-m", "x", "-p", "a", "-p", "b", "--trace"],
        ["generate", "-m", "x", "-p", "a", "-l", "5"],
        ["generate", "-m", "x", "-p", "a", "--grammar", "g", "-j", "{}"],
        ["chat", "-m", "x", "--json"],
        ["chat", "-m", "x", "--chat-template-kwargs", "[1]"],
        ["serve"],
        ["serve", "-m"],
        ["convert"],
        ["convert", "x"],
        ["convert", "x", "--target", "y", "--outtypes", "f16"],
        ["inspect"],
        ["inspect", "x", "--vocab", "y"],
    ],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: list[str]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "usage: dflash2" in err
    assert "error: " in err


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in ("generate", "chat", "serve", "convert", "inspect", "doctor"))],
)
def test_help(run: Run, command: list[str]) -> None:
    status, out, err = run(*command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: dflash2")
