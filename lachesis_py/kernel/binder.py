"""Turns selectors into threads of this node.

Thread names decide; where two tasks claim threads of one name (two copies of a program), the time at which a
thread was born decides, and where that is too close to call, the tasks share the threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lachesis_py.kernel.domains import domain_of
from lachesis_py.kernel.jvm import JvmThread
from lachesis_py.kernel.proc import Gone, Process, ProcFs, epoch_of
from lachesis_py.kernel.threadnames import ThreadNames
from lachesis_py.kernel.workers import WorkerFinder, listening_ports, local_names
from lachesis_py.model import Binding, Role, Task, TaskKey, ThreadId, ThreadRef, Topology

CLEARLY_NEARER_S = 1.0
"""A birth time counts as that of a task when every other task's is at least this much further away."""


class _Thread(NamedTuple):
    id: ThreadId
    name: str
    java: bool
    domain: str
    baseline: int
    ports: frozenset[int]


class Binder:
    """Lives on the discovery thread: attaching to a JVM may wait."""

    def __init__(
        self,
        proc: ProcFs,
        finder: WorkerFinder,
        names: ThreadNames,
        baseline: Callable[[int, int], int | None] = lambda _pid, _start: None,
    ) -> None:
        self._proc = proc
        self._finder = finder
        self._names = names
        self._baseline = baseline
        self._local = local_names()
        self._seen: dict[int, tuple[Mapping[int, JvmThread], list[_Thread]]] = {}
        self._inputs: tuple[object, ...] = ()
        self._binding = Binding()

    @property
    def binding(self) -> Binding:
        return self._binding

    def refresh(self, topologies: Sequence[Topology]) -> Binding:
        """Look again; the same object comes back as long as nothing changed."""
        workers = self._finder.find()
        threads = {engine: self._threads(found) for engine, found in workers.items()}
        warnings = [*self._finder.warnings, *self._attach_warnings(workers)]
        versions = tuple((t.engine, t.version) for t in topologies)
        inputs = (versions, tuple((e, tuple(map(id, lists))) for e, lists in threads.items()), tuple(warnings))
        if inputs == self._inputs:
            return self._binding
        bound: dict[TaskKey, tuple[ThreadRef, ...]] = {}
        for topology in topologies:
            found = [thread for group in threads.get(topology.engine, []) for thread in group]
            engine_bound, doubts = bind_tasks(topology.tasks, found, self._local)
            bound.update(engine_bound)
            warnings.extend(doubts)
        claimed = {ref.id for refs in bound.values() for ref in refs}
        own = tuple(
            ThreadRef(t.id, t.name, Role.JVM, None, t.domain, t.baseline)
            for groups in threads.values()
            for group in groups
            for t in group
            if not t.java and t.id not in claimed
        )
        self._inputs = inputs
        self._binding = Binding(self._binding.version + 1, bound, own, tuple(warnings))
        return self._binding

    def _attach_warnings(self, workers: Mapping[str, Sequence[Process]]) -> list[str]:
        errors = [self._names.last_error(w.pid) for found in workers.values() for w in found]
        return [str(error) for error in errors if error is not None]

    def _threads(self, workers: Sequence[Process]) -> list[list[_Thread]]:
        """Per process, the same list object while its threads are the same."""
        result = []
        for worker in workers:
            pid, start = worker.pid, worker.start
            names = self._names.names(pid, start)
            known = self._seen.get(pid)
            if known is None or known[0] is not names:
                self._seen[pid] = known = (names, self._describe(worker, names))
            result.append(known[1])
        alive = {worker.pid for worker in workers}
        if len(self._seen) > 4 * len(alive) + 64:
            self._seen = {pid: seen for pid, seen in self._seen.items() if pid in alive}
        return result

    def _describe(self, worker: Process, names: Mapping[int, JvmThread]) -> list[_Thread]:
        pid = worker.pid
        autogroup = self._proc.autogroup_enabled()
        ports = listening_ports(pid)
        recorded = self._baseline(pid, worker.start)
        baseline = worker.nice if recorded is None else recorded
        result = []
        for tid, thread in names.items():
            try:
                identity = self._proc.thread_id(pid, tid)
                domain = domain_of(self._proc, pid, tid, autogroup)
            except Gone:
                continue
            result.append(_Thread(identity, thread.name, thread.java, domain, baseline, ports))
        return result


def bind_tasks(
    tasks: Sequence[Task], threads: Sequence[_Thread], local: frozenset[str]
) -> tuple[dict[TaskKey, tuple[ThreadRef, ...]], list[str]]:
    """Threads by task, and what could not be told apart."""
    by_name: dict[str, list[_Thread]] = {}
    for thread in threads:
        by_name.setdefault(thread.name, []).append(thread)
    here = [task for task in tasks if _may_be_here(task.host, local)]
    claims: dict[tuple[ThreadId, Role], list[tuple[Task, _Thread]]] = {}
    for task in here:
        for role, thread in _candidates(task, by_name):
            claims.setdefault((thread.id, role), []).append((task, thread))
    rivals = _rivals(claims)
    bound: dict[TaskKey, list[ThreadRef]] = {}
    shared: set[str] = set()
    for (_, role), claimants in claims.items():
        thread = claimants[0][1]
        owners = [task for task, _ in claimants]
        if any(task.key in rivals for task in owners):
            owners = _by_birth(thread, owners)
            if len({task.key.query for task in owners}) > 1:
                shared.add(" and ".join(sorted({task.key.query for task in owners})))
        for task in owners:
            ref = ThreadRef(thread.id, thread.name, role, task.key, thread.domain, thread.baseline)
            bound.setdefault(task.key, []).append(ref)
    warnings = [
        f"queries {pair} run the same program and started together: their threads cannot be told apart, "
        "so they are scheduled as one (submit them some seconds apart, or name their operators differently)"
        for pair in sorted(shared)
    ]
    return {key: tuple(refs) for key, refs in bound.items()}, warnings


def _may_be_here(host: str, local: frozenset[str]) -> bool:
    """An address that is not ours is elsewhere; a name that we do not know may be an alias of ours."""
    is_address = bool(host) and (":" in host or host.replace(".", "").isdigit())
    return host in local or not is_address


def _candidates(task: Task, by_name: Mapping[str, Sequence[_Thread]]) -> list[tuple[Role, _Thread]]:
    selector = task.selector
    found: list[tuple[Role, _Thread]] = []
    for role, names, pattern in (
        (Role.MAIN, selector.names, selector.pattern),
        (Role.HELPER, selector.helper_names, selector.helper_pattern),
    ):
        for name in names:
            found.extend((role, thread) for thread in by_name.get(name, ()))
        if pattern:
            expression = re.compile(pattern)
            for name, threads in by_name.items():
                if expression.fullmatch(name):
                    found.extend((role, thread) for thread in threads)
    port = selector.process_port
    if port is not None and any(port in thread.ports for _, thread in found):
        found = [(role, thread) for role, thread in found if port in thread.ports]
    return found


def _rivals(claims: Mapping[tuple[ThreadId, Role], Sequence[tuple[Task, _Thread]]]) -> set[TaskKey]:
    return {task.key for claimants in claims.values() if len(claimants) > 1 for task, _ in claimants}


def _by_birth(thread: _Thread, tasks: Sequence[Task]) -> list[Task]:
    """The one task whose start is clearly nearest to the thread's birth, else all of them."""
    born = epoch_of(thread.id.start)
    dated = sorted(
        ((abs(born - task.started_at), task) for task in tasks if task.started_at is not None), key=lambda pair: pair[0]
    )
    if len(dated) < len(tasks) or len(dated) < 2:
        return list(tasks)
    return [dated[0][1]] if dated[1][0] - dated[0][0] >= CLEARLY_NEARER_S else list(tasks)
