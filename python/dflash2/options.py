"""How an engine is opened."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict, get_args

from dflash2 import _core
from dflash2.checks import (
    AT_LEAST_ONE,
    COUNT,
    INT32_MAX,
    Range,
    choice,
    integer,
    number,
    unicode_text,
)

FlashAttention = Literal["auto", "on", "off"]
VerifyRule = Literal["auto", "reject", "block", "match"]
FusedOps = Literal["auto", "fused", "composed", "upstream"]
DraftHead = Literal["auto", "target", "q4_0"]


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `Dflash2Engine`, explained there."""

    n_ctx: int
    n_batch: int
    n_gpu_layers: int
    n_threads: int | None
    n_parallel: int
    device: str
    flash_attn: FlashAttention
    depth: int | Literal["auto"]
    p_min: float
    verify: VerifyRule
    fused_ops: FusedOps
    draft_head: DraftHead
    cache_type: str
    rpc: str | Sequence[str] | None
    verbose: bool


def native_options(
    model: Path,
    draft: Path | None,
    *,
    n_ctx: int,
    n_batch: int,
    n_gpu_layers: int,
    n_threads: int | None,
    n_parallel: int,
    device: str,
    flash_attn: str,
    depth: int | str,
    p_min: float,
    verify: str,
    fused_ops: str,
    draft_head: str,
    cache_type: str,
    rpc: str | Sequence[str] | None,
) -> _core.EngineOptions:
    """Return the native form of an engine's options.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of range.
        ConnectionError: An RPC server does not answer.
    """
    options = _core.EngineOptions()
    options.model = str(model)
    options.draft = "" if draft is None else str(draft)
    options.n_ctx = integer("n_ctx", n_ctx, COUNT)
    options.n_batch = integer("n_batch", n_batch, AT_LEAST_ONE)
    options.n_gpu_layers = integer("n_gpu_layers", n_gpu_layers, Range(-1, INT32_MAX))
    options.n_threads = 0 if n_threads is None else integer("n_threads", n_threads, AT_LEAST_ONE)
    options.n_parallel = integer("n_parallel", n_parallel, AT_LEAST_ONE)
    options.device = _text("device", device)
    options.flash_attn = choice("flash_attn", flash_attn, get_args(FlashAttention))
    options.depth = -1 if depth == "auto" else integer("depth", depth, AT_LEAST_ONE)
    options.p_min = number("p_min", p_min, Range(0, 1))
    options.verify = choice("verify", verify, get_args(VerifyRule))
    options.fused_ops = choice("fused_ops", fused_ops, get_args(FusedOps))
    options.draft_head = choice("draft_head", draft_head, get_args(DraftHead))
    options.cache_type = _text("cache_type", cache_type)
    options.rpc = ",".join(_reachable(server) for server in _servers(rpc))
    return options


def _servers(rpc: str | Sequence[str] | None) -> list[str]:
    given = [] if rpc is None else [rpc] if isinstance(rpc, str) else rpc
    return [server for names in given for server in _text("rpc", names).split(",")]


def _reachable(endpoint: str) -> str:
    """Return `endpoint` if somebody listens there: ggml ends the process when nobody does."""
    host, _, port = endpoint.rpartition(":")
    if not host or ":" in host or not port.isdecimal():
        msg = f"rpc: {endpoint!r} is not of the form host:port"
        raise ValueError(msg)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        msg = f"rpc: nobody answers at {endpoint} ({error}): start ggml-rpc-server there"
        raise ConnectionError(msg) from error
    return endpoint


def _text(name: str, value: object) -> str:
    text = unicode_text(name, value)
    if not text:
        msg = f"{name} must not be empty"
        raise ValueError(msg)
    return text
