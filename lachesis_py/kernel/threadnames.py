"""Names of the threads of a process, asked for only when there is reason to.

A thread dump stops a JVM for some milliseconds, so it is taken when threads appeared, at a limited rate, and once in a
while because threads may be renamed. Where attaching fails it is tried again ever more rarely, and a SIGQUIT that
did not help (its effect was a page of stacks in the engine's output) is repeated more rarely still.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lachesis_py.kernel.jvm import AttachError, JvmThread, attach
from lachesis_py.kernel.jvmprobe import kind_of
from lachesis_py.kernel.proc import Gone, ProcFs

_NOBODY: Mapping[int, JvmThread] = MappingProxyType({})
_PLAIN_MAX_AGE = 5.0  # a native thread is born with its creator's name and names itself a little later
_LONGEST_BACKOFF = 60.0
_FIRST_SIGNAL_BACKOFF, _LONGEST_SIGNAL_BACKOFF = 60.0, 3600.0
_PROCESSES_KEPT = 1024


@dataclass(slots=True)
class _Known:
    """What is known of one process."""

    start: int
    names: Mapping[int, JvmThread] = field(default_factory=lambda: _NOBODY)
    considered: frozenset[int] = frozenset()  # threads that were there when we last asked, named or not
    is_jvm: bool = False
    asked_at: float | None = None
    failures: int = 0
    failed_signals: int = 0
    next_signal: float | None = None
    error: AttachError | None = None
    doubtful: int = 0


class ThreadNames:
    """Not thread-safe, and an attach may wait for `timeout`: keep it on the thread that discovers."""

    def __init__(
        self,
        proc: str = "/proc",
        *,
        min_interval: float = 1.0,
        max_age: float = 30.0,
        timeout: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = ProcFs(proc)
        self._min_interval = min_interval
        self._max_age = max_age
        self._timeout = timeout
        self._clock = clock
        self._known: dict[int, _Known] = {}

    def names(self, pid: int, start: int) -> Mapping[int, JvmThread]:
        """Name by thread id. Threads of a JVM that it does not name are left out; another process names them itself.

        The same object comes back as long as nothing changed.
        """
        try:
            if self._proc.stat(pid).start != start:
                raise Gone(f"process {pid}")
            tids = frozenset(self._proc.tids(pid))
            known = self._known.get(pid)
            if known is None or known.start != start:
                known = self._remember(pid, start)
            self._drop_vanished(known, tids)
            if self._is_due(known, tids):
                self._ask(pid, known, tids)
        except Gone:
            self._known.pop(pid, None)
            return _NOBODY
        return known.names

    def is_jvm(self, pid: int) -> bool:
        """Whether the process was a JVM when it was last asked."""
        known = self._known.get(pid)
        return known is not None and known.is_jvm

    def last_error(self, pid: int) -> AttachError | None:
        """Why the names of this process may be old or missing; None while attaching works."""
        known = self._known.get(pid)
        return known.error if known else None

    def doubtful(self, pid: int) -> int:
        """How many threads stay nameless because a thread's name imitates another's line in the dump."""
        known = self._known.get(pid)
        return known.doubtful if known else 0

    def forget_gone(self) -> None:
        """Drops what is known of processes that ended."""
        for pid, known in list(self._known.items()):
            try:
                alive = self._proc.stat(pid).start == known.start
            except Gone:
                alive = False
            if not alive:
                del self._known[pid]

    def _remember(self, pid: int, start: int) -> _Known:
        self._known.pop(pid, None)
        if len(self._known) >= _PROCESSES_KEPT:
            self.forget_gone()
        while len(self._known) >= _PROCESSES_KEPT:
            del self._known[next(iter(self._known))]
        known = self._known[pid] = _Known(start)
        return known

    @staticmethod
    def _drop_vanished(known: _Known, tids: frozenset[int]) -> None:
        if not known.considered <= tids:
            # A number that comes back belongs to a new thread, so it must count as new then.
            known.considered &= tids
            known.names = MappingProxyType({tid: thread for tid, thread in known.names.items() if tid in tids})

    def _is_due(self, known: _Known, tids: frozenset[int]) -> bool:
        if known.asked_at is None:
            return True
        age = self._clock() - known.asked_at
        if known.failures:
            return age >= min(self._min_interval * 2.0 ** min(known.failures, 16), _LONGEST_BACKOFF)
        if tids - known.considered:
            return age >= self._min_interval
        return age >= (self._max_age if known.is_jvm else min(self._max_age, _PLAIN_MAX_AGE))

    def _ask(self, pid: int, known: _Known, tids: frozenset[int]) -> None:
        now = known.asked_at = self._clock()
        # Asked again each time: a shell becomes a JVM by exec, without a new start time.
        if not known.is_jvm and kind_of(self._proc, pid).has_jvm:
            known.is_jvm = True
            known.names = _NOBODY
        known.considered = tids
        if not known.is_jvm:
            known.names = MappingProxyType(self._own_names(pid, tids))
            return
        may_signal = known.next_signal is None or now >= known.next_signal
        try:
            answer = attach(pid, start=known.start, proc=self._proc.root, timeout=self._timeout, may_signal=may_signal)
        except AttachError as error:
            if error.kind == "gone":
                raise Gone(f"process {pid}") from error
            known.is_jvm = error.kind != "not_jvm"
            self._note_failure(known, error, now)
            return
        known.names = MappingProxyType({thread.tid: thread for thread in answer.threads})
        known.considered = tids | known.names.keys()  # the attach itself starts a thread in the JVM
        known.doubtful = answer.doubtful
        known.error = None
        known.failures = known.failed_signals = 0
        known.next_signal = None

    @staticmethod
    def _note_failure(known: _Known, error: AttachError, now: float) -> None:
        known.failures += 1
        if error.signalled:
            pause = min(_FIRST_SIGNAL_BACKOFF * 2.0**known.failed_signals, _LONGEST_SIGNAL_BACKOFF)
            known.failed_signals = min(known.failed_signals + 1, 16)
            known.next_signal = now + pause
        if error.kind != "unsignalled" or known.error is None:  # keep the cause, not its consequence
            known.error = error

    def _own_names(self, pid: int, tids: frozenset[int]) -> dict[int, JvmThread]:
        names = {}
        for tid in tids:
            with contextlib.suppress(Gone):
                comm = self._proc.read(f"{pid}/task/{tid}/comm", 64).rstrip(b"\n").decode(errors="replace")
                names[tid] = JvmThread(tid, comm, java=False)
        return names
