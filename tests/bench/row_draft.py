"""The draft pass on fused ops, against one without them and against llama.cpp's own graph."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from cells import Cell, Setting
from dflash2 import Dflash2Engine, SamplingParams
from dflash2.options import DraftHead, FusedOps
from large_pairs import QWEN3_4B, SMALL, write_plain_drafter, write_random_pair
from turns import Contender, Turn, engine_contender, take_turns

DEPTH = 7
# as many as tell passes apart that differ by a percent, where single ones scatter by ten
REPEATS_OF_TWO = 100
REPEATS = 25


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
        contenders = {
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
        }
        names = ("plain", "fused")
        two = _turns(setting, {name: contenders[name] for name in names}, REPEATS_OF_TWO)
        del contenders["plain"]
        turns = _turns(setting, contenders, REPEATS)
    yield _ratio(
        "DFlash 2 draft pass over one of DFlash 1", two["fused"], two["plain"], at_most=1.03
    )
    extra = [
        1 + (fused.draft_ms - plain.draft_ms) * plain.draft_steps / (1e3 * plain.seconds)
        for fused, plain in zip(two["fused"], two["plain"], strict=True)
    ]
    yield Cell(
        "draft",
        "the same, over the whole cycle of draft and verification",
        statistics.median(extra),
        "x",
        (min(extra), max(extra)),
        at_most=1.013,
        details={"cycle_ms": [turn.cycle_ms for turn in two["plain"]]},
    )
    yield _ratio("the pass, both with a copied head", turns["ours"], turns["plain, copied head"])
    yield _ratio(
        "draft pass of llama.cpp's graph over ours", turns["upstream"], turns["ours"], at_least=1.1
    )
    yield _ratio("the same, both with the target's head", turns["upstream"], turns["fused"])
    yield _ratio("composed draft pass over fused", turns["composed"], turns["fused"])


def _turns(
    setting: Setting, contenders: Mapping[str, Contender], repeats: int
) -> dict[str, list[Turn]]:
    return take_turns(
        contenders,
        [[list(b"some prompt")]],
        # short turns: what is compared are neighbours in time, on a machine whose speed drifts
        n_tokens=4,
        repeats=1 if setting.quick else repeats,
    )


def _ratio(
    name: str,
    above: list[Turn],
    below: list[Turn],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Cell:
    above_ms, below_ms = ([turn.draft_ms for turn in turns] for turns in (above, below))
    ratios = [a / b for a, b in zip(above_ms, below_ms, strict=True)]
    medians = statistics.median(above_ms), statistics.median(below_ms)
    return Cell(
        "draft",
        f"{name}: {medians[0]:.1f} / {medians[1]:.1f} ms",
        medians[0] / medians[1],
        "x",
        (min(ratios), max(ratios)),
        at_least=at_least,
        at_most=at_most,
        details={"above_ms": above_ms, "below_ms": below_ms},
    )
