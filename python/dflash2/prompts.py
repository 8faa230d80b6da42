"""What a caller may pass as a prompt or a conversation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dflash2.checks import COUNT, integer, refuse_type

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


def split_prompts(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """Return the prompts and whether it is a single one, given by itself.

    An empty collection holds no prompt.

    Raises:
        TypeError: It is neither text, nor a collection.
    """
    if isinstance(prompt, str):
        return [prompt], True
    if isinstance(prompt, bytes) or not isinstance(prompt, Collection):
        refuse_type("prompt", "text, token ids, or a list of such prompts", prompt)
    prompts: list[Any] = list(prompt)
    if prompts and not isinstance(prompts[0], Collection):
        return [prompts], True
    return prompts, False


def token_ids(prompt: Sequence[int]) -> list[int]:
    """Return a prompt of token ids as plain integers.

    Raises:
        TypeError: It is no collection of integers.
        ValueError: One of them is negative or too large.
    """
    if isinstance(prompt, bytes) or not isinstance(prompt, Collection):
        refuse_type("prompt", "text or token ids", prompt)
    return [integer("a token id of the prompt", token, COUNT) for token in prompt]


def split_conversations(
    messages: Messages | Sequence[Messages],
) -> tuple[list[Messages], bool]:
    """Return the conversations and whether it is a single one, given by itself."""
    several = isinstance(messages, Sequence) and messages and not isinstance(messages[0], Mapping)
    conversations: list[Any] = list(messages) if several else [messages]
    return conversations, not several


def messages_json(messages: Messages) -> str:
    """Return a conversation as JSON.

    Raises:
        TypeError: It is no sequence of mappings, or holds what JSON cannot express.
        ValueError: It is empty.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        refuse_type("messages", "a list of {'role': ..., 'content': ...}", messages)
    for message in messages:
        if not isinstance(message, Mapping):
            refuse_type("a message", "a mapping with 'role' and 'content'", message)
    if not messages:
        msg = "messages must hold at least one message, got none"
        raise ValueError(msg)
    return json.dumps([dict(message) for message in messages])
