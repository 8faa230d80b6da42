import numpy as np
from numpy.typing import NDArray

# DRAFT: replaced by pybind11-stubgen's output once the module builds
class Dflash2Error(RuntimeError): ...
class ModelLoadError(Dflash2Error): ...
class ModelMismatchError(Dflash2Error): ...

# FileNotFound -> builtin FileNotFoundError; std::invalid_argument -> ValueError

__llama_cpp_commit__: str
__llama_cpp_version__: str

class EngineOptions:
    model: str
    draft: str
    n_ctx: int
    n_batch: int
    n_gpu_layers: int
    n_threads: int
    n_parallel: int
    device: str
    flash_attn: str
    depth: int
    verify: str
    cache_type: str
    rpc: str
    def __init__(self) -> None: ...

class SamplingOptions:
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    seed: int
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int
    logit_bias: list[tuple[int, float]]
    grammar: str
    json_schema: str
    trace: bool
    def __init__(self) -> None: ...

class Stats:
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: list[int]
    depth_histogram: list[int]
    verify_rule: str
    fused_ops: str
    prompt_seconds: float
    draft_seconds: float
    inject_seconds: float
    verify_seconds: float
    sample_seconds: float
    generation_seconds: float
    # all read-only; no derived values: Python's dataclass computes them

class Cycle:
    position: int
    depth: int
    draft: list[int]
    n_accepted: int
    token: int

class TokenLogprobs:
    token: int
    logprob: float
    top: list[tuple[int, float]]

class Chunk:
    request_id: int
    text: str
    token_ids: list[int]
    n_accepted: int
    logprobs: list[TokenLogprobs]
    cycle: Cycle | None
    finish_reason: str
    stats: Stats | None

class ChatPrompt:
    text: str
    stop: list[str]

class Engine:
    def __init__(self, options: EngineOptions) -> None: ...
    def submit(self, prompt: list[int], sampling: SamplingOptions) -> int: ...
    def step(self) -> list[Chunk]: ...          # releases the GIL
    def cancel(self, request_id: int) -> None: ...
    def tokenize(self, text: str, add_special: bool) -> list[int]: ...
    def detokenize(self, tokens: list[int]) -> bytes: ...
    def apply_chat_template(self, messages: str, kwargs: str) -> ChatPrompt: ...
    # Drafts one block after the given target features, outside of any request (refused with ValueError while requests
    # run, or without a drafter). features: float32 [n_tokens, n_taps * n_embd], position i = row i; anchor: token at
    # position n_tokens. Returns (ids int32 [slots, K], scores float32 [slots, K predecessors, K candidates]).
    def draft_lattice(self, features: NDArray[np.float32], anchor: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    def stats(self) -> Stats: ...
    def reset_stats(self) -> None: ...
    n_active: int          # read-only properties from here on
    n_ctx: int
    n_parallel: int
    n_vocab: int
    block_size: int
    depth: int
    mask_token: int
    tap_layers: list[int]
    devices: list[str]

class Device:
    name: str
    description: str
    backend: str
    memory_free: int
    memory_total: int
    fused_ops: str

def load_backends(directory: str) -> None: ...
def devices() -> list[Device]: ...
def cpu_features() -> list[str]: ...
def drain_log() -> list[tuple[int, str]]: ...   # (Python logging level, line)
