"""
The native engine of dflash2. Private: use the classes of the package.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['ChatPrompt', 'Chunk', 'Cycle', 'Device', 'Dflash2Error', 'Engine', 'EngineOptions', 'ModelLoadError', 'ModelMismatchError', 'SamplingOptions', 'Stats', 'TokenLogprobs', 'cpu_features', 'devices', 'drain_log', 'llama_cpp_commit', 'llama_cpp_version', 'load_backends']
class Dflash2Error(RuntimeError):
    """
    The engine or llama.cpp failed.
    """
class ModelLoadError(Dflash2Error):
    """
    A file cannot be used for what it was given: no GGUF, damaged, or of the wrong kind.
    """
class ModelMismatchError(Dflash2Error):
    """
    Target and drafter do not belong together.
    """
class EngineOptions:
    """
    How an engine is opened; the fields are the arguments of Dflash2Engine.
    """
    cache_type: str
    device: str
    draft_head: str
    flash_attn: str
    fused_ops: str
    model: str
    verify: str
    def __init__(self) -> None:
        ...
    @property
    def depth(self) -> int:
        """
        -1: automatic.
        """
    @depth.setter
    def depth(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def draft(self) -> str:
        """
        Empty: plain decoding.
        """
    @draft.setter
    def draft(self, arg0: str) -> None:
        ...
    @property
    def n_batch(self) -> int:
        ...
    @n_batch.setter
    def n_batch(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def n_ctx(self) -> int:
        ...
    @n_ctx.setter
    def n_ctx(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def n_gpu_layers(self) -> int:
        ...
    @n_gpu_layers.setter
    def n_gpu_layers(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def n_parallel(self) -> int:
        ...
    @n_parallel.setter
    def n_parallel(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def n_threads(self) -> int:
        """
        0: one per physical core.
        """
    @n_threads.setter
    def n_threads(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def p_min(self) -> float:
        """
        0: off.
        """
    @p_min.setter
    def p_min(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def rpc(self) -> str:
        """
        host:port, separated by commas.
        """
    @rpc.setter
    def rpc(self, arg0: str) -> None:
        ...
class SamplingOptions:
    """
    How one request is sampled; the fields are those of SamplingParams.
    """
    grammar: str
    ignore_eos: bool
    json_schema: str
    trace: bool
    def __init__(self) -> None:
        ...
    @property
    def dry_allowed_length(self) -> int:
        ...
    @dry_allowed_length.setter
    def dry_allowed_length(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def dry_base(self) -> float:
        ...
    @dry_base.setter
    def dry_base(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def dry_multiplier(self) -> float:
        ...
    @dry_multiplier.setter
    def dry_multiplier(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def dry_penalty_last_n(self) -> int:
        ...
    @dry_penalty_last_n.setter
    def dry_penalty_last_n(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def dry_sequence_breakers(self) -> list[str]:
        ...
    @dry_sequence_breakers.setter
    def dry_sequence_breakers(self, arg0: collections.abc.Sequence[str]) -> None:
        ...
    @property
    def dynatemp_exponent(self) -> float:
        ...
    @dynatemp_exponent.setter
    def dynatemp_exponent(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def dynatemp_range(self) -> float:
        ...
    @dynatemp_range.setter
    def dynatemp_range(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def frequency_penalty(self) -> float:
        ...
    @frequency_penalty.setter
    def frequency_penalty(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def logit_bias(self) -> list[tuple[int, float]]:
        ...
    @logit_bias.setter
    def logit_bias(self, arg0: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]) -> None:
        ...
    @property
    def logprobs(self) -> int:
        """
        -1: none.
        """
    @logprobs.setter
    def logprobs(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def max_tokens(self) -> int:
        ...
    @max_tokens.setter
    def max_tokens(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def min_p(self) -> float:
        ...
    @min_p.setter
    def min_p(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def mirostat(self) -> int:
        ...
    @mirostat.setter
    def mirostat(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def mirostat_eta(self) -> float:
        ...
    @mirostat_eta.setter
    def mirostat_eta(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def mirostat_tau(self) -> float:
        ...
    @mirostat_tau.setter
    def mirostat_tau(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def penalty_last_n(self) -> int:
        ...
    @penalty_last_n.setter
    def penalty_last_n(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def presence_penalty(self) -> float:
        ...
    @presence_penalty.setter
    def presence_penalty(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def repetition_penalty(self) -> float:
        ...
    @repetition_penalty.setter
    def repetition_penalty(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def seed(self) -> int:
        ...
    @seed.setter
    def seed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def stop(self) -> list[str]:
        ...
    @stop.setter
    def stop(self, arg0: collections.abc.Sequence[str]) -> None:
        ...
    @property
    def stop_token_ids(self) -> list[int]:
        ...
    @stop_token_ids.setter
    def stop_token_ids(self, arg0: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    @property
    def temperature(self) -> float:
        ...
    @temperature.setter
    def temperature(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def top_k(self) -> int:
        ...
    @top_k.setter
    def top_k(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def top_n_sigma(self) -> float:
        ...
    @top_n_sigma.setter
    def top_n_sigma(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def top_p(self) -> float:
        ...
    @top_p.setter
    def top_p(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def typical_p(self) -> float:
        ...
    @typical_p.setter
    def typical_p(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def xtc_probability(self) -> float:
        ...
    @xtc_probability.setter
    def xtc_probability(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def xtc_threshold(self) -> float:
        ...
    @xtc_threshold.setter
    def xtc_threshold(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class Stats:
    """
    Counts and times of one request or of an engine.
    """
    @property
    def accepted_per_position(self) -> list[int]:
        ...
    @property
    def accepted_tokens(self) -> int:
        ...
    @property
    def cached_tokens(self) -> int:
        ...
    @property
    def depth_histogram(self) -> list[int]:
        ...
    @property
    def draft_ms(self) -> list[tuple[int, float]]:
        ...
    @property
    def draft_seconds(self) -> float:
        ...
    @property
    def draft_tokens(self) -> int:
        ...
    @property
    def fused_ops(self) -> str:
        ...
    @property
    def generated_tokens(self) -> int:
        ...
    @property
    def generation_seconds(self) -> float:
        ...
    @property
    def inject_seconds(self) -> float:
        ...
    @property
    def prompt_seconds(self) -> float:
        ...
    @property
    def prompt_tokens(self) -> int:
        ...
    @property
    def sample_seconds(self) -> float:
        ...
    @property
    def verify_ms(self) -> list[tuple[int, float]]:
        """
        (rows of the decode, ms), ascending; in a total only.
        """
    @property
    def verify_rule(self) -> str:
        ...
    @property
    def verify_seconds(self) -> float:
        ...
    @property
    def verify_steps(self) -> int:
        ...
class Cycle:
    """
    One draft-verify cycle of one sequence.
    """
    @property
    def depth(self) -> int:
        ...
    @property
    def draft(self) -> list[int]:
        ...
    @property
    def n_accepted(self) -> int:
        ...
    @property
    def position(self) -> int:
        ...
    @property
    def token(self) -> int:
        ...
class TokenLogprobs:
    """
    Log-probabilities at the position of one token.
    """
    @property
    def logprob(self) -> float:
        ...
    @property
    def token(self) -> int:
        ...
    @property
    def top(self) -> list[tuple[int, float]]:
        ...
class Chunk:
    """
    What one step gave one request.
    """
    @property
    def cycle(self) -> Cycle | None:
        ...
    @property
    def finish_reason(self) -> str:
        ...
    @property
    def logprobs(self) -> list[TokenLogprobs]:
        ...
    @property
    def n_accepted(self) -> int:
        ...
    @property
    def request_id(self) -> int:
        ...
    @property
    def stats(self) -> Stats | None:
        ...
    @property
    def text(self) -> str:
        ...
    @property
    def token_ids(self) -> list[int]:
        ...
class ChatPrompt:
    """
    A conversation rendered by the target's chat template.
    """
    @property
    def stop(self) -> list[str]:
        ...
    @property
    def text(self) -> str:
        ...
class Engine:
    """
    A loaded target with its drafter. Not thread-safe: callers serialise.
    """
    def __init__(self, options: EngineOptions) -> None:
        ...
    def apply_chat_template(self, messages: str, kwargs: str) -> ChatPrompt:
        """
        Both arguments are JSON: an array of messages, an object of template variables.
        """
    def cancel(self, request_id: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Ends a request; its last chunk comes with the next step.
        """
    def detokenize(self, tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> bytes:
        ...
    def draft_lattice(self, features: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], anchor: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.float32]]:
        """
        Drafts one block after the given target features, outside of any request.
        
        Args:
            features: [n_tokens, n_taps * n_embd], row i at position i.
            anchor: The token at position n_tokens.
        
        Returns:
            Candidate ids [slots, K] and scores [slots, K predecessors, K candidates].
        """
    def reset_stats(self) -> None:
        ...
    def stats(self) -> Stats:
        """
        Totals since opening or reset_stats().
        """
    def step(self) -> list[Chunk]:
        """
        Advances all requests by one cycle.
        """
    def submit(self, prompt: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], sampling: SamplingOptions) -> int:
        """
        Queues a request and returns its id.
        """
    def tokenize(self, text: str, add_special: bool) -> list[int]:
        ...
    @property
    def block_size(self) -> int:
        """
        Of the drafter, anchor included; 0 without one.
        """
    @property
    def depth(self) -> int:
        """
        Most draft tokens per cycle; 0 without a drafter.
        """
    @property
    def devices(self) -> list[str]:
        """
        Names of the devices that hold the target.
        """
    @property
    def mask_token(self) -> int:
        """
        Of the drafter; -1 without one.
        """
    @property
    def n_active(self) -> int:
        """
        Requests queued or running.
        """
    @property
    def n_ctx(self) -> int:
        """
        Tokens one sequence may hold.
        """
    @property
    def n_parallel(self) -> int:
        ...
    @property
    def n_vocab(self) -> int:
        ...
    @property
    def tap_layers(self) -> list[int]:
        """
        0-based target layers whose output the drafter reads.
        """
class Device:
    """
    A device that ggml can compute on.
    """
    @property
    def backend(self) -> str:
        ...
    @property
    def description(self) -> str:
        ...
    @property
    def fused_ops(self) -> str:
        """
        How the DFlash 2 ops run there: fused or composed.
        """
    @property
    def memory_free(self) -> int:
        """
        Bytes; 0: unknown.
        """
    @property
    def memory_total(self) -> int:
        """
        Bytes; 0: unknown.
        """
    @property
    def name(self) -> str:
        ...
def cpu_features() -> list[str]:
    """
    Instruction sets that ggml was built for.
    """
def devices() -> list[Device]:
    ...
def drain_log() -> list[tuple[int, str]]:
    """
    Lines logged since the last call, each with its level of `logging`.
    """
def llama_cpp_commit() -> str:
    """
    40 hex digits.
    """
def llama_cpp_version() -> str:
    """
    Of the package that llama.cpp was taken from.
    """
def load_backends(directory: str) -> None:
    """
    Loads backends that were built as plugins.
    """
