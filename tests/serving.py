"""Programs of the package that listen on loopback: started, asked, stopped."""

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dflash2.programs import program_path

HOST = "127.0.0.1"
START_SECONDS = 120
# a request that takes longer has a stuck slot
REQUEST_SECONDS = 120
Prompt = str | Sequence[int]


class Reply(NamedTuple):
    status: int
    body: Any


class RefusedError(RuntimeError):
    """An answer that was expected came with another status than 200."""


class Server:
    """A running llama-server.

    Attributes:
        process: Its process.
        port: Where it listens.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def resident_bytes(self) -> int:
        """Raises FileNotFoundError on systems without /proc."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @contextmanager
    def _exchange(
        self, method: str, path: str, body: Any, seconds: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=seconds)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                yield response
        except (ConnectionError, http.client.HTTPException) as error:
            if self.process.poll() is None:
                raise
            message = f"server ended with {self.process.returncode}:\n{self.log()[-3000:]}"
            raise RuntimeError(message) from error
        finally:
            connection.close()

    def ask(
        self, method: str, path: str, body: Any = None, seconds: float = REQUEST_SECONDS
    ) -> Reply:
        """Gives status and body, which is text where it is not JSON."""
        with self._exchange(method, path, body, seconds) as response:
            text = response.read().decode()
            is_json = "json" in response.headers.get("Content-Type", "")
            return Reply(response.status, json.loads(text) if is_json else text)

    def get(self, path: str) -> Any:
        return self._expect(path, self.ask("GET", path))

    def post(self, path: str, body: Any, seconds: float = REQUEST_SECONDS) -> Any:
        return self._expect(path, self.ask("POST", path, body, seconds))

    def _expect(self, path: str, reply: Reply) -> Any:
        if reply.status != 200:
            message = f"{path}: status {reply.status}: {reply.body}"
            raise RefusedError(message)
        return reply.body

    def complete(self, prompt: Prompt, n_predict: int, **fields: Any) -> dict[str, Any]:
        """Greedy unless told otherwise, from nothing, with token ids."""
        return self.post("/completion", completion(prompt, n_predict, **fields))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], n_predict: int, **fields: Any
    ) -> dict[str, Any]:
        body = {"messages": list(messages), "max_tokens": n_predict} | GREEDY | fields
        return self.post("/v1/chat/completions", body)

    def stream(
        self, path: str, body: Mapping[str, Any], seconds: float = REQUEST_SECONDS
    ) -> Generator[dict[str, Any], None, None]:
        """Chunks as they come, none later than `seconds` after another; closing it hangs up."""
        with self._exchange("POST", path, {**body, "stream": True}, seconds) as response:
            if response.status != 200:
                self._expect(path, Reply(response.status, response.read().decode()))
            for line in response:
                kind, _, data = line.decode().partition(":")
                if kind == "error":
                    raise RefusedError(data)
                if kind == "data" and data.strip() != "[DONE]":
                    yield json.loads(data)

    def metrics(self) -> dict[str, float]:
        """Values of /metrics by name; those with labels have them in the name."""
        lines = self.get("/metrics").splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}

    def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in self.get("/slots"))

    def wait_idle(self, seconds: float = 30) -> None:
        """Raises TimeoutError when some slot works on."""
        end = time.monotonic() + seconds
        while self.busy_slots():
            if time.monotonic() > end:
                message = f"slots still busy after {seconds} s: {self.get('/slots')}"
                raise TimeoutError(message)
            time.sleep(0.02)

    def stop(self, seconds: float = 30) -> int:
        """Sends SIGTERM and gives the exit status; raises TimeoutError where that does not do."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            message = f"server ignored SIGTERM for {seconds} s:\n{self.log()[-3000:]}"
            raise TimeoutError(message) from error


GREEDY = {"temperature": 0, "cache_prompt": False}


def completion(prompt: Prompt, n_predict: int, **fields: Any) -> dict[str, Any]:
    """Body of a request to /completion."""
    body = {"prompt": prompt, "n_predict": n_predict, "return_tokens": True}
    return body | GREEDY | fields


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


@contextmanager
def running_server(
    target: Path | None,
    options: Sequence[object] = (),
    *,
    program: Path | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Server]:
    """Runs llama-server until the end of the block, where it must still be alive.

    Args:
        target: None where `options` say what is served.
        program: Another llama-server than the packaged one.
        environment: Variables on top of this process's.
        folder: Where it runs.
    """
    command = server_command(target, options, program)
    port = command[command.index("--port") + 1]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=folder,
            ) as process,
        ):
            server = Server(process, int(port), log)
            try:
                _wait(server)
                yield server
                if process.poll() not in (None, 0):
                    message = f"server ended with {process.returncode}:\n{server.log()[-3000:]}"
                    raise RuntimeError(message)
            finally:
                if process.poll() is None:
                    server.stop()


def server_command(
    target: Path | None, options: Sequence[object] = (), program: Path | None = None
) -> list[str]:
    """The command line, with a free port and the endpoints that tests read."""
    command = [program or program_path("llama-server"), "--host", HOST, "--port", free_port()]
    command += ["--no-ui", "--metrics", "--slots"]
    if target is not None:
        command += ["-m", target, "--offline"]
    return [*map(str, [*command, *options])]


@contextmanager
def running_rpc_server() -> Iterator[str]:
    """Runs a ggml-rpc-server and gives its host:port."""
    port = free_port()
    command = [program_path("ggml-rpc-server"), "-H", HOST, "-p", port, "-t", 1]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen([*map(str, command)], stdout=log, stderr=log) as process,
    ):
        try:
            _wait_for_port(process, port)
            yield f"{HOST}:{port}"
        finally:
            process.terminate()


def _wait(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.process.poll() is not None:
            break
        try:
            if server.ask("GET", "/health", seconds=5).status == 200:
                return
        except (OSError, RuntimeError, http.client.HTTPException):
            pass
        time.sleep(0.02)
    message = f"llama-server did not come up:\n{server.log()[-5000:]}"
    raise RuntimeError(message)


def _wait_for_port(process: "subprocess.Popen[bytes]", port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.02)
    message = "ggml-rpc-server did not come up"
    raise RuntimeError(message)
