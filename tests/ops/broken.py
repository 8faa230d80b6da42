"""Calls that break the contract, each in a process that it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

_SETUP = """
import numpy as np
from ops.ggml import Graph
graph = Graph()
def f32(*shape):
    return graph.tensor(np.zeros(shape, np.float32))
def i32(*shape):
    return graph.tensor(np.zeros(shape, np.int32))
"""


def message_of(call: str) -> str:
    """The line with which ggml ends the process that makes `call`."""
    child = subprocess.run(
        [sys.executable, "-c", _SETUP + call],
        env=os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGABRT, child.stderr
    # file:line: message
    return child.stderr.splitlines()[0].split(": ", 1)[1]
