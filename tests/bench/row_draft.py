"""The draft pass on fused ops, against one without them and against llama.cpp's own graph."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

from cells import Cell, Setting
from dflash2 import Dflash2Engine, SamplingParams
from dflash2.options import DraftHead, FusedOps
from large_pairs import QWEN3_4B, SMALL, write_plain_drafter, write_random_pair
from turns import Turn, engine_contender, take_turns

DEPTH = 7


def cells(setting: Setting) -> Iterator[Cell]:
    shape = SMALL if setting.quick else QWEN3_4B
    pair = write_random_pair(setting.folder, shape)
    plain = write_plain_drafter(setting.folder, shape)
    # graph and head: what DFlash 2 adds to DFlash 1 is told with the target's head, as stock has it
    graphs: dict[str, tuple[FusedOps, DraftHead]] = {
        "plain": ("fused", "target"),
        "fused": ("fused", "target"),
        "plain, copied head": ("fused", "q4_0"),
        "ours": ("auto", "auto"),
        "upstream": ("upstream", "target"),
        "composed": ("composed", "target"),
    }
    with ExitStack() as stack:
        turns = take_turns(
            {
                name: engine_contender(
                    stack.enter_context(
                        Dflash2Engine(
                            pair.target,
                            plain if name.startswith("plain") else pair.drafter,
                            depth=DEPTH,
                            fused_ops=fused_ops,
                            draft_head=head,
                            n_ctx=512,
                            n_threads=setting.n_threads,
                        )
                    ),
                    SamplingParams(),
                )
                for name, (fused_ops, head) in graphs.items()
            },
            [[list(b"some prompt")]],
            # short turns: what is compared are neighbours in time, on a machine whose speed drifts
            n_tokens=4,
            repeats=1 if setting.quick else 25,
        )
    draft = {name: [_draft_ms(turn) for turn in of] for name, of in turns.items()}
    cycle = [turn.cycle_ms for turn in turns["plain"]]
    extra = [
        1 + (ours - plain) / whole
        for ours, plain, whole in zip(draft["fused"], draft["plain"], cycle, strict=True)
    ]
    yield _ratio(
        "DFlash 2 draft pass over one of DFlash 1", draft["fused"], draft["plain"], at_most=1.03
    )
    yield Cell(
        "draft",
        "the same, over the whole cycle of draft and verification",
        statistics.median(extra),
        "x",
        (min(extra), max(extra)),
        at_most=1.013,
        details={"cycle_ms": cycle},
    )
    yield _ratio("the pass, both with a copied head", draft["ours"], draft["plain, copied head"])
    yield _ratio(
        "draft pass of llama.cpp's graph over ours", draft["upstream"], draft["ours"], at_least=1.1
    )
    yield _ratio("the same, both with the target's head", draft["upstream"], draft["fused"])
    yield _ratio("composed draft pass over fused", draft["composed"], draft["fused"])


def _draft_ms(turn: Turn) -> float:
    return 1e3 * turn.draft_seconds / turn.steps


def _ratio(
    name: str,
    above: list[float],
    below: list[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Cell:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return Cell(
        "draft",
        f"{name}: {statistics.median(above):.1f} / {statistics.median(below):.1f} ms",
        statistics.median(ratios),
        "x",
        (min(ratios), max(ratios)),
        at_least=at_least,
        at_most=at_most,
        details={"above_ms": above, "below_ms": below},
    )
