"""The packaged llama-server, drafting as stock llama.cpp does: the peer of tests and benchmarks."""

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash2.programs import program_path

Conversation = list[dict[str, str]]


@contextmanager
def stock_server(
    target: Path, drafter: Path | None, n_max: int = 7, options: Sequence[str] = ()
) -> Iterator[str]:
    """Runs the server and gives its address; `drafter` None: plain decoding."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program_path("llama-server"), "-m", target, "-c", "2048", "--parallel", "1"]
    command += ["--port", str(port), *options]
    if drafter is not None:
        command += ["--spec-type", "draft-dflash", "--spec-draft-model", drafter]
        command += ["--spec-draft-n-max", str(n_max)]
    address = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen([*map(str, command)], stdout=log, stderr=subprocess.STDOUT) as server,
    ):
        try:
            _wait(server, address)
            yield address
        except TimeoutError as error:
            log.seek(0)
            raise RuntimeError(log.read()) from error
        finally:
            server.terminate()


def ask(
    address: str, conversation: Conversation, max_tokens: int, **sampling: float
) -> dict[str, Any]:
    """One answer with the server's timings; greedy without `sampling`, fields of the request."""
    body = {"messages": conversation, "temperature": 0, "max_tokens": max_tokens}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body | {"cache_prompt": False} | sampling).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def _wait(server: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(600):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    message = "llama-server did not come up"
    raise TimeoutError(message)
