"""Shares one native engine between streams, calls and threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import chain, count
from operator import methodcaller
from typing import TypeVar

from dflash2 import _core
from dflash2.errors import Dflash2Error, EngineClosedError
from dflash2.native import discard_log, forward_log

_T = TypeVar("_T")
_step = methodcaller("step")

_HAND_OVER_SECONDS = 1e-4
_HAND_OVERS = 50


class Scheduler:
    """Runs requests on a native engine, which is not thread-safe and steps all requests together.

    Whoever waits for a chunk steps the engine, and chunks of other requests are kept for those who
    wait for them. The lock goes to whoever asks first after its release, which would always be the
    thread that steps: so every thread notes that it waits, and gives way to those that do.

    Ctrl-C is raised between two bytecodes. So the lock is taken by `with` only, and what the engine
    returns is stored by the same C call that asks for it: no lock stays taken, and no chunk or
    request of anybody gets lost.
    """

    def __init__(self, native: _core.Engine) -> None:
        """Take over `native`, which must not be used elsewhere from now on."""
        self._native: _core.Engine | None = native
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: set[int] = set()
        self._live: set[int] = set()
        self._arrived: list[_core.Chunk] = []
        self._failures: dict[int, Exception] = {}
        # a deque: an abandoned stream may be collected inside a locked region, so its end only
        # leaves a note here
        self._abandoned: deque[int] = deque()

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._native is None

    def call(self, operation: Callable[[_core.Engine], _T]) -> _T:
        """Return `operation` of the engine, run between two steps."""
        self._check_process()
        self._queue()
        with self._lock:
            self._waiting.discard(threading.get_ident())
            return operation(self._engine())

    def run(
        self, prompts: Sequence[list[int]], samplings: Sequence[_core.SamplingOptions]
    ) -> Generator[tuple[int, _core.Chunk], None, None]:
        """Yield (index of the prompt, chunk) until all prompts are answered.

        Closing the iterator, or an error, cancels what is left.
        """
        self._check_process()
        waiting: dict[int, int] = {}
        try:
            self._submit(prompts, samplings, waiting)
            while waiting:
                chunk = self._next(waiting)
                index = waiting[chunk.request_id]
                if chunk.finish_reason:
                    del waiting[chunk.request_id]
                yield index, chunk
        finally:
            self._abandoned.extend(waiting)

    def close(self) -> None:
        """Free the engine once a running step has ended; does nothing the second time."""
        self._queue()
        with self._lock:
            self._waiting.discard(threading.get_ident())
            self._native = None
            self._arrived.clear()
        forward_log()

    def _queue(self) -> None:
        """Note that this thread wants the lock, once one of those that want it has got it.

        Only for a while: Ctrl-C may have ended the wait of one that is still noted.
        """
        others = self._waiting - {threading.get_ident()}
        for _ in range(_HAND_OVERS):
            if not others or not others <= self._waiting:
                break
            time.sleep(_HAND_OVER_SECONDS)
        self._waiting.add(threading.get_ident())

    def _submit(
        self,
        prompts: Sequence[list[int]],
        samplings: Sequence[_core.SamplingOptions],
        waiting: dict[int, int],
    ) -> None:
        self._queue()
        with self._lock:
            self._waiting.discard(threading.get_ident())
            engine = self._engine()
            self._drop_abandoned(engine)
            try:
                waiting.update(zip(map(engine.submit, prompts, samplings), count()))
            except ValueError as error:
                if len(prompts) == 1:
                    raise
                msg = f"prompt {len(waiting)} of {len(prompts)}, counted from 0: {error}"
                raise ValueError(msg) from error
            self._live.update(waiting)

    def _next(self, waiting: Mapping[int, int]) -> _core.Chunk:
        while True:
            self._queue()
            with self._lock:
                self._waiting.discard(threading.get_ident())
                chunk = self._take(waiting)
                if chunk is None:
                    self._advance()
                    chunk = self._take(waiting)
            forward_log()
            if chunk is not None:
                return chunk

    def _take(self, waiting: Mapping[int, int]) -> _core.Chunk | None:
        for position, chunk in enumerate(self._arrived):
            if chunk.request_id in waiting:
                if chunk.finish_reason:
                    self._live.discard(chunk.request_id)
                    self._failures.pop(chunk.request_id, None)
                return self._arrived.pop(position)
        for request in self._failures.keys() & waiting.keys():
            error = self._failures[request]
            # a new object: several threads may raise it
            raise type(error)(*error.args) from error
        return None

    def _advance(self) -> None:
        engine = self._engine()
        self._drop_abandoned(engine)
        try:
            self._arrived.extend(chain.from_iterable(map(_step, (engine,))))
        except Exception as error:
            self._fail_all(error)
        except BaseException:
            # Ctrl-C: inside the step, which ended all requests and logged that as an error of its
            # own, or right after it
            if engine.n_active == 0:
                discard_log()
                msg = "[step] the request is lost, because Ctrl-C came during another one"
                self._fail_all(Dflash2Error(msg))
            raise

    def _fail_all(self, error: Exception) -> None:
        self._failures.update(dict.fromkeys(self._live, error))
        self._live.clear()

    def _drop_abandoned(self, engine: _core.Engine) -> None:
        while self._abandoned:
            request = self._abandoned[0]
            engine.cancel(request)
            self._live.discard(request)
            self._failures.pop(request, None)
            self._abandoned.popleft()
        awaited = self._live | self._failures.keys()
        self._arrived[:] = [chunk for chunk in self._arrived if chunk.request_id in awaited]

    def _engine(self) -> _core.Engine:
        if self._native is None:
            msg = "the engine is closed: open a new one"
            raise EngineClosedError(msg)
        return self._native

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            msg = (
                f"the engine belongs to process {self._process} and its threads do not exist in "
                f"this fork of it ({os.getpid()}): open an engine after the fork, or start "
                "processes with the 'spawn' method"
            )
            raise Dflash2Error(msg)
