"""Processes that we start ourselves: who they are, whether they live, and how they end.

A pid alone may belong to somebody else by now. Every signal goes through a pidfd whose process was checked against the
start time we recorded.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
KILL_PATIENCE_S = 10.0
_ENDED_STATES = frozenset("ZX")
_children: dict[int, subprocess.Popen[bytes]] = {}


class ProcessIdentity(NamedTuple):
    """A process. `start` (clock ticks since boot) tells it from a later owner of the same number."""

    pid: int
    start: int


def identity(pid: int, *, proc: Path = PROC) -> ProcessIdentity | None:
    """Who has this pid now; None when nobody has, or only its exit status is left."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:  # FileNotFoundError, or ESRCH when it ends while we read
        return None
    # The command name may hold spaces and parentheses: fields count from the last ")".
    fields = stat.rpartition(")")[2].split()
    if fields[0] in _ENDED_STATES:
        return None
    return ProcessIdentity(pid, int(fields[19]))


def alive(process: ProcessIdentity, *, proc: Path = PROC) -> bool:
    return identity(process.pid, proc=proc) == process


def launch(command: Sequence[str], *, directory: Path, environment: Mapping[str, str], output: Path) -> ProcessIdentity:
    """Start a process in a session of its own, so that it outlives us and our terminal."""
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    born = identity(child.pid)
    if born is None:
        raise ChildProcessError(f"{command[0]} ended at once with status {child.wait()}: see {output}")
    return born


def terminate(process: ProcessIdentity, grace: float, *, proc: Path = PROC) -> bool:
    """Ask a process to end, force it after `grace` seconds (0: at once).

    False: it was gone, or its pid is another's, already.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor pins one process; read after opening, a matching start time proves it is ours.
        if not alive(process, proc=proc):
            return False
        polite = [(signal.SIGTERM, grace)] if grace > 0 else []
        for number, patience in (*polite, (signal.SIGKILL, KILL_PATIENCE_S)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
            if _ended(pidfd, patience):
                return True
        raise TimeoutError(f"process {process.pid} did not end {KILL_PATIENCE_S:.0f} s after SIGKILL")
    finally:
        os.close(pidfd)
        _reap(process.pid)


def wait(process: ProcessIdentity, timeout: float) -> bool:
    """Whether the process has ended, waiting up to `timeout` seconds for it."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return not alive(process) or _ended(pidfd, timeout)
    finally:
        os.close(pidfd)
        _reap(process.pid)


def _ended(pidfd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]


def boot_id(*, proc: Path = PROC) -> str:
    """Which boot this is: start times of processes compare only within one."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()
