"""Reads /proc. Every vanished process or thread becomes `Gone`, so that callers handle one case."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from lachesis_py.model import ThreadId

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Gone(Exception):
    """The process or thread ended, or never was."""


class Stat(NamedTuple):
    """The fields of a stat line that matter here."""

    comm: str
    state: str
    parent: int
    session: int
    nice: int
    start: int  # clock ticks since boot


class Process(NamedTuple):
    pid: int
    start: int
    parent: int
    session: int
    nice: int
    uids: frozenset[int]  # real, effective, saved: more than one while identities are being changed
    argv: tuple[str, ...]


class Pressure(NamedTuple):
    some_avg10: float  # percent of the last 10 s in which some task waited for a CPU
    some_total: float  # seconds since boot


def parse_stat(line: bytes) -> Stat:
    opened, closed = line.index(b"("), line.rindex(b")")
    fields = line[closed + 2 :].split()
    return Stat(
        comm=line[opened + 1 : closed].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        nice=int(fields[16]),
        start=int(fields[19]),
    )


class ProcFs:
    def __init__(self, root: str = "/proc") -> None:
        self.root = root

    def read(self, path: str, limit: int = 1 << 16) -> bytes:
        """The file below the root; files of ended processes raise Gone."""
        try:
            descriptor = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as error:
            raise Gone(path) from error
        try:
            parts = []
            while limit > 0 and (part := os.read(descriptor, limit)):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
        except ProcessLookupError as error:
            raise Gone(path) from error
        finally:
            os.close(descriptor)

    def pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self.root) if name.isdigit()]

    def tids(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"{self.root}/{pid}/task")]
        except (FileNotFoundError, ProcessLookupError) as error:
            raise Gone(f"process {pid}") from error

    def stat(self, pid: int, tid: int | None = None) -> Stat:
        return parse_stat(self.read(f"{pid}/stat" if tid is None else f"{pid}/task/{tid}/stat", 4096))

    def thread_id(self, pid: int, tid: int) -> ThreadId:
        return ThreadId(pid, tid, self.stat(pid, tid).start)

    def is_alive(self, thread: ThreadId) -> bool:
        try:
            return self.stat(thread.pid, thread.tid).start == thread.start
        except Gone:
            return False

    def process(self, pid: int) -> Process:
        stat = self.stat(pid)
        if stat.state in "ZX":
            raise Gone(f"process {pid} is a zombie")
        argv = self.read(f"{pid}/cmdline").rstrip(b"\0").split(b"\0")
        return Process(
            pid,
            stat.start,
            stat.parent,
            stat.session,
            stat.nice,
            frozenset(int(uid) for uid in self.status_field(pid, "Uid").split()[:3]),
            tuple(word.decode(errors="replace") for word in argv),
        )

    def status_field(self, pid: int, name: str) -> str:
        for line in self.read(f"{pid}/status").decode(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
        return ""

    def pressure(self) -> Pressure | None:
        """CPU pressure of the machine, None where the kernel does not measure it."""
        try:
            words = self.read("pressure/cpu", 4096).split()
        except (Gone, OSError):
            return None
        fields = dict(word.split(b"=") for word in words[1:5])
        return Pressure(float(fields[b"avg10"]), float(fields[b"total"]) * 1e-6)

    def autogroup_enabled(self) -> bool:
        try:
            return self.read("sys/kernel/sched_autogroup_enabled", 16).strip() == b"1"
        except Gone:
            return False

    def boot_id(self) -> str:
        try:
            return self.read("sys/kernel/random/boot_id", 64).decode().strip()
        except Gone:
            return ""


def ticks_since_boot() -> int:
    """Now, on the scale of a thread's start time."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * CLOCK_TICKS)


def epoch_of(ticks: int) -> float:
    """A start time as seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / CLOCK_TICKS
