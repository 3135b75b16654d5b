"""What a translator is: a pure function from physical priorities to the state the OS should have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from lachesis_py.model import DesiredNice, OperatorKey, ThreadRef


class ThreadPriority(NamedTuple):
    """A thread with the priority the transformation rule gave it; None means baseline."""

    thread: ThreadRef
    priority: float | None
    operator: OperatorKey | None


class TranslatorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every translator's own settings."""


class Translator(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    mechanism: ClassVar[str]
    """What it moves ("nice"): two schedules must not move the same thing of one thread."""
    options_type: ClassVar[type[TranslatorOptions]] = TranslatorOptions

    def __init__(self, options: Any = None, normaliser: str = "minmax") -> None:
        self.options: Any = options if options is not None else self.options_type()
        self.normaliser = normaliser

    @abstractmethod
    def translate(self, threads: Sequence[ThreadPriority], jvm_threads: Sequence[ThreadRef]) -> list[DesiredNice]:
        """The state wanted for each thread; threads it does not mention keep their baseline."""
