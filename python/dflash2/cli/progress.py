"""A progress bar on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

_BAR = 30
_REDRAW_SECONDS = 0.1


class ProgressBar:
    """Shows how much of a number of bytes is done; silent where stderr is no terminal."""

    def __init__(self, total: int) -> None:
        """Starts the clock; `total` is in bytes."""
        self._total = total
        self._done = 0
        self._start = time.perf_counter()
        self._drawn = 0.0
        self._shown = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        if self._shown and self._drawn:
            blank = " " * (shutil.get_terminal_size().columns - 1)
            print(f"\r{blank}\r", end="", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self._start

    def add(self, n_bytes: int) -> None:
        """Count bytes as done, and draw the bar now and then."""
        self._done += n_bytes
        if not self._shown or self.seconds - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = self.seconds
        share = min(1.0, self._done / max(1, self._total))
        bar = ("#" * round(share * _BAR)).ljust(_BAR, "-")
        speed = self._done / 1e6 / self.seconds
        print(f"\r[{bar}] {share:4.0%} {speed:5.0f} MB/s", end="", file=sys.stderr, flush=True)
