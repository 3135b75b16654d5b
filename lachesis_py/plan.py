"""The difference between what should be and what is, as data.

The same plan serves the kernel, `--dry-run`, `explain` and the tests: nothing here touches anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from lachesis_py.model import DesiredNice, ThreadId, ThreadRef

REPAIRS_BEFORE_YIELDING = 1


class Why(StrEnum):
    DECISION = "decision"  # the policy wants another value
    DRIFT = "drift"  # somebody changed our value: put it right once
    RETURN = "return"  # no schedule wants this thread any more


class Change(NamedTuple):
    thread: ThreadRef
    present: int
    wanted: int
    why: Why


class Conflict(NamedTuple):
    """Somebody else insists on a value: it is theirs from now on."""

    thread: ThreadRef
    present: int
    ours: int


@dataclass(slots=True)
class Holding:
    """A thread whose value is ours at the moment."""

    thread: ThreadRef
    original: int
    written: int
    since: float
    repairs: int = 0


@dataclass(slots=True)
class Ledger:
    """What we hold. The kernel room keeps it in step with the journal; planning only reads it."""

    held: dict[ThreadId, Holding] = field(default_factory=dict)
    foreign: dict[ThreadId, int] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    changes: list[Change] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    unchanged: int = 0


def make_plan(desired: Iterable[DesiredNice], present: Mapping[ThreadId, int], ledger: Ledger) -> Plan:
    """What to write so that present becomes desired; threads that are gone from `present` are left out."""
    plan = Plan()
    changes, held, foreign = plan.changes, ledger.held, ledger.foreign
    wanted_ids = set()
    for want in desired:
        thread = want.thread
        key = thread.id
        wanted_ids.add(key)
        now = present.get(key)
        if now is None or key in foreign:
            continue
        holding = held.get(key)
        if holding is not None and now != holding.written:
            if holding.repairs >= REPAIRS_BEFORE_YIELDING:
                plan.conflicts.append(Conflict(thread, now, holding.written))
            elif now != want.nice:
                changes.append(Change(thread, now, want.nice, Why.DRIFT))
            else:
                plan.unchanged += 1
        elif now != want.nice:
            changes.append(Change(thread, now, want.nice, Why.DECISION))
        else:
            plan.unchanged += 1
    for key, holding in held.items():
        if key in wanted_ids or key in foreign:
            continue
        now = present.get(key)
        if now is None:
            continue
        if now != holding.written:
            plan.conflicts.append(Conflict(holding.thread, now, holding.written))
        elif now != holding.original:
            changes.append(Change(holding.thread, now, holding.original, Why.RETURN))
    return plan
