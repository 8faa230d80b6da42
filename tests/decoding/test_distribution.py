"""Sampled text with a drafter follows the law of decoding without one, through the whole engine."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2 import Dflash2Engine, SamplingParams, _core
from dflash2.native import sampling_options
from numpy.typing import NDArray
from tiny import EOS, LIVE_TOKENS, MASK, Pair
from tiny.drafter import dflash2_metadata, drafter_layer
from tiny.sizes import Sizes
from tiny.writing import Array, normal, write_model

N_ANSWERS = 50_000
N_TOKENS = 4  # of each answer
N_PARALLEL = 64
PROMPT = [LIVE_TOKENS[0]]
CHOICES = [*LIVE_TOKENS, EOS]

N_VOCAB = 272
N_CANDIDATES = 7
N_EMBD = 64  # llama.cpp's loader wants K * (K + 1) or more
SIZES = Sizes(N_EMBD, n_ff=32, n_head=2, n_head_kv=1, head_dim=16)
N_LAYER = 2

Open = Callable[..., Dflash2Engine]
Counts = NDArray[np.float64]  # [choices] * N_TOKENS

SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0, max_tokens=N_TOKENS),
    "mixed": SamplingParams(
        temperature=0.8,
        top_k=10,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        max_tokens=N_TOKENS,
    ),
    "grammar": SamplingParams(
        temperature=1.0, grammar="root ::= [a-h] [e-p] [c-k]*", max_tokens=N_TOKENS
    ),
}
DEPTHS: dict[str, dict[str, Any]] = {
    "fixed": {"depth": 3},
    "auto": {"depth": "auto"},
    "p_min": {"depth": 3, "p_min": 0.5},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target that wavers between 17 tokens, and a drafter that knows half of it.

    The next token depends on the last one by a table, and on all others through a random layer; the
    selector's pair scores are the table with noise. Narrow, because the engine's own time counts.
    """
    folder = tmp_path_factory.mktemp("wavering")
    rng = np.random.default_rng(7)
    table = normal(rng, len(CHOICES), len(CHOICES), std=1.5)
    table[:, -1 - N_CANDIDATES : -1] += 1.5
    # one dimension for each choice, one for the mask, and the last one for all of them: it keeps
    # what is no choice away
    mask = len(CHOICES)
    embedding = np.zeros((N_VOCAB, N_EMBD), np.float32)
    embedding[CHOICES, range(mask)] = 1
    embedding[MASK, mask] = 1
    embedding[[*CHOICES, MASK], -1] = 1
    head = np.zeros((N_VOCAB, N_EMBD), np.float32)
    head[:, -1] = -40
    head[CHOICES, -1] = 0
    head[CHOICES, :mask] = table.T
    # what the drafter's slots see: the last letters are the candidates
    head[LIVE_TOKENS, mask] = np.linspace(0, 1, len(LIVE_TOKENS))
    head *= (N_EMBD / 2) ** -0.5  # the norm before it scales by the inverse
    layers: dict[str, Array] = {}
    for index in range(N_LAYER):
        layers |= drafter_layer(rng, f"blk.{index}", 0.03, SIZES)
    target = write_model(
        folder / "target.gguf",
        "qwen3",
        SIZES.metadata(N_LAYER, n_ctx=128),
        {
            "token_embd.weight": embedding,
            "output_norm.weight": np.ones(N_EMBD, np.float32),
            "output.weight": head,
            **layers,
        },
        N_VOCAB,
    )
    return Pair(target, _write_drafter(folder / "drafter.gguf", rng, table))


def _write_drafter(path: Path, rng: np.random.Generator, table: Array) -> Path:
    rank = len(LIVE_TOKENS)
    predecessor = np.zeros((N_VOCAB, rank), np.float32)
    successor = np.zeros((N_VOCAB, rank), np.float32)
    successor[LIVE_TOKENS] = np.eye(rank)
    for index, token in enumerate(CHOICES):
        predecessor[token] = table[index, :rank] + normal(rng, rank, std=0.7)
    # the mask's unit vector opens every gate
    gate = np.zeros((rank, N_EMBD), np.float32)
    gate[:, len(CHOICES)] = (N_EMBD / 2) ** -0.5
    identity = np.zeros((2, 2, N_EMBD), np.float32)
    identity[:, 0] = 1
    tensors = {
        "fc.weight": np.eye(N_EMBD, dtype=np.float32),
        "enc.output_norm.weight": np.ones(N_EMBD, np.float32),
        "output_norm.weight": np.ones(N_EMBD, np.float32),
        "selector_predecessor.weight": predecessor,
        "selector_successor.weight": successor,
        "selector_hidden.weight": gate,
        **drafter_layer(rng, "blk.0", 0.02, SIZES),
    }
    for name in ("blk.0.attn_conv", "blk.0.ffn_conv"):
        tensors[f"{name}_base"] = identity
        tensors[f"{name}_proj.weight"] = np.zeros((2 * 2 * N_EMBD // 16, N_EMBD), np.float32)
    metadata = SIZES.metadata(1, n_ctx=128) | dflash2_metadata(
        n_tap=2, group=16, rank=rank, top_k=N_CANDIDATES
    )
    metadata |= {
        ".target_layers": [1],
        ".block_size": 8,
        "tokenizer.ggml.mask_token_id": MASK,
    }
    return write_model(path, "dflash", metadata, tensors, N_VOCAB)


@pytest.fixture(scope="module")
def reference(pair: Pair) -> Callable[[str], Counts]:
    """What decoding without a drafter gives, by name of the sampling; drawn once."""
    drawn: dict[str, Counts] = {}

    def draw_(sampling: str) -> Counts:
        if sampling not in drawn:
            # the seeds of no other run
            drawn[sampling], _ = draw(pair.target, None, SAMPLINGS[sampling], first_seed=10**6)
        return drawn[sampling]

    return draw_


def draw(
    target: Path,
    drafter: Path | None,
    params: SamplingParams,
    *,
    first_seed: int = 0,
    depth: int | str = 3,
    p_min: float = 0.0,
    verify: str = "reject",
) -> tuple[Counts, _core.Stats]:
    """Counts the answers of requests with different seeds; their end fills the rest of them."""
    options = _core.EngineOptions()
    options.model = str(target)
    options.draft = str(drafter or "")
    options.depth = -1 if depth == "auto" else int(depth)
    options.p_min = p_min
    options.verify = verify
    options.n_ctx = 32
    options.n_parallel = N_PARALLEL
    options.n_threads = 1
    options.device = "cpu"
    options.cache_type = "f32"
    options.flash_attn = "off"
    engine = _core.Engine(options)
    sampling = sampling_options(params)
    index = {token: i for i, token in enumerate(CHOICES)}
    answers = np.full((N_ANSWERS, N_TOKENS), index[EOS])
    places: dict[int, tuple[int, int]] = {}  # row and length of what is running
    n_submitted = n_left = N_ANSWERS
    while n_left:
        while n_submitted and engine.n_active < N_PARALLEL:
            n_submitted -= 1
            sampling.seed = first_seed + n_submitted
            places[engine.submit(PROMPT, sampling)] = (n_submitted, 0)
        for chunk in engine.step():
            row, length = places[chunk.request_id]
            for token in chunk.token_ids:
                answers[row, length] = index[token]
                length += 1
            places[chunk.request_id] = (row, length)
            if chunk.finish_reason:
                n_left -= 1
    shape = (len(CHOICES),) * N_TOKENS
    cells = np.ravel_multi_index(tuple(answers.T), shape)
    counts = np.bincount(cells, minlength=math.prod(shape)).astype(np.float64)
    return counts.reshape(shape), engine.stats()


def smallest_p_value(ours: Counts, theirs: Counts) -> float:
    """Of two-sample chi-square tests on all runs of adjacent tokens, times the number of tests."""
    p_values = []
    for first in range(N_TOKENS):
        for end in range(first + 1, N_TOKENS + 1):
            others = tuple(axis for axis in range(N_TOKENS) if not first <= axis < end)
            p_values.append(_chi_square(ours.sum(axis=others), theirs.sum(axis=others)))
    return min(1.0, min(p_values) * len(p_values))


def _chi_square(ours: Counts, theirs: Counts) -> float:
    ours, theirs = ours.ravel(), theirs.ravel()
    rare = ours + theirs < 10  # less than 5 expected of each: together one cell
    ours = np.append(ours[~rare], ours[rare].sum())
    theirs = np.append(theirs[~rare], theirs[rare].sum())
    used = ours + theirs > 0
    statistic = float((((ours - theirs) ** 2)[used] / (ours + theirs)[used]).sum())
    freedom = int(used.sum()) - 1
    # Wilson and Hilferty's cube root
    variance = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - variance)) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "verify", "depth"),
    [
        ("plain", "reject", "fixed"),
        ("plain", "reject", "auto"),
        ("plain", "reject", "p_min"),
        ("plain", "block", "fixed"),
        ("mixed", "reject", "fixed"),
        ("mixed", "block", "auto"),
        ("mixed", "block", "p_min"),
        ("grammar", "reject", "fixed"),
    ],
)
def test_text_follows_the_law_of_the_target(
    pair: Pair,
    reference: Callable[[str], Counts],
    report: Callable[[str], None],
    sampling: str,
    verify: str,
    depth: str,
) -> None:
    counts, stats = draw(*pair, SAMPLINGS[sampling], verify=verify, **DEPTHS[depth])
    assert stats.verify_rule == verify
    assert stats.draft_tokens > 0
    if depth != "auto":  # which on a pair as small as this finds little worth drafting
        assert 0.2 < stats.accepted_tokens / stats.draft_tokens < 0.8
    p_value = smallest_p_value(counts, reference(sampling))
    report(
        f"{sampling}, {verify}, depth {depth}: p-value {p_value:.2g}, {stats.accepted_tokens} of "
        f"{stats.draft_tokens} drafts kept in {stats.verify_steps} cycles"
    )
    assert p_value > 1e-6


@pytest.mark.slow
def test_the_test_sees_a_slightly_different_law(
    pair: Pair, reference: Callable[[str], Counts]
) -> None:
    warmer = SamplingParams(temperature=1.06, max_tokens=N_TOKENS)
    counts, _ = draw(pair.target, None, warmer)
    assert smallest_p_value(counts, reference("plain")) < 1e-6


@pytest.mark.parametrize("verify", ["reject", "block", "match"])
def test_seeds_repeat_the_text(open_engine: Open, pair: Pair, verify: str) -> None:
    engine = open_engine(*pair, verify=verify, depth=3, n_parallel=4, n_ctx=128)
    prompts = ["abc", "b", "aaaa", "fedcba"]
    texts = []
    for seed in (1, 1, 2):
        params = SamplingParams(temperature=1.0, max_tokens=30, seed=seed, ignore_eos=True)
        answers = engine.generate(prompts, params)
        assert {answer.stats.verify_rule for answer in answers} == {verify}
        texts.append([answer.token_ids for answer in answers])
    assert texts[0] == texts[1]
    assert all(one != other for one, other in zip(texts[0], texts[2], strict=True))


@pytest.mark.parametrize(
    ("params", "rule"),
    [
        (SamplingParams(temperature=1.0, mirostat=2), "match"),
        (SamplingParams(temperature=0.0), "match"),
        (SamplingParams(temperature=1.0, xtc_probability=0.5), "reject"),
        (SamplingParams(temperature=1.0, grammar="root ::= [a-p]+"), "reject"),
        (SamplingParams(temperature=1.0, top_k=5, repetition_penalty=1.1), "block"),
    ],
)
def test_stats_name_the_rule_that_ran(
    open_engine: Open, pair: Pair, params: SamplingParams, rule: str
) -> None:
    engine = open_engine(*pair, verify="block", depth=3, n_parallel=4, n_ctx=128)
    assert engine.generate("abc", params).stats.verify_rule == rule
