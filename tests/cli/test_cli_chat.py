"""`dflash2 chat`."""

import json
from typing import Any

import pytest
from fake_engine import FakeEngine

from .conftest import Run


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Has the user type these lines, or press a key that raises, and then leave."""
    remaining = iter(lines)

    def typed(prompt: str) -> str:
        line = next(remaining, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typed)


def test_chat_keeps_the_conversation(
    run: Run, pair: list[str], fakes: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations: list[list[dict[str, str]]] = []
    render = FakeEngine.apply_chat_template

    def record(self: FakeEngine, messages: str, kwargs: str) -> Any:
        conversations.append(json.loads(messages))
        assert json.loads(kwargs) == {"style": "short"}
        return render(self, messages="hi", kwargs="")

    monkeypatch.setattr(FakeEngine, "apply_chat_template", record)
    type_lines(monkeypatch, "first", "", KeyboardInterrupt, "second", "/reset", "third", "/exit")
    arguments = ["-sys", "Be kind.", "--chat-template-kwargs", '{"style": "short"}']
    status, out, err = run("chat", *pair, *arguments)
    assert (status, err) == (0, "")
    system = {"role": "system", "content": "Be kind."}
    first = [system, {"role": "user", "content": "first"}]
    answered = [*first, {"role": "assistant", "content": "HI"}]
    assert conversations == [
        first,
        [*answered, {"role": "user", "content": "second"}],
        [system, {"role": "user", "content": "third"}],
    ]
    assert out.count("HI\n8.0 tokens/s, mean acceptance length 2.50\n") == 3
    assert "generated: 6 tokens" in out
    assert len(fakes) == 1


def test_chat_interrupt_stops_the_answer_only(
    run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch, fakes: list[FakeEngine]
) -> None:
    step = FakeEngine.step
    conversations: list[list[dict[str, str]]] = []
    render = FakeEngine.apply_chat_template

    def interrupted(self: FakeEngine) -> Any:
        if self.n_steps == 1 and not self.cancelled:
            self.n_steps += 1
            raise KeyboardInterrupt
        return step(self)

    def record(self: FakeEngine, messages: str, kwargs: str) -> Any:
        conversations.append(json.loads(messages))
        return render(self, messages="abcdefgh", kwargs="")

    monkeypatch.setattr(FakeEngine, "step", interrupted)
    monkeypatch.setattr(FakeEngine, "apply_chat_template", record)
    type_lines(monkeypatch, "one", "two")
    status, out, _ = run("chat", *pair)
    assert status == 0
    assert "ABCD\nABCDEFGH\n" in out
    assert conversations[1] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "ABCD"},
        {"role": "user", "content": "two"},
    ]
    assert fakes[0].cancelled == [0]


@pytest.mark.usefixtures("fakes")
def test_chat_goes_on_after_an_error(
    run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_lines(monkeypatch, "x" * 200, "y")
    status, out, err = run("chat", *pair)
    assert status == 0
    assert err.startswith("dflash2: error: [submit] the prompt has ")
    assert '[{"ROLE": "USER", "CONTENT": "Y"}]{}\n' in out


@pytest.mark.usefixtures("fakes")
def test_chat_once_as_json(run: Run, pair: list[str]) -> None:
    _, out, _ = run("chat", *pair, "-p", "hi", "--json")
    document = json.loads(out)
    assert document["text"] == '[{"ROLE": "USER", "CONTENT": "HI"}]{}'
    assert set(document) == {"text", "token_ids", "finish_reason", "stats"}
