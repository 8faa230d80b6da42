"""`dflash2 generate`."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from dflash2 import GenerationStats
from fake_engine import FakeEngine, stats

from .conftest import Run, write_target

STATS_KEYS = set(GenerationStats.__dataclass_fields__) | {
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_per_position",
    "prompt_tps",
    "generation_tps",
}


@pytest.mark.usefixtures("fakes")
def test_generate_prints_text_then_statistics(run: Run, pair: list[str]) -> None:
    status, out, err = run("generate", *pair, "-p", "once upon")
    assert status == 0
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "ONCE UPON"
    assert "generated: 9 tokens, 36.0 tokens/s" in lines


@pytest.mark.usefixtures("fakes")
def test_generate_prints_acceptance(
    run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = stats(
        generated_tokens=9,
        verify_steps=4,
        draft_tokens=10,
        accepted_tokens=5,
        accepted_per_position=[3, 2, 0],
        depth_histogram=[0, 0, 2, 2],
    )
    monkeypatch.setattr(FakeEngine, "stats", lambda self: totals)
    _, out, _ = run("generate", *pair, "-p", "once upon")
    assert "drafted tokens per target pass: 2 in 2, 3 in 2" in out
    # by hand: 1 + 5/4; 5/10; 3/4, 2/4, 0/2
    assert "mean acceptance length: 2.25" in out
    assert "acceptance: 50.0% (5 of 10 drafted)" in out
    assert "acceptance per position: 75.0% 50.0% 0.0%" in out


@pytest.mark.usefixtures("fakes")
def test_generate_says_that_nothing_was_drafted(
    run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = stats(generated_tokens=9, verify_steps=8, depth_histogram=[8])
    monkeypatch.setattr(FakeEngine, "stats", lambda self: totals)
    _, out, _ = run("generate", *pair, "-p", "once upon")
    assert "drafted tokens per target pass: 0 in 8" in out
    assert "no drafts: they would cost more time than they save here" in out


@pytest.mark.usefixtures("fakes")
def test_generate_json(run: Run, pair: list[str]) -> None:
    status, out, err = run("generate", *pair, "-p", "héé", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert set(document) == {"text", "token_ids", "finish_reason", "stats"}
    assert document["text"] == "HÉÉ"
    assert document["token_ids"] == [72, 201, 201]
    assert document["finish_reason"] == "stop"
    assert set(document["stats"]) == STATS_KEYS


@pytest.mark.usefixtures("fakes")
def test_generate_json_with_logprobs_and_trace(run: Run, pair: list[str]) -> None:
    _, out, _ = run("generate", *pair, "-p", "abcdef", "--json", "--logprobs", "1", "--trace")
    document = json.loads(out)
    assert document["logprobs"][0] == {"token": 65, "logprob": -0.5, "top": [[65, -0.5]]}
    assert document["trace"] == [
        {"position": 4, "depth": 2, "draft": [69, 120], "n_accepted": 1, "token": 70}
    ]


def test_generate_several_prompts_together(
    run: Run, pair: list[str], fakes: list[FakeEngine], tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("from a file\n", encoding="utf-8")
    arguments = [*pair, "-p", "one", "-f", str(tmp_path / "prompt.txt"), "-p", "two"]
    _, out, _ = run("generate", *arguments, "--json")
    assert [entry["text"] for entry in json.loads(out)] == ["ONE", "FROM A FILE", "TWO"]
    assert fakes[-1].n_parallel == 3
    _, out, _ = run("generate", *arguments, "-np", "1")
    assert out.startswith("ONE\n\nFROM A FILE\n\nTWO\n\n")
    assert fakes[-1].n_parallel == 1


@pytest.mark.usefixtures("fakes")
def test_generate_asks_as_a_user_where_there_is_a_chat_template(run: Run, tmp_path: Path) -> None:
    target = str(write_target(tmp_path / "chat.gguf", "{{ messages }}"))
    rendered = '[{"ROLE": "USER", "CONTENT": "HI"}]{}'
    assert run("generate", "-m", target, "-p", "hi")[1].startswith(f"{rendered}\n")
    documents = json.loads(run("generate", "-m", target, "-p", "hi", "-p", "ho", "--json")[1])
    assert [document["text"] for document in documents] == [rendered, rendered.replace("HI", "HO")]
    assert run("generate", "-m", target, "-p", "hi", "--raw")[1].startswith("HI\n")


@pytest.mark.usefixtures("fakes")
def test_generate_reads_a_pipe(run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped"))
    assert run("generate", *pair)[1].startswith("PIPED\n")


def test_generate_passes_flags_on(run: Run, pair: list[str], fakes: list[FakeEngine]) -> None:
    flags = (
        "-c 64 -b 32 -t 2 -ngl all -dev cpu -fa off --depth 3 --verify match --cache-type q8_0 "
        "--rpc a:1,b:2 -n 5 --temp 0.5 --top-k 40 --top-p 0.75 --min-p 0.25 --repeat-penalty 1.5 "
        "--repeat-last-n -1 --presence-penalty 0.5 --frequency-penalty -0.5 -s 9 --stop X -r Y "
        "-l 65+1.5 -l 66-2 --ignore-eos --logprobs 2 --mirostat 2 --typical 0.5 --top-nsigma 2"
    )
    assert run("generate", *pair, "-p", "a", *flags.split(), "--grammar", 'root ::= "A"')[0] == 0
    options, sampling = fakes[0].options, fakes[0].samplings[0]
    assert (options.n_ctx, options.n_batch, options.n_threads, options.n_gpu_layers) == (
        64,
        32,
        2,
        -1,
    )
    assert (options.device, options.flash_attn, options.depth) == ("cpu", "off", 3)
    assert (options.verify, options.cache_type, options.rpc) == ("match", "q8_0", "a:1,b:2")
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (5, 0.5, 40)
    assert (sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (0.75, 0.25, 1.5)
    assert (sampling.penalty_last_n, sampling.presence_penalty) == (-1, 0.5)
    assert (sampling.frequency_penalty, sampling.seed) == (-0.5, 9)
    assert list(sampling.stop) == ["X", "Y"]
    assert [tuple(bias) for bias in sampling.logit_bias] == [(65, 1.5), (66, -2.0)]
    assert (sampling.ignore_eos, sampling.logprobs, sampling.mirostat) == (True, 2, 2)
    assert (sampling.typical_p, sampling.top_n_sigma) == (0.5, 2.0)
    assert sampling.grammar == 'root ::= "A"'


def test_generate_takes_constraints_from_files(
    run: Run, pair: list[str], fakes: list[FakeEngine], tmp_path: Path
) -> None:
    file = tmp_path / "constraint"
    file.write_text('{"type": "object"}', encoding="utf-8")
    run("generate", *pair, "-p", "a", "-jf", str(file))
    run("generate", *pair, "-p", "a", "--grammar-file", str(file))
    assert fakes[0].samplings[0].json_schema == '{"type": "object"}'
    assert fakes[1].samplings[0].grammar == '{"type": "object"}'


@pytest.mark.usefixtures("fakes")
def test_trace_marks_accepted_and_rejected_drafts(
    run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run("generate", *pair, "-p", "abcdef", "--trace")
    assert out.startswith("ABCD[+E][-x]F\n")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    _, out, _ = run("generate", *pair, "-p", "abcdef", "--trace")
    assert out.startswith("ABCD\033[32mE\033[0m\033[31;9mx\033[0mF\n")
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run("generate", *pair, "-p", "abcdef", "--trace")
    assert out.startswith("ABCD[+E][-x]F\n")


def test_interrupt_keeps_what_was_printed(
    run: Run, pair: list[str], fakes: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FakeEngine.step

    def interrupted(self: FakeEngine) -> Any:
        if self.n_steps == 2:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(FakeEngine, "step", interrupted)
    assert run("generate", *pair, "-p", "abcdefghijkl") == (130, "ABCDEFGH\n", "")
    assert fakes
