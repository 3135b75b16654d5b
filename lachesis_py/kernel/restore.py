"""Puts every value back that is still ours, including those that children inherited."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from lachesis_py.kernel import sched
from lachesis_py.kernel.journal import Contents, ProcessTouched, ThreadTouched
from lachesis_py.kernel.proc import Gone, ProcFs
from lachesis_py.model import ThreadId

CLEAN_PASSES = 2
MOST_PASSES = 50


class RestoreReport(msgspec.Struct):
    restored: int = 0
    inherited: int = 0  # threads and children that were born with one of our values
    unchanged: int = 0  # already at their original
    gone: int = 0
    foreign: int = 0  # somebody else's value: left alone
    denied: int = 0

    @property
    def complete(self) -> bool:
        return self.denied == 0

    def add(self, other: RestoreReport) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def restore(contents: Contents, proc: ProcFs) -> RestoreReport:
    """Undo all that the journal says. Restored threads first: they are who children inherit from."""
    report = restore_threads(contents, contents.threads.values(), proc)
    report.add(sweep(contents.processes.values(), proc, skip=contents.threads.keys()))
    return report


def restore_threads(contents: Contents, threads: Iterable[ThreadTouched], proc: ProcFs) -> RestoreReport:
    report = RestoreReport()
    for thread in threads:
        low, high = contents.range_of(thread)
        try:
            stat = proc.stat(thread.pid, thread.tid)
            if stat.start != thread.start:
                report.gone += 1
            elif stat.nice == thread.original:
                report.unchanged += 1
            elif thread.id in contents.foreign or not low <= stat.nice <= high:
                report.foreign += 1
            else:
                sched.set_nice(thread.tid, thread.original)
                report.restored += 1
        except Gone:
            report.gone += 1
        except sched.Denied:
            report.denied += 1
    return report


def sweep(processes: Iterable[ProcessTouched], proc: ProcFs, skip: Collection[ThreadId]) -> RestoreReport:
    """Bring threads and child processes that were born after our first touch back to their process's baseline.

    A thread may be born of one that was not yet put right while we look, so passes go on until two in a row
    find nothing.
    """
    processes = list(processes)
    report = RestoreReport()
    clean = 0
    for _ in range(MOST_PASSES):
        found = RestoreReport()
        for process in processes:
            _sweep_process(process, proc, skip, found)
        report.add(found)
        clean = 0 if found.inherited else clean + 1
        if clean == CLEAN_PASSES:
            break
    report.denied = found.denied if processes else 0
    return report


def _sweep_process(process: ProcessTouched, proc: ProcFs, skip: Collection[ThreadId], report: RestoreReport) -> None:
    for pid in (process.pid, *_offspring(process, proc)):
        try:
            tids = proc.tids(pid)
        except Gone:
            continue
        for tid in tids:
            try:
                nice = sched.get_nice(tid)
                if nice == process.baseline or not process.low <= nice <= process.high:
                    continue
                stat = proc.stat(pid, tid)
                if stat.start < process.since or ThreadId(pid, tid, stat.start) in skip:
                    continue
                sched.set_nice(tid, process.baseline)
                report.inherited += 1
            except Gone:
                continue
            except sched.Denied:
                report.denied += 1


def _offspring(process: ProcessTouched, proc: ProcFs) -> list[int]:
    """Descendants born since our first touch, also those whose parent has died.

    An orphan is known by the session it shares with the process: it was handed to a parent outside it.
    """
    stats = {}
    for pid in proc.pids():
        try:
            stats[pid] = proc.stat(pid)
        except Gone:
            continue
    present = stats.get(process.pid)
    family = {process.pid} if present is not None and present.start == process.start else set()
    for pid, stat in stats.items():
        if stat.session == process.session and pid != process.session and stat.start >= process.since:
            parent = stats.get(stat.parent)
            if (parent is None or parent.session != stat.session) and _same_user(pid, process, proc):
                family.add(pid)
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    waiting = list(family)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in family:
                family.add(child)
                waiting.append(child)
    return [pid for pid in family if pid != process.pid and stats[pid].start >= process.since]


def _same_user(pid: int, process: ProcessTouched, proc: ProcFs) -> bool:
    try:
        return proc.process(pid).uids == process.uids
    except Gone:
        return False
