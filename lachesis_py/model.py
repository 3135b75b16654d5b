"""The values that flow through the house: entities, samples, threads and schedules. No logic lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class EngineKey(NamedTuple):
    """An engine, by the name the configuration gives it."""

    engine: str


class QueryKey(NamedTuple):
    """A query (job, topology, streaming query) of an engine, by the engine's own id."""

    engine: str
    query: str


class OperatorKey(NamedTuple):
    """A logical operator of a query."""

    engine: str
    query: str
    operator: str


class TaskKey(NamedTuple):
    """A physical instance: one replica of one operator, or of several fused ones."""

    engine: str
    query: str
    task: str
    attempt: int


class ThreadId(NamedTuple):
    """A kernel thread. `start` (clock ticks since boot) tells it from a later owner of the same number."""

    pid: int
    tid: int
    start: int


HOST = EngineKey("host")
"""The machine itself, as an entity that metrics such as pressure belong to."""

Entity = EngineKey | QueryKey | OperatorKey | TaskKey | ThreadId


class Scope(StrEnum):
    """What kind of entity a metric describes."""

    HOST = "host"
    ENGINE = "engine"
    QUERY = "query"
    OPERATOR = "operator"
    TASK = "task"
    THREAD = "thread"


class Role(StrEnum):
    """Why a thread is bound to a task."""

    MAIN = "main"
    HELPER = "helper"
    JVM = "jvm"


@dataclass(frozen=True, slots=True)
class ThreadSelector:
    """Which threads of which process run a task. `kernel/` turns it into threads of this node.

    Names are exact; patterns are regular expressions that must match the whole name, for engines whose
    thread names carry a number nobody else knows. `process_port` is a TCP port the process listens on, where
    the engine tells one: it separates two worker processes on one node.
    """

    names: tuple[str, ...] = ()
    helper_names: tuple[str, ...] = ()
    pattern: str = ""
    helper_pattern: str = ""
    process_port: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    key: QueryKey
    name: str
    state: str = "RUNNING"
    started_at: float | None = None  # seconds since the epoch, by the engine's clock


@dataclass(frozen=True, slots=True)
class Operator:
    key: OperatorKey
    name: str
    upstream: tuple[OperatorKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    key: TaskKey
    operators: tuple[OperatorKey, ...]  # more than one: fused into this thread
    selector: ThreadSelector
    index: int = 0  # which replica
    host: str = ""  # as the engine names it
    worker: str = ""  # the engine's id of the worker process
    started_at: float | None = None  # seconds since the epoch, by the engine's clock


@dataclass(frozen=True, slots=True)
class Topology:
    """What an engine runs. `version` grows whenever anything in it changed."""

    engine: str
    version: int = 0
    queries: tuple[Query, ...] = ()
    operators: tuple[Operator, ...] = ()
    tasks: tuple[Task, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Raw values taken at one instant: metric name -> entity -> value."""

    at: float  # time.monotonic()
    values: Mapping[str, Mapping[Entity, float]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a driver saw in one poll. `sequence` grows with every poll that brought new samples."""

    engine: str
    sequence: int
    topology: Topology
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """A thread of this node that runs (a part of) a task.

    nice ranks threads only inside one `domain` (a cpu cgroup, or an autogroup). `baseline` is the nice its
    process had before we touched it: where the best thread stays and where everything returns to.
    """

    id: ThreadId
    name: str
    role: Role
    task: TaskKey | None  # None: serves the whole process (a JVM's own thread)
    domain: str
    baseline: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """Which threads of this node run what. `ambiguous` names tasks that cannot be told apart here."""

    version: int = 0
    threads: Mapping[TaskKey, tuple[ThreadRef, ...]] = field(default_factory=dict)
    jvm_threads: tuple[ThreadRef, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A policy's answer: larger is more urgent; an operator that is absent stays at its baseline."""

    priorities: Mapping[OperatorKey, float] = field(default_factory=dict)
    metric: str = ""  # what the priorities were made from, for people
    unit: str = ""
    reason: str = ""  # set where the whole decision needs a word, e.g. "no policy"


class DesiredNice(NamedTuple):
    """What a translator wants of one thread, and why."""

    thread: ThreadRef
    nice: int
    priority: float | None
    operator: OperatorKey | None
