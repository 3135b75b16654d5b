"""Says how far long work has come: one changing line on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from typing import Protocol, TextIO

ERASE_LINE = "\r\x1b[K"


class Progress(Protocol):
    def __call__(self, text: str, /, *, part: float | None = None) -> None:
        """`part` is the share done, 0 to 1; without it the text is a step of its own."""


def silent(text: str, /, *, part: float | None = None) -> None:
    """For callers who do not watch."""


class Terminal:
    """Writes progress to a stream; where that is no terminal, a part is worth a line only every quarter."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._open_line = False
        self._last_quarter = 0
        self._lock = threading.Lock()

    def __call__(self, text: str, /, *, part: float | None = None) -> None:
        with self._lock:
            if part is not None and self._live:
                self._stream.write(f"{ERASE_LINE}{text}")
                self._open_line = True
            elif part is None or int(part * 4) != self._last_quarter:
                self._stream.write(f"{ERASE_LINE if self._open_line else ''}{text}\n")
                self._open_line = False
            self._last_quarter = int((part or 0) * 4)
            self._stream.flush()
