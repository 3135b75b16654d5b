"""The node itself as a driver: CPU time and run-queue delay of the bound threads, and CPU pressure.

Unlike an engine's, its samples cost microseconds, so the main loop takes them at the start of a round.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from lachesis_py.kernel.proc import ProcFs
from lachesis_py.kernel.sched import SchedStats
from lachesis_py.model import HOST, Batch, Entity, Snapshot, ThreadId, Topology

PROVIDES = frozenset({"cpu_time", "run_delay", "cpu_pressure", "wall_clock"})


class HostDriver:
    kind = "host"
    provides = PROVIDES

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._stats = SchedStats(proc)
        self._sequence = 0

    def poll(self, threads: Iterable[ThreadId]) -> Snapshot:
        at = time.monotonic()
        samples = self._stats.sample(threads)
        values: dict[str, dict[Entity, float]] = {
            "cpu_time": {thread: pair[0] for thread, pair in samples.items()},
            "run_delay": {thread: pair[1] for thread, pair in samples.items()},
            "wall_clock": {HOST: time.time()},
        }
        pressure = self._proc.pressure()
        if pressure is not None:
            values["cpu_pressure"] = {HOST: pressure.some_avg10}
        self._sequence += 1
        return Snapshot(HOST.engine, self._sequence, Topology(HOST.engine), (Batch(at, values),))

    def keep_only(self, threads: Iterable[ThreadId]) -> None:
        self._stats.keep_only(threads)

    def close(self) -> None:
        self._stats.close()
