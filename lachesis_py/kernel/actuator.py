"""The one writer: reads the present state, carries out plans, and knows what it holds.

Each first touch is journalled before it happens. A held value that somebody changed is put right once; if it
is changed again it is theirs, and stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from lachesis_py.kernel import sched
from lachesis_py.kernel.journal import (
    Journal,
    ProcessTouched,
    Record,
    ThreadForeign,
    ThreadForgotten,
    ThreadTouched,
)
from lachesis_py.kernel.proc import Gone, ProcFs, ticks_since_boot
from lachesis_py.kernel.restore import RestoreReport, restore, restore_threads, sweep
from lachesis_py.model import ThreadId, ThreadRef
from lachesis_py.plan import Change, Holding, Ledger, Plan, Why


class Applied(msgspec.Struct):
    """What became of a plan."""

    written: list[Change] = msgspec.field(default_factory=list)
    gone: int = 0
    denied: int = 0


class Actuator:
    def __init__(self, proc: ProcFs, journal: Journal, low: int, high: int) -> None:
        self._proc = proc
        self._journal = journal
        self._low = low  # the widest offsets from a process's baseline that any schedule may use
        self._high = high
        self.ledger = Ledger()

    def present(self, alive: Iterable[ThreadId]) -> dict[ThreadId, int]:
        """The nice values as they are now, of threads that are known to be alive and of all that we hold.

        A thread's number may have gone to another thread by now, so what nobody vouched for is looked at.
        """
        result = {}
        get_nice = sched.get_nice
        for thread in alive:
            try:
                result[thread] = get_nice(thread.tid)
            except Gone:
                continue
        for thread in self.ledger.held.keys() - result.keys():
            try:
                stat = self._proc.stat(thread.pid, thread.tid)
            except Gone:
                continue
            if stat.start == thread.start:
                result[thread] = stat.nice
        return result

    def apply(self, plan: Plan) -> Applied:
        """Write the plan. Raises JournalError, before anything was touched, if it cannot be written down."""
        applied = Applied()
        held = self.ledger.held
        originals = self._write_down(plan)
        now = time.monotonic()
        set_nice = sched.set_nice
        for change in plan.changes:
            thread = change.thread
            key = thread.id
            try:
                set_nice(key.tid, change.wanted)
            except Gone:
                applied.gone += 1
                held.pop(key, None)
                continue
            except sched.Denied:
                applied.denied += 1
                continue
            holding = held.get(key)
            if holding is None:
                held[key] = Holding(thread, originals[key], change.wanted, now)
            elif change.why is Why.RETURN:
                del held[key]
            else:
                holding.written = change.wanted
                holding.since = now
                if change.why is Why.DRIFT:
                    holding.repairs += 1
            applied.written.append(change)
        self._forget(change.thread.id for change in applied.written if change.why is Why.RETURN)
        return applied

    def _forget(self, threads: Iterable[ThreadId]) -> None:
        """These are back at their original: whatever they become from now on is not ours to undo."""
        self._journal.append(ThreadForgotten(*thread) for thread in threads)

    def _write_down(self, plan: Plan) -> dict[ThreadId, int]:
        """Journal every first touch of the plan; the originals of threads touched for the first time."""
        ledger, contents = self.ledger, self._journal.contents
        records: list[Record] = []
        originals: dict[ThreadId, int] = {}
        processes: dict[int, ProcessTouched] = {process.pid: process for process in contents.processes.values()}
        for conflict in plan.conflicts:
            records.append(ThreadForeign(*conflict.thread.id))
            ledger.foreign[conflict.thread.id] = conflict.present
            ledger.held.pop(conflict.thread.id, None)
        for change in plan.changes:
            key = change.thread.id
            if key in ledger.held:
                continue
            known = contents.threads.get(key)
            if known is not None:
                originals[key] = known.original
                continue
            process = processes.get(key.pid)
            if process is None:
                process = self._process_record(change.thread)
                if process is None:
                    continue
                processes[key.pid] = process
                records.append(process)
            born_after_our_touch = key.start >= process.since and change.present != process.baseline
            originals[key] = process.baseline if born_after_our_touch else change.present
            records.append(ThreadTouched(*key, originals[key]))
        self._journal.append(records)
        plan.changes = [
            change for change in plan.changes if change.thread.id in originals or change.thread.id in ledger.held
        ]
        return originals

    def _process_record(self, thread: ThreadRef) -> ProcessTouched | None:
        try:
            process = self._proc.process(thread.id.pid)
        except Gone:
            return None
        low, high = max(-20, thread.baseline + self._low), min(19, thread.baseline + self._high)
        return ProcessTouched(
            process.pid, process.start, process.session, process.uids, thread.baseline, ticks_since_boot(), low, high
        )

    def baseline(self, pid: int, start: int) -> int | None:
        """The nice a process had before our first touch, None while untouched."""
        process = self._journal.contents.processes.get((pid, start))
        return process.baseline if process is not None else None

    def sweep_newborn(self, bound: Iterable[ThreadId]) -> RestoreReport:
        """Threads and children that inherited a value of ours and that no task claims go to their baseline."""
        skip = self.ledger.held.keys() | self.ledger.foreign.keys() | set(bound)
        return sweep(self._journal.contents.processes.values(), self._proc, skip)

    def release(self, threads: Iterable[ThreadId]) -> RestoreReport:
        """Put single threads back, for example when their driver lost contact."""
        contents = self._journal.contents
        records = [contents.threads[thread] for thread in threads if thread in contents.threads]
        report = restore_threads(contents, records, self._proc)
        for record in records:
            self.ledger.held.pop(record.id, None)
        if report.complete:
            self._forget(record.id for record in records)
        return report

    def restore_all(self) -> RestoreReport:
        """Everything back where it was; the journal is emptied if that succeeded."""
        report = restore(self._journal.contents, self._proc)
        self.ledger = Ledger()
        if report.complete:
            self._journal.clear()
        return report

    def forget_ended(self) -> RestoreReport:
        """Sweep up after processes that ended (their orphans may live on) and drop threads that ended."""
        contents = self._journal.contents
        ended = [
            process
            for process in contents.processes.values()
            if not self._proc.is_alive(ThreadId(process.pid, process.pid, process.start))
        ]
        report = sweep(ended, self._proc, skip=())
        if ended:
            for thread in [t for t in self.ledger.held if any(t.pid == process.pid for process in ended)]:
                del self.ledger.held[thread]
            self._journal.forget_processes((process.pid, process.start) for process in ended)
        dead = [thread for thread in contents.threads if not self._proc.is_alive(thread)]
        self._forget(dead)
        for thread in dead:
            self.ledger.held.pop(thread, None)
            self.ledger.foreign.pop(thread, None)
        return report
