"""The engine: one target, one drafter, any number of requests."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from dflash2 import _core, demo, hub
from dflash2.generation import TextGenerator
from dflash2.hub import StrPath
from dflash2.models import resolve_drafter, resolve_target
from dflash2.native import forward_log, generation_stats, load_backends, show_log
from dflash2.options import (
    DraftHead,
    EngineOptions,
    FlashAttention,
    FusedOps,
    VerifyRule,
    native_options,
)
from dflash2.scheduler import Scheduler
from dflash2.types import GenerationStats

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Dflash2Engine(TextGenerator):
    """Speculative decoding of a target model with a DFlash 2 drafter.

    One engine serves any number of streams, calls and threads: their requests are decoded together,
    `n_parallel` at a time, and each of them advances whenever one of them is waited for. Use it in
    a `with` statement, or call `close()`.
    """

    def __init__(
        self,
        model: StrPath,
        draft: StrPath | None = None,
        *,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_gpu_layers: int = -1,
        n_threads: int | None = None,
        n_parallel: int = 1,
        device: str = "auto",
        flash_attn: FlashAttention = "auto",
        depth: int | Literal["auto"] = "auto",
        p_min: float = 0.0,
        verify: VerifyRule = "auto",
        fused_ops: FusedOps = "auto",
        draft_head: DraftHead = "auto",
        cache_type: str = "f16",
        rpc: str | Sequence[str] | None = None,
        verbose: bool = False,
    ) -> None:
        """Load the models.

        Args:
            model: GGUF file of the target.
            draft: The drafter: a GGUF file, or a checkpoint's folder or hub id, which is converted
                once into the user's cache; None decodes without one.
            n_ctx: Tokens one sequence may hold, prompt and answer; 0 is the target's training
                context.
            n_batch: Prompt tokens per decode.
            n_gpu_layers: Layers of target and drafter kept on the GPU; -1 is all.
            n_threads: CPU threads; None is one per physical core.
            n_parallel: Sequences decoded together.
            device: "auto", "cpu", or names separated by commas as `dflash2 doctor` lists them.
            flash_attn: Whether attention runs in one fused kernel.
            depth: Drafted tokens per cycle, more than block size - 1 is clamped; "auto" chooses
                for every cycle what decodes fastest on this machine, no draft included.
            p_min: A draft ends before the first slot whose best probability is lower.
            verify: The rule that decides about drafts where temperature is above 0. "reject" and
                "block" keep more of them and give every token the probability it has without a
                drafter; "match" gives the very tokens of decoding without one under the same seed.
                "auto" is "reject". Requests whose sampler has no probabilities (mirostat) use
                "match", and their stats say so.
            fused_ops: How the drafter's graph is built: "auto" is "fused" where every device that
                runs it has the ops and "composed" of llama.cpp's elsewhere; "upstream" is
                llama.cpp's own graph, and its kernels in both models, to compare with.
                `stats.fused_ops` says which it is.
            draft_head: The LM head that drafts are made with. "q4_0" is a copy of the target's in
                that type, which a CPU computes two to three times as fast as F16 or Q6_K; "auto"
                makes it where the target's is computed on the CPU and is a large part of the
                target. It takes memory, and never changes what is verified.
            cache_type: Type of the target's K and V caches, such as "f16" or "q8_0".
            rpc: "host:port" of RPC servers whose devices are added; several as a sequence or
                separated by commas.
            verbose: Show what llama.cpp and the engine log. Without it the lines still reach the
                logger "dflash2" at their levels.

        Raises:
            FileNotFoundError: A file does not exist.
            ModelLoadError: A file is damaged, or not of the kind it was given for.
            ModelMismatchError: The drafter was made for another target.
            ValueError: An option is out of range.
            ConnectionError: An RPC server does not answer.
        """
        if verbose:
            show_log()
        target = resolve_target(model)
        drafter = None if draft is None else resolve_drafter(draft, target)
        options = native_options(
            target,
            drafter,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_gpu_layers=n_gpu_layers,
            n_threads=n_threads,
            n_parallel=n_parallel,
            device=device,
            flash_attn=flash_attn,
            depth=depth,
            p_min=p_min,
            verify=verify,
            fused_ops=fused_ops,
            draft_head=draft_head,
            cache_type=cache_type,
            rpc=rpc,
        )
        load_backends()
        try:
            native = _core.Engine(options)
        finally:
            forward_log()
        super().__init__(Scheduler(native))
        self._model_path = target
        self._draft_path = drafter
        self._n_ctx = native.n_ctx
        self._n_parallel = native.n_parallel
        self._n_vocab = native.n_vocab
        self._block_size = native.block_size
        self._depth = native.depth
        self._devices = tuple(native.devices)

    @classmethod
    def demo(cls, **options: Unpack[EngineOptions]) -> Self:
        """Open the demo pair; its target is fetched into the user's cache on first use.

        Raises:
            Dflash2Error: The target cannot be fetched.
        """
        return cls(demo.target_path(), demo.drafter_path(), **options)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str,
        *,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        revision: str | None = None,
        draft_revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        **engine_options: Unpack[EngineOptions],
    ) -> Self:
        """Open models of the Hugging Face hub.

        Args:
            repo_id: Repository of the target, "owner/name".
            filename: Its GGUF file.
            draft_repo_id: Repository of the drafter. With `draft_filename` alone it is `repo_id`;
                with neither there is no drafter.
            draft_filename: Its GGUF file; None converts the repository's checkpoint.
            revision: Branch, tag or commit of the target.
            draft_revision: The same of the drafter.
            cache_dir: The hub's cache; None takes the usual one.
            token: An access token; True takes the stored one, False sends none.
            local_files_only: Take what the cache holds, without the network.
            **engine_options: As in the constructor.

        Raises:
            OSError: What the hub raises, unchanged.
        """
        inspect.signature(cls).bind(repo_id, None, **engine_options)  # before gigabytes are fetched
        access: hub.HubOptions = {
            "cache_dir": cache_dir,
            "token": token,
            "local_files_only": local_files_only,
        }
        target = hub.download_file(repo_id, filename, revision, **access)
        draft: StrPath | None = None
        if draft_filename is not None:
            repo = draft_repo_id or repo_id
            draft = hub.download_file(repo, draft_filename, draft_revision, **access)
        elif draft_repo_id is not None:
            draft = resolve_drafter(draft_repo_id, target, draft_revision, **access)
        return cls(target, draft, **engine_options)

    @property
    def stats(self) -> GenerationStats:
        """Counts and times of all requests since opening or `reset_stats()`."""
        return generation_stats(self._scheduler.call(lambda engine: engine.stats()))

    def reset_stats(self) -> None:
        """Start `stats` again from zero."""
        self._scheduler.call(lambda engine: engine.reset_stats())

    @property
    def model_path(self) -> Path:
        """The target's file."""
        return self._model_path

    @property
    def draft_path(self) -> Path | None:
        """The drafter's GGUF file, converted or not; None without a drafter."""
        return self._draft_path

    @property
    def n_ctx(self) -> int:
        """Tokens one sequence may hold, prompt and answer."""
        return self._n_ctx

    @property
    def n_parallel(self) -> int:
        """Sequences decoded together."""
        return self._n_parallel

    @property
    def n_vocab(self) -> int:
        """Size of the target's vocabulary."""
        return self._n_vocab

    @property
    def block_size(self) -> int:
        """Tokens in the drafter's block, anchor included; 0 without a drafter."""
        return self._block_size

    @property
    def depth(self) -> int:
        """Drafted tokens per cycle; 0 without a drafter."""
        return self._depth

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that hold the target."""
        return self._devices

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._scheduler.closed

    def close(self) -> None:
        """Free the models; streams that still live raise EngineClosedError. May be called twice."""
        self._scheduler.close()

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the engine."""
        self.close()

    def __del__(self) -> None:
        """Close the engine."""
        if hasattr(self, "_scheduler"):  # not where opening failed
            self.close()
