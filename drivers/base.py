"""What a driver is: it polls one engine and returns a snapshot. It never decides and never touches the OS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from lachesis_py.model import Snapshot


class DriverError(Exception):
    """A poll failed. `kind` is a short word for counters; the message says what to do about it.

    Kinds: unreachable, timeout, status, malformed, too_large, foreign, auth, tls.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class DriverOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every driver's own settings: the keys it takes in its entry of `engines`."""


class Driver(ABC):
    """One per engine of the configuration; lives on a thread of its own, so `poll` may wait for the network."""

    kind: ClassVar[str]
    options_type: ClassVar[type[DriverOptions]] = DriverOptions
    provides: ClassVar[frozenset[str]]
    """Names of the metrics this driver can deliver (see lachesis_py.metrics.catalogue)."""

    process_command: ClassVar[str]
    """Regular expression for the command line of this engine's worker processes: the default of the
    configuration's `process.command`."""

    def __init__(self, engine: str, options: Any) -> None:
        self.engine = engine
        self.options = options

    @abstractmethod
    def poll(self) -> Snapshot:
        """Ask the engine. Raises DriverError; whatever else escapes is counted as kind "bug"."""

    def close(self) -> None:
        """Release connections."""
