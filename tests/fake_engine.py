"""A native engine made of Python, to test what the package does around it."""

import socket
import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from dflash2 import _core

BLOCK = 4  # tokens a request advances per step: BLOCK - 1 drafted and accepted ones, and one more


def stats(**counts: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "generated_tokens": 0,
        "verify_steps": 0,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "accepted_per_position": [],
        "depth_histogram": [],
        "verify_rule": "match",
        "verify_ms": [],
        "draft_ms": [],
        "fused_ops": "composed",
        "prompt_seconds": 0.5,
        "draft_seconds": 0.0,
        "inject_seconds": 0.0,
        "verify_seconds": 0.0,
        "sample_seconds": 0.0,
        "generation_seconds": 0.25,
    }
    return SimpleNamespace(**(values | counts))


def install(monkeypatch: pytest.MonkeyPatch) -> "list[FakeEngine]":
    """Has Dflash2Engine open fake engines, and gives the list of those opened."""
    opened: list[FakeEngine] = []

    def make(options: _core.EngineOptions) -> FakeEngine:
        opened.append(FakeEngine(options))
        return opened[-1]

    # RPC servers are asked whether they listen before the native engine is
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: socket.socket())
    monkeypatch.setattr("dflash2.engine._core.Engine", make)
    return opened


class FakeEngine:
    """Answers every prompt with its own text in capitals; a token is a character's code."""

    step_seconds = 0.0
    mask_token = 0

    def __init__(self, options: _core.EngineOptions) -> None:
        self.options = options
        self.n_ctx = options.n_ctx or 100
        self.n_parallel = options.n_parallel
        self.n_vocab = 256
        self.block_size = 8 if options.draft else 0
        self.depth = 7 if options.draft else 0
        self.devices = ["CPU"]
        self.samplings: dict[int, _core.SamplingOptions] = {}
        self.cancelled: list[int] = []
        self.n_steps = 0
        self.fail_next_step: BaseException | None = None
        self._requests: dict[int, tuple[list[int], int]] = {}
        self._generated = 0
        self._busy = threading.Lock()

    def submit(self, prompt: list[int], sampling: _core.SamplingOptions) -> int:
        with self._alone():
            if not prompt or len(prompt) > self.n_ctx:
                msg = f"[submit] the prompt has {len(prompt)} tokens, expected 1 to {self.n_ctx}"
                raise ValueError(msg)
            request = len(self.samplings)
            self.samplings[request] = sampling
            answer = [ord(chr(token).upper()) for token in prompt][: sampling.max_tokens]
            self._requests[request] = (answer, 0)
            return request

    def step(self) -> Iterable[SimpleNamespace]:
        with self._alone():
            self.n_steps += 1
            time.sleep(self.step_seconds)
            if self.fail_next_step is not None:
                error, self.fail_next_step = self.fail_next_step, None
                self._requests.clear()
                raise error
            running = list(self._requests)[: self.n_parallel]
            return [self._advance(request) for request in running]

    def cancel(self, request: int) -> None:
        with self._alone():
            self.cancelled.append(request)
            self._requests.pop(request, None)

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return [ord(character) for character in text]

    def detokenize(self, tokens: list[int]) -> bytes:
        return bytes(tokens)

    def apply_chat_template(self, messages: str, kwargs: str) -> SimpleNamespace:
        return SimpleNamespace(text=f"{messages}{kwargs}", stop=["<end>"])

    def stats(self) -> SimpleNamespace:
        return stats(generated_tokens=self._generated)

    def reset_stats(self) -> None:
        self._generated = 0

    @property
    def n_active(self) -> int:
        return len(self._requests)

    def _advance(self, request: int) -> SimpleNamespace:
        answer, done = self._requests[request]
        sampling = self.samplings[request]
        block = answer[done : done + BLOCK]
        self._requests[request] = (answer, done + BLOCK)
        self._generated += len(block)
        chunk = SimpleNamespace(
            request_id=request,
            text="".join(map(chr, block)),
            token_ids=block,
            n_accepted=max(len(block) - 1, 0),
            logprobs=[],
            cycle=None,
            finish_reason="",
            stats=None,
        )
        if sampling.logprobs >= 0:
            chunk.logprobs = [
                SimpleNamespace(token=t, logprob=-0.5, top=[(t, -0.5)]) for t in block
            ]
        if sampling.trace and done > 0:
            chunk.cycle = SimpleNamespace(
                position=done,
                depth=len(block),
                draft=[*block[:-1], ord("x")],
                n_accepted=len(block) - 1,
                token=block[-1],
            )
        if done + BLOCK >= len(answer):
            del self._requests[request]
            chunk.finish_reason = "length" if len(answer) == sampling.max_tokens else "stop"
            chunk.stats = stats(
                prompt_tokens=len(answer),
                generated_tokens=len(answer),
                verify_steps=2,
                draft_tokens=6,
                accepted_tokens=3,
                accepted_per_position=[2, 1, 0],
                depth_histogram=[0, 0, 0, 2],
            )
        return chunk

    def _alone(self) -> Any:
        # the native engine is not thread-safe
        assert not self._busy.locked()
        return self._busy
