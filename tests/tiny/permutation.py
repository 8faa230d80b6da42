"""Pairs of known acceptance: the target's next token follows from the last one.

Target. Embeddings are unit vectors. While the layers add nothing (`context_weight` 0), the last
hidden row is sqrt(n_embd) times the unit vector of the input token, and the head sends it to
`next_token`.

Drafter. Its layers add nothing: every slot's hidden row is that of the mask token, for which the
head gives the 16 live tokens the largest logits. They are the candidates of every slot; which one
is chosen is left to the selector, whose pair score lifts the successor of the predecessor over
everything else. The walk hence follows `next_token` from the anchor on, and every slot is
accepted. With another successor function, different for every token, slot 0 is rejected in every
cycle.

With a `context_weight` above 0 the target's layers, and so all that came before, overrule
`next_token` now and then: every accepted length occurs.
"""

from pathlib import Path

import numpy as np

from tiny.drafter import convolutions, dflash2_metadata, drafter_layer, drafter_metadata
from tiny.target import N_EMBD, write_last_token_target
from tiny.vocabulary import MASK
from tiny.writing import Pair, write_model

LIVE_TOKENS = list(b"abcdefghijklmnop")
_N_LIVE = len(LIVE_TOKENS)  # also K and the rank of the selector
_N_VOCAB = 272  # at most n_embd: one dimension per token


def next_token(token: int) -> int:
    """What the target says after `token`: the next live letter, the first one after the last."""
    if token == MASK:
        return LIVE_TOKENS[-1]
    return LIVE_TOKENS[(token - LIVE_TOKENS[0] + 1) % _N_LIVE]


def write_permutation_pair(
    folder: Path,
    *,
    block_size: int = 8,
    scrambled: bool = False,
    hybrid: bool = False,
    context_weight: float = 0.0,
) -> Pair:
    """Writes target and drafter; cycles accept block_size - 1 drafts, or none when `scrambled`.

    Args:
        hybrid: a Qwen3.5 target instead of a Qwen3 one.
        context_weight: of what the target's layers add; 0 for exact acceptance.
    """
    folder.mkdir(exist_ok=True)
    head = np.zeros((_N_VOCAB, N_EMBD), np.float32)
    for token in range(_N_VOCAB):
        head[next_token(token), token] = 1
    # what the drafter's slots see: live tokens far above others, the last letter on top
    head[:, MASK] = -1
    head[LIVE_TOKENS, MASK] = np.linspace(0.5, 0.8, _N_LIVE)
    target = write_last_token_target(
        folder / "target.gguf",
        {
            "token_embd.weight": np.eye(_N_VOCAB, N_EMBD, dtype=np.float32),
            "output_norm.weight": np.ones(N_EMBD, np.float32),
            "output.weight": head,
        },
        hybrid=hybrid,
        context_weight=context_weight,
        seed=4,
    )
    drafter = _write_drafter(
        folder / "drafter.gguf",
        block_size,
        shift=1 if scrambled else 0,
        context_weight=context_weight,
        mrope=hybrid,
    )
    return Pair(target, drafter)


def _write_drafter(
    path: Path, block_size: int, *, shift: int, context_weight: float, mrope: bool
) -> Path:
    rng = np.random.default_rng(5)
    predecessor = np.zeros((_N_VOCAB, _N_LIVE), np.float32)
    for token in range(_N_VOCAB):
        successor = (LIVE_TOKENS.index(next_token(token)) + shift) % _N_LIVE
        # 16: above the spread of the unary logits, 0.3 * sqrt(288)
        predecessor[token, successor] = 16
    successors = np.zeros((_N_VOCAB, _N_LIVE), np.float32)
    successors[LIVE_TOKENS] = np.eye(_N_LIVE)
    gate = np.zeros((_N_LIVE, N_EMBD), np.float32)
    gate[:, MASK] = N_EMBD**-0.5
    tensors = {
        "fc.weight": np.eye(N_EMBD, dtype=np.float32),
        "enc.output_norm.weight": np.ones(N_EMBD, np.float32),
        "output_norm.weight": np.ones(N_EMBD, np.float32),
        "selector_predecessor.weight": predecessor,
        "selector_successor.weight": successors,
        "selector_hidden.weight": gate,
        **drafter_layer(rng, "blk.0", output_scale=context_weight),
        **convolutions(rng, "blk.0", n_tap=2, group=16),
    }
    metadata = drafter_metadata(1, block_size, tap_layers=[0]) | dflash2_metadata(
        n_tap=2, group=16, rank=_N_LIVE, top_k=_N_LIVE
    )
    if mrope:
        metadata[".rope.dimension_sections"] = [metadata[".attention.key_length"] // 2, 0, 0, 0]
    return write_model(path, "dflash", metadata, tensors, _N_VOCAB)
