"""Requests that end in time: a transport whose every read counts against one deadline.

The timeouts of `requests` restart with each byte received, so a server that sends a byte a second, in the headers or
in the body, holds a reader for ever. Here the socket under the connection knows when the whole request must be over.
"""

from __future__ import annotations

import io
import socket
from contextvars import ContextVar
from time import monotonic
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

deadline: ContextVar[float] = ContextVar("deadline")
"""When the request under way must be over, by time.monotonic(). One request at a time per thread."""


def remaining() -> float:
    """Seconds left for the request under way; raises TimeoutError where there are none."""
    left = deadline.get() - monotonic()
    if left <= 0:
        raise TimeoutError("the request ran past its deadline")
    return left


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(remaining())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _TimedSocket:
    """A connected socket whose files obey the deadline; everything else goes to the socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def makefile(self, mode: str = "rb", *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock), 65536)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _TimedHTTPConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _TimedSocket(self.sock)


class _TimedHTTPSConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _TimedSocket(self.sock)


class _TimedHTTPPool(HTTPConnectionPool):
    ConnectionCls = _TimedHTTPConnection


class _TimedHTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _TimedHTTPSConnection


class DeadlineAdapter(HTTPAdapter):
    """A `requests` transport with keep-alive; set `deadline` before each `send`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self._use_timed_pools(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        self._use_timed_pools(manager)
        return manager

    @staticmethod
    def _use_timed_pools(manager: Any) -> None:
        manager.pool_classes_by_scheme = {"http": _TimedHTTPPool, "https": _TimedHTTPSPool}
