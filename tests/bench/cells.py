"""What the speculation benchmark prints: one cell per measured number and its bound."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setting:
    """What every row is measured with.

    Attributes:
        folder: For model files, which are kept if they are there already.
        n_threads: None is what engine and server choose.
        quick: Shrinks models, prompts, tokens and repeats until the figures mean nothing.
        n_seeds: Of the acceptance row.
    """

    folder: Path
    n_threads: int | None
    quick: bool
    n_seeds: int


@dataclass(frozen=True)
class Cell:
    """One number.

    Attributes:
        spread: Smallest and largest value of the repeats.
        at_least, at_most: The bounds; None where there is none.
        details: What the number was made from.
    """

    row: str
    name: str
    value: float
    unit: str = ""
    spread: tuple[float, float] | None = None
    at_least: float | None = None
    at_most: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """None without a bound."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}

    def line(self) -> str:
        spread = "" if self.spread is None else f"{self.spread[0]:.2f}..{self.spread[1]:.2f}"
        met = {True: "met", False: "NOT MET", None: ""}[self.met]
        return (
            f"{self.row:11}{self.name:72}{self.value:9.3f}{self.unit:3}{spread:>16}"
            f"{self._bound():>16}  {met}"
        )

    def _bound(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:.3f}..{self.at_most:.3f}"
        if self.at_least is not None:
            return f">= {self.at_least:.2f}"
        return "" if self.at_most is None else f"<= {self.at_most:.2f}"


HEADER = f"{'row':11}{'':72}{'measured':>9}{'':3}{'repeats':>16}{'bound':>16}"
