"""A local server that misbehaves on demand: for faults that no healthy engine shows."""

from __future__ import annotations

import io
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TLS_HANDSHAKE = b"\x16"

Behaviour = Callable[[socket.socket, str], None]
"""Given the connection and the request's head; returns when it is done, the connection is kept after that."""


class Server:
    """One thread per connection; `behaviour` may be replaced while it runs."""

    def __init__(self, behaviour: Behaviour, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.behaviour = behaviour
        self.requests: list[str] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._context:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            with connection, connection.makefile("rb") as reader:
                while head := _read_head(reader):
                    self.requests.append(head)
                    self.behaviour(connection, head)

    def close(self) -> None:
        self.stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(timeout=5)


def _read_head(reader: io.BufferedReader) -> str:
    if reader.peek(1)[:1] == TLS_HANDSHAKE:
        return f"TLS {reader.read1()!r}"
    lines = []
    while line := reader.readline():
        if line in (b"\r\n", b"\n"):
            return b"".join(lines).decode()
        lines.append(line)
    return ""


@contextmanager
def serving(behaviour: Behaviour, context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Server]:
    server = Server(behaviour, context, port)
    try:
        yield server
    finally:
        server.close()


def answer(body: bytes | str, status: str = "200 OK", **headers: str) -> Behaviour:
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()

    def behave(connection: socket.socket, _: str) -> None:
        connection.sendall(head + content)

    return behave


def routes(table: dict[str, Behaviour]) -> Behaviour:
    """By the path without its query; anything else is 404."""
    unknown = answer('{"errors":["Not found."]}', "404 Not Found")

    def behave(connection: socket.socket, head: str) -> None:
        path = head.split(" ", 2)[1].partition("?")[0]
        table.get(path, unknown)(connection, head)

    return behave


def drip(prefix: bytes, server_stopping: Callable[[], threading.Event]) -> Behaviour:
    """Send the prefix, then a byte every 50 ms for ever."""

    def behave(connection: socket.socket, _: str) -> None:
        connection.sendall(prefix)
        while not server_stopping().wait(0.05):
            connection.sendall(b"a")

    return behave


def certificate_authority(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A fresh CA and a server context whose certificate it signed for 127.0.0.1."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "server.pem", "-days", "2", "-extfile", "extensions"),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    return directory / "ca.pem", context
