"""Stands between llama-server and a ggml-rpc-server, and sees which ops are sent there."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from serving import HOST

# of the protocol; ggml-rpc.cpp
GRAPH_COMPUTE = 10
TENSOR_BYTES = 296
OP_OFFSET = 52


class RpcTap:
    """Attributes:
    address: Where it listens, as host:port.
    ops: Numbers of all ops in the graphs that went through.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.ops: set[int] = set()

    def run(self) -> None:
        """Until close()."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, port = self._server.split(":")
                server = socket.create_connection((host, int(port)))
                for work in (self._listen, self._forward):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def close(self) -> None:
        # close() alone does not wake accept()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self, client: socket.socket, server: socket.socket) -> None:
        """Requests: one byte says what, eight how long it is."""
        with server, client, contextlib.suppress(OSError), client.makefile("rb") as requests:
            while len(head := requests.read(9)) == 9:
                command, size = struct.unpack("<BQ", head)
                body = requests.read(size)
                if command == GRAPH_COMPUTE:
                    self.ops |= ops_of(body)
                server.sendall(head + body)
            server.shutdown(socket.SHUT_WR)

    @staticmethod
    def _forward(client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)


def ops_of(graph: bytes) -> set[int]:
    """Of a request to compute: device, nodes, then all tensors."""
    _, n_nodes = struct.unpack_from("<II", graph)
    offset = 8 + 8 * n_nodes
    (n_tensors,) = struct.unpack_from("<I", graph, offset)
    tensors = offset + 4
    assert len(graph) == tensors + n_tensors * TENSOR_BYTES, "the protocol has changed"
    return {
        struct.unpack_from("<I", graph, tensors + i * TENSOR_BYTES + OP_OFFSET)[0]
        for i in range(n_tensors)
    }


@contextmanager
def tapped(server: str) -> Iterator[RpcTap]:
    tap = RpcTap(server)
    thread = threading.Thread(target=tap.run)
    thread.start()
    try:
        yield tap
    finally:
        tap.close()
        thread.join()
