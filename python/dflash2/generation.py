"""Text from a target: completion and chat, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, overload

from dflash2.checks import refuse_type, unicode_text
from dflash2.native import generation_chunk, generation_result, sampling_options
from dflash2.prompts import (
    Messages,
    Prompt,
    messages_json,
    split_conversations,
    split_prompts,
    token_ids,
)
from dflash2.sampling import SamplingParams
from dflash2.scheduler import Scheduler
from dflash2.types import GenerationChunk, GenerationResult


class TextGenerator:
    """The methods of an engine that make text."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Generate with the engine that `scheduler` owns."""
        self._scheduler = scheduler

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
    ) -> list[GenerationResult]: ...

    def generate(
        self, prompt: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> GenerationResult | list[GenerationResult]:
        """Complete one prompt, or several that are decoded together.

        Args:
            prompt: Text, or token ids of the target's vocabulary, or a list of such prompts.
            params: Sampling settings; greedy when omitted.

        Returns:
            One result, or one for every prompt in their order.

        Raises:
            ValueError: A prompt is empty, does not fit in `n_ctx` or has invalid token ids.
            EngineClosedError: The engine is closed.
        """
        params = _checked(params)
        prompts, single = split_prompts(prompt)
        results = self._answers([(self._tokens(each), params) for each in prompts])
        return results[0] if single else results

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[GenerationChunk, None, None]:
        """Complete one prompt and yield the answer as blocks are verified.

        The request starts with the first chunk asked for, and closing the iterator cancels it.

        Args:
            prompt: Text, or token ids of the target's vocabulary.
            params: Sampling settings; greedy when omitted.

        Yields:
            One chunk per verified block, 1 to `depth` + 1 tokens each. The last has `finish_reason`
            and `stats`.

        Raises:
            ValueError: The prompt is empty, does not fit in `n_ctx` or has invalid token ids.
            EngineClosedError: The engine is closed, or was while the stream lived.
        """
        params = _checked(params)
        return self._chunks(self._tokens(prompt), params)

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> GenerationResult: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[GenerationResult]: ...

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> GenerationResult | list[GenerationResult]:
        """Answer a conversation, or several together, rendered by the target's chat template.

        Args:
            messages: The conversation, as `{"role": ..., "content": ...}` from first to last, or a
                list of conversations.
            params: Sampling settings; greedy when omitted.
            chat_template_kwargs: Further variables of the template, for example
                `{"enable_thinking": False}`.

        Returns:
            One result, or one for every conversation in their order.

        Raises:
            ValueError: The template rejects the conversation, or it does not fit in `n_ctx`.
            EngineClosedError: The engine is closed.
        """
        params = _checked(params)
        conversations, single = split_conversations(messages)
        results = self._answers(
            [self._rendered(each, params, chat_template_kwargs) for each in conversations]
        )
        return results[0] if single else results

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Generator[GenerationChunk, None, None]:
        """Answer a conversation as `chat` does, and yield chunks as `stream` does."""
        return self._chunks(*self._rendered(messages, _checked(params), chat_template_kwargs))

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: Special tokens written in it become those tokens.
            add_special: Add what the target wants around a text, such as a begin token.

        Raises:
            ValueError: The text holds a lone surrogate.
        """
        checked = unicode_text("text", text)
        return self._scheduler.call(lambda engine: engine.tokenize(checked, add_special))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; bytes that form no whole character become U+FFFD.

        Raises:
            ValueError: A token id is not in the vocabulary.
        """
        ids = token_ids(tokens)
        data = self._scheduler.call(lambda engine: engine.detokenize(ids))
        return data.decode("utf-8", errors="replace")

    def _tokens(self, prompt: Prompt) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else token_ids(prompt)

    def _rendered(
        self, messages: Messages, params: SamplingParams, kwargs: Mapping[str, Any] | None
    ) -> tuple[list[int], SamplingParams]:
        conversation, variables = messages_json(messages), json.dumps(dict(kwargs or {}))
        prompt = self._scheduler.call(
            lambda engine: engine.apply_chat_template(conversation, variables)
        )
        params = replace(params, stop=(*params.stop, *prompt.stop))
        return self.tokenize(prompt.text), params

    def _answers(
        self, requests: Sequence[tuple[list[int], SamplingParams]]
    ) -> list[GenerationResult]:
        prompts = [prompt for prompt, _ in requests]
        params = [params for _, params in requests]
        answers: list[list[GenerationChunk]] = [[] for _ in requests]
        with closing(self._scheduler.run(prompts, list(map(sampling_options, params)))) as chunks:
            for index, chunk in chunks:
                answers[index].append(generation_chunk(chunk, params[index]))
        return list(map(generation_result, answers, params))

    def _chunks(
        self, prompt: list[int], params: SamplingParams
    ) -> Generator[GenerationChunk, None, None]:
        with closing(self._scheduler.run([prompt], [sampling_options(params)])) as chunks:
            for _, chunk in chunks:
                yield generation_chunk(chunk, params)


def _checked(params: SamplingParams | None) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        refuse_type("params", "SamplingParams or None", params)
    return params
