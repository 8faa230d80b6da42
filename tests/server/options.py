"""Command lines of the servers under test."""

from pathlib import Path


def exact(n_slots: int = 1, n_ctx: int = 1024) -> list[object]:
    """One thread and F32 throughout: a row does not hang on the rows it is computed with.

    Args:
        n_ctx: Of each slot.
    """
    options: list[object] = ["-np", n_slots, "-c", n_slots * n_ctx, "-t", 1, "-tb", 1]
    # flash attention on a CPU rounds even an F32 cache
    return [*options, "-fa", "off", "-ctk", "f32", "-ctv", "f32"]


def drafting(drafter: Path | None, depth: int | str = 7) -> list[object]:
    """A fixed depth by default: what a test counts must not hang on how fast the machine is."""
    if drafter is None:
        return []
    types = ["-ctkd", "f32", "-ctvd", "f32"]
    return ["--draft-dflash2", drafter, "--dflash2-depth", depth, *types]
