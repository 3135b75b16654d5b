"""Nice values and scheduling counters of single threads, by direct syscall and kept descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable

from lachesis_py.kernel.proc import Gone, ProcFs
from lachesis_py.model import ThreadId


class Denied(Exception):
    """The kernel refused to change a thread."""


def get_nice(tid: int) -> int:
    try:
        return os.getpriority(os.PRIO_PROCESS, tid)
    except ProcessLookupError as error:
        raise Gone(f"thread {tid}") from error


def set_nice(tid: int, nice: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, tid, nice)
    except ProcessLookupError as error:
        raise Gone(f"thread {tid}") from error
    except PermissionError as error:
        raise Denied(f"setting nice {nice} of thread {tid} needs CAP_SYS_NICE") from error


class SchedStats:
    """CPU time and run-queue delay of many threads.

    A descriptor that stays open costs a twentieth of opening the file each time, and answers ESRCH once its
    thread is gone, so a number that was given to a new thread is never mistaken for the old one.
    """

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._descriptors: dict[ThreadId, int] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._capacity = max(64, soft // 2) if soft != resource.RLIM_INFINITY else 1 << 16

    def sample(self, threads: Iterable[ThreadId]) -> dict[ThreadId, tuple[int, int]]:
        """(CPU time, run-queue delay) in ns for each thread that is alive."""
        result = {}
        descriptors = self._descriptors
        for thread in threads:
            descriptor = descriptors.get(thread)
            try:
                if descriptor is None:
                    descriptor = self._open(thread)
                cpu, delay, _ = os.pread(descriptor, 80, 0).split()
            except (OSError, ValueError, Gone):
                self._drop(thread)
                continue
            result[thread] = (int(cpu), int(delay))
            if thread not in descriptors:
                os.close(descriptor)
        return result

    def _open(self, thread: ThreadId) -> int:
        path = f"{self._proc.root}/{thread.pid}/task/{thread.tid}/schedstat"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if not self._proc.is_alive(thread):
            os.close(descriptor)
            raise Gone(path)
        if len(self._descriptors) < self._capacity:
            self._descriptors[thread] = descriptor
        return descriptor

    def _drop(self, thread: ThreadId) -> None:
        descriptor = self._descriptors.pop(thread, None)
        if descriptor is not None:
            os.close(descriptor)

    def keep_only(self, threads: Iterable[ThreadId]) -> None:
        for thread in self._descriptors.keys() - set(threads):
            self._drop(thread)

    def close(self) -> None:
        self.keep_only(())
