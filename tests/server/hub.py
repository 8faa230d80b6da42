"""Plays the hub for llama-server, on loopback."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "5" * 40
# repository -> name of a file in it -> where its content lies
Repositories = Mapping[str, Mapping[str, Path]]


class Hub(ThreadingHTTPServer):
    """Knows the repositories it is given and nothing else.

    Attributes:
        downloads: Files whose content was sent, as repository/name.
    """

    daemon_threads = True

    def __init__(self, repositories: Repositories) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.downloads: list[str] = []

    def environment(self, cache: Path) -> dict[str, str]:
        """Variables that lead llama-server here, and nowhere else."""
        address = f"http://127.0.0.1:{self.server_port}/"
        return {"MODEL_ENDPOINT": address, "LLAMA_CACHE": str(cache), "HF_TOKEN": ""}


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", self.path):
            self.send_json(match[1], {"branches": [{"name": "main", "targetCommit": COMMIT}]})
        elif match := re.fullmatch(rf"/api/models/([^/]+/[^/]+)/tree/{COMMIT}\?.*", self.path):
            self.send_json(match[1], self.listing(match[1]))
        elif match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", self.path):
            self.send_file(match[1], match[2])
        else:
            self.send_missing()

    def listing(self, repository: str) -> list[dict[str, Any]]:
        return [
            {
                "type": "file",
                "path": name,
                "size": path.stat().st_size,
                "lfs": {"oid": hashlib.sha256(path.read_bytes()).hexdigest()},
            }
            for name, path in self.server.repositories.get(repository, {}).items()
        ]

    def send_json(self, repository: str, value: Any) -> None:
        if repository in self.server.repositories:
            self.send(200, json.dumps(value).encode(), "application/json")
        else:
            self.send_missing()

    def send_file(self, repository: str, name: str) -> None:
        path = self.server.repositories.get(repository, {}).get(name)
        if path is None:
            self.send_missing()
            return
        if self.command == "GET":
            self.server.downloads.append(f"{repository}/{name}")
        self.send(200, path.read_bytes(), "application/octet-stream")

    def send_missing(self) -> None:
        self.send(404, b'{"error": "Repository not found"}', "application/json")

    def send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """What was asked is of no interest unless a test looks at it."""


@contextmanager
def running_hub(repositories: Repositories) -> Iterator[Hub]:
    with Hub(repositories) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
