"""Nice values: ranks threads inside a domain, the best at the process's own baseline and the others below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lachesis_py.model import DesiredNice, ThreadRef
from lachesis_py.translators.base import ThreadPriority, Translator, TranslatorOptions
from lachesis_py.translators.normalise import NORMALISERS, STEP

LEAST_SHARE = 0.02
"""Every thread keeps at least this part of its fair share: a starved one misses checkpoints and tuple timeouts."""

WIDEST_SPREAD = math.floor(math.log(1 / LEAST_SHARE) / math.log(STEP))
"""No thread may be more levels than this below the best of its domain: its share is at least 1.25^-levels of fair."""


class NiceOptions(TranslatorOptions, frozen=True):
    strength: int = 10
    """Nice levels between the best and the worst thread in use."""

    normaliser: str = ""
    """minmax, log, paper (1.25^n) or identity; empty: what suits the policy."""

    range: tuple[int, int] = (0, 19)
    """Hard bounds as offsets from the process's baseline. A negative lower bound is opt-in: the best is then raised
    above the baseline, and the JVM's own threads with it."""

    def __post_init__(self) -> None:
        low, high = self.range
        if not 0 <= self.strength <= WIDEST_SPREAD:
            raise ValueError(
                f"strength {self.strength} is outside 0..{WIDEST_SPREAD}: beyond that a thread would get less than "
                f"{LEAST_SHARE:.0%} of its fair share"
            )
        if not -20 <= low <= 0 <= high <= 19:
            raise ValueError(f"range {list(self.range)} must be [low, high] with -20 <= low <= 0 <= high <= 19")
        if self.normaliser and self.normaliser not in NORMALISERS:
            raise ValueError(f"normaliser {self.normaliser!r} is unknown; known: {', '.join(NORMALISERS)}")


class Nice(Translator):
    name = "nice"
    summary = "Nice values per thread: the best stays at its process's baseline, the others go below."
    mechanism = "nice"
    options_type = NiceOptions

    def translate(self, threads: Sequence[ThreadPriority], jvm_threads: Sequence[ThreadRef]) -> list[DesiredNice]:
        by_domain: dict[str, list[ThreadPriority]] = {}
        for item in threads:
            if item.priority is not None and not math.isnan(item.priority):
                by_domain.setdefault(item.thread.domain, []).append(item)
        desired = []
        for members in by_domain.values():
            desired.extend(self._rank(members))
        if self.options.range[0] < 0:
            desired.extend(_lift(jvm_threads, desired))
        return desired

    def _rank(self, members: Sequence[ThreadPriority]) -> list[DesiredNice]:
        low, high = self.options.range
        strength = min(self.options.strength, high - low, WIDEST_SPREAD)
        normalise = NORMALISERS[self.options.normaliser or self.normaliser]
        values = [item.priority for item in members if item.priority is not None]
        levels = normalise([min(max(value, -1e300), 1e300) for value in values], strength)
        top = low if low < 0 else 0
        return [
            DesiredNice(
                item.thread,
                max(-20, min(19, item.thread.baseline + top + round(level))),
                item.priority,
                item.operator,
            )
            for item, level in zip(members, levels, strict=True)
        ]


def _lift(jvm_threads: Sequence[ThreadRef], desired: Sequence[DesiredNice]) -> list[DesiredNice]:
    """The JVM's own threads at the best of their process: when the VM thread starves, everything stops."""
    best: dict[int, int] = {}
    for item in desired:
        pid = item.thread.id.pid
        best[pid] = min(item.nice, best.get(pid, 19))
    return [
        DesiredNice(thread, best[thread.id.pid], None, None)
        for thread in jvm_threads
        if best.get(thread.id.pid, 0) < thread.baseline
    ]
