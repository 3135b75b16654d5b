"""What we changed and what was there before, written down before the first touch.

One JSON object a line, appended. The file lives in the runtime directory: it dies with the kernel state it
describes, so nothing is synced to disk, and a boot id guards against a runtime directory that outlived a boot.
A line that was cut off by a kill never had its touch, and is ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from lachesis_py.errors import LachesisError
from lachesis_py.model import ThreadId

COMPACT_AFTER_LINES = 4096


class JournalError(LachesisError):
    """The journal cannot be written: without it nothing may be touched."""


class Boot(msgspec.Struct, frozen=True, tag="boot"):
    boot: str
    version: int = 1


class ProcessTouched(msgspec.Struct, frozen=True, tag="process"):
    """A process some of whose threads we may change, before the first change."""

    pid: int
    start: int
    session: int
    uids: frozenset[int]
    baseline: int
    since: int  # clock ticks since boot: whoever was born later may have inherited our values
    low: int
    high: int


class ThreadTouched(msgspec.Struct, frozen=True, tag="thread"):
    pid: int
    tid: int
    start: int
    original: int

    @property
    def id(self) -> ThreadId:
        return ThreadId(self.pid, self.tid, self.start)


class ThreadForeign(msgspec.Struct, frozen=True, tag="foreign"):
    """Somebody else insists on this thread's value: it is theirs now."""

    pid: int
    tid: int
    start: int


class ThreadForgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    pid: int
    tid: int
    start: int


Record = Boot | ProcessTouched | ThreadTouched | ThreadForeign | ThreadForgotten
_decode = msgspec.json.Decoder(Record).decode
_encode = msgspec.json.Encoder().encode


class Contents(msgspec.Struct):
    """The journal's present meaning."""

    processes: dict[tuple[int, int], ProcessTouched] = msgspec.field(default_factory=dict)
    threads: dict[ThreadId, ThreadTouched] = msgspec.field(default_factory=dict)
    foreign: set[ThreadId] = msgspec.field(default_factory=set)
    unreadable: int = 0
    lines: int = 0

    def apply(self, record: Record) -> None:
        self.lines += 1
        if isinstance(record, ProcessTouched):
            known = self.processes.get((record.pid, record.start))
            if known is not None:  # a widened range keeps the first touch and the first baseline
                record = msgspec.structs.replace(
                    known, low=min(known.low, record.low), high=max(known.high, record.high)
                )
            self.processes[record.pid, record.start] = record
        elif isinstance(record, ThreadTouched):
            self.threads.setdefault(record.id, record)
        elif isinstance(record, ThreadForeign):
            self.foreign.add(ThreadId(record.pid, record.tid, record.start))
        elif isinstance(record, ThreadForgotten):
            thread = ThreadId(record.pid, record.tid, record.start)
            self.threads.pop(thread, None)
            self.foreign.discard(thread)

    def range_of(self, thread: ThreadTouched) -> tuple[int, int]:
        for process in self.processes.values():
            if process.pid == thread.pid:
                return process.low, process.high
        return 0, -1

    def records(self) -> list[Record]:
        foreign = [ThreadForeign(*thread) for thread in self.foreign]
        return [*self.processes.values(), *self.threads.values(), *foreign]


def read(path: Path, boot_id: str) -> Contents:
    """The journal's contents; of another boot: empty."""
    contents = Contents()
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return contents
    for line in lines:
        if not line:
            continue
        try:
            record = _decode(line)
        except msgspec.DecodeError:
            contents.unreadable += 1
            continue
        if isinstance(record, Boot) and record.boot != boot_id:
            return Contents()
        contents.apply(record)
    return contents


class Journal:
    """The writer's side. Exactly one exists, guarded by the daemon's lock."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        self._boot = Boot(boot_id)
        self.contents = read(path, boot_id)
        self._descriptor = self._rewrite()

    def _rewrite(self) -> int:
        """Write the present meaning into a new file and put it in place in one step."""
        fresh = self.path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(fresh, flags, 0o600)
            text = b"".join(_encode(record) + b"\n" for record in (self._boot, *self.contents.records()))
            if os.write(descriptor, text) != len(text):
                raise OSError("short write")
            os.rename(fresh, self.path)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal {self.path}: {error}; nothing is changed without it. Make room, or "
                "point runtime_dir at a writable directory that is emptied at boot"
            ) from error
        self.contents.lines = len(self.contents.records())
        return descriptor

    def append(self, records: Iterable[Record]) -> None:
        """Write records; only then may their changes be made."""
        records = list(records)
        if not records:
            return
        text = b"".join(_encode(record) + b"\n" for record in records)
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, text)
            if written != len(text):
                raise OSError("short write")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise JournalError(
                f"cannot write the journal {self.path}: {error}; no further thread is touched"
            ) from error
        for record in records:
            self.contents.apply(record)
        live = len(self.contents.threads) + len(self.contents.processes)
        if self.contents.lines > COMPACT_AFTER_LINES + 2 * live:
            self.compact()

    def compact(self) -> None:
        previous = self._descriptor
        self._descriptor = self._rewrite()
        os.close(previous)

    def forget_processes(self, gone: Iterable[tuple[int, int]]) -> None:
        """Drop processes that ended and were swept, with all their threads."""
        for pid, start in gone:
            self.contents.processes.pop((pid, start), None)
            for thread in [t for t in self.contents.threads if t.pid == pid]:
                self.contents.threads.pop(thread)
                self.contents.foreign.discard(thread)
        self.compact()

    def clear(self) -> None:
        """Everything is back where it was."""
        self.contents = Contents()
        self.compact()

    def close(self) -> None:
        os.close(self._descriptor)


class NodeLock:
    """One daemon, or one restore, per runtime directory."""

    def __init__(self, runtime_dir: Path) -> None:
        self.path = runtime_dir / "lock"
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LachesisError(
                f"cannot open {self.path}: {error.strerror}; run as root, or name a writable runtime directory"
            ) from error

    def acquire(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise LachesisError(
                f"another lachesis daemon (pid {owner}) works in {self.path.parent}; two would undo each other. "
                "Stop it first, or use `lachesis pause` to make it put everything back"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
