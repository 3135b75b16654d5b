"""Finds the worker processes of an engine on this node: only those whose user and command line both fit."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

import psutil

from lachesis_py.kernel.proc import Gone, Process, ProcFs


class WorkerSpec(NamedTuple):
    """Who may be touched, from the configuration."""

    engine: str
    uid: int
    command: str
    exclude: tuple[str, ...] = ()
    most: int = 64


class WorkerFinder:
    """Looks at each process once, and again when its name shows that it became another program."""

    def __init__(self, proc: ProcFs, specs: tuple[WorkerSpec, ...]) -> None:
        self._proc = proc
        self._specs = [(s, re.compile(s.command), [re.compile(e) for e in s.exclude]) for s in specs]
        self._others: dict[int, tuple[int, str]] = {}
        self._workers: dict[int, tuple[str, Process]] = {}
        self.warnings: list[str] = []

    def find(self) -> dict[str, list[Process]]:
        """Workers by engine."""
        self.warnings = []
        pids = set(self._proc.pids())
        for pid in self._others.keys() - pids:
            del self._others[pid]
        for pid in list(self._workers):
            if not self._still(pid):
                del self._workers[pid]
        for pid in pids - self._workers.keys():
            try:
                stat = self._proc.stat(pid)
                seen = (stat.start, stat.comm)
                if self._others.get(pid) != seen and not self._look_at(self._proc.process(pid)):
                    self._others[pid] = seen
            except (Gone, PermissionError, ValueError):
                continue
        result: dict[str, list[Process]] = {spec.engine: [] for spec, _, _ in self._specs}
        for engine, worker in self._workers.values():
            result[engine].append(worker)
        for spec, _, _ in self._specs:
            if len(result[spec.engine]) > spec.most:
                self.warnings.append(
                    f"engine {spec.engine}: {len(result[spec.engine])} processes match, more than process.most = "
                    f"{spec.most}; none is touched until the expressions are narrowed"
                )
                result[spec.engine] = []
        return result

    def _still(self, pid: int) -> bool:
        _, worker = self._workers[pid]
        try:
            stat = self._proc.stat(pid)
        except Gone:
            return False
        return stat.start == worker.start and stat.state not in "ZX"

    def _look_at(self, process: Process) -> bool:
        command = " ".join(process.argv)
        for spec, wanted, excluded in self._specs:
            if not wanted.search(command) or any(expression.search(command) for expression in excluded):
                continue
            if process.uids != {spec.uid}:
                self.warnings.append(
                    f"engine {spec.engine}: process {process.pid} has the right command line but belongs to uid "
                    f"{'/'.join(map(str, sorted(process.uids)))}, not {spec.uid}: left alone"
                )
                continue
            self._workers[process.pid] = (spec.engine, process)
            return True
        return False


def listening_ports(pid: int) -> frozenset[int]:
    """TCP ports a process listens on."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return frozenset()
    return frozenset(c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN)


def local_names() -> frozenset[str]:
    """Every name and address under which an engine may know this node."""
    names = {"localhost", socket.gethostname(), socket.getfqdn()}
    for addresses in psutil.net_if_addrs().values():
        names.update(address.address.partition("%")[0] for address in addresses)
    return frozenset(names)
