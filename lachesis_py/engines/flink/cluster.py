"""A real standalone Flink on loopback: one JobManager, some TaskManagers, each a process of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from lachesis_py.engines.cache import cache_directory, locked
from lachesis_py.engines.flink import launch, state
from lachesis_py.engines.flink.install import require
from lachesis_py.engines.flink.jobs import Jobs
from lachesis_py.engines.flink.launch import Report
from lachesis_py.engines.flink.rest import Rest, RestError
from lachesis_py.engines.flink.state import Settings, State
from lachesis_py.errors import LachesisError
from lachesis_py.kernel import process
from lachesis_py.kernel.process import ProcessIdentity

DEFAULT_NAME = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class FlinkCluster(Jobs):
    """A running cluster. As a context manager it is stopped at the end."""

    def __init__(self, directory: Path, current: State, *, cache: Path | None = None, was_running: bool = True) -> None:
        self.directory = directory
        self.was_running = was_running
        self._state = current
        self.rest = Rest(current.rest_url)
        super().__init__(self.rest, cache)

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def settings(self) -> Settings:
        return self._state.settings

    @property
    def rest_url(self) -> str:
        return self._state.rest_url

    @property
    def prometheus_urls(self) -> list[str]:
        """One for each TaskManager, in the order of `taskmanagers`."""
        return [record.prometheus_url for record in self._state.taskmanagers]

    @property
    def jobmanager(self) -> ProcessIdentity:
        assert self._state.jobmanager is not None
        return self._state.jobmanager

    @property
    def taskmanagers(self) -> list[ProcessIdentity]:
        return [record.process for record in self._state.taskmanagers]

    @property
    def taskmanager_ids(self) -> list[str]:
        """As the REST API and the labels of the metrics name them, in the order of `taskmanagers`."""
        return [record.id for record in self._state.taskmanagers]

    @property
    def flink_home(self) -> Path:
        return require(self._cache)

    @property
    def configuration_directory(self) -> Path:
        return self.directory / "conf"

    @property
    def log_directory(self) -> Path:
        return self.directory / "logs"

    def add_taskmanager(self, report: Report = lambda _: None) -> ProcessIdentity:
        """Start one more TaskManager and wait until it offers its slots."""
        with locked(_lock_of(self.directory)):
            before = self._state
            started = launch.launch_taskmanager(self.flink_home, self.directory, before, _next_index(before))
            try:
                self._state = launch.await_ready(self.directory, started, report)
            except BaseException:
                launch.end([started.taskmanagers[-1].process])
                state.save(self.directory, before)
                raise
            state.save(self.directory, self._state)
        return self.taskmanagers[-1]

    def kill_taskmanager(self, index: int) -> None:
        """SIGKILL to a TaskManager, as a crash would end it; it leaves the lists of this cluster."""
        with locked(_lock_of(self.directory)):
            records = self._state.taskmanagers
            process.terminate(records[index].process, grace=0)
            left = tuple(record for record in records if record is not records[index])
            self._state = msgspec.structs.replace(self._state, taskmanagers=left)
            state.save(self.directory, self._state)

    def stop(self) -> int:
        """End the processes we started and forget them; logs stay. Returns how many were still there."""
        with locked(_lock_of(self.directory)):
            known = state.load(self.directory) or self._state
            ended = launch.end({*known.processes(), *self._state.processes()})
            for part in ("tmp", "jars"):
                shutil.rmtree(self.directory / part, ignore_errors=True)
            state.forget(self.directory)
        return ended

    def status(self) -> dict[str, Any]:
        """Everything a person or a program needs to go on with this cluster."""
        living = set(self._state.processes())
        try:
            jobs = [
                {"id": job["jid"], "name": job["name"], "state": job["state"], "duration_s": job["duration"] / 1000}
                for job in self.overview()
            ]
            problem = None
        except RestError as error:
            jobs, problem = [], str(error)
        return {
            "name": self.name,
            "engine": "flink",
            "version": self._state.version,
            "running": self._state.running() and problem is None,
            "problem": problem,
            "rest_url": self.rest_url,
            "directory": str(self.directory),
            "flink_home": str(self.flink_home),
            "configuration_directory": str(self.configuration_directory),
            "log_directory": str(self.log_directory),
            "slots_per_taskmanager": self.settings.slots,
            "jobmanager": {"pid": self.jobmanager.pid, "alive": self.jobmanager in living},
            "taskmanagers": [
                {
                    "id": record.id,
                    "pid": record.process.pid,
                    "alive": record.process in living,
                    "prometheus_url": record.prometheus_url,
                }
                for record in self._state.taskmanagers
            ],
            "jobs": jobs,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    *,
    name: str = DEFAULT_NAME,
    taskmanagers: int = 1,
    slots: int = 8,
    directory: Path | None = None,
    adaptive: bool = False,
    extra_conf: Mapping[str, str] | None = None,
    taskmanager_memory: str = "1g",
    jobmanager_memory: str = "768m",
    progress: Report = lambda _: None,
    cache: Path | None = None,
) -> FlinkCluster:
    """Start a cluster, or return the one that runs under this name already (`was_running`)."""
    home = require(cache)
    if taskmanagers < 1 or slots < 1:
        raise LachesisError("a cluster needs at least one TaskManager with at least one slot")
    settings = Settings(
        taskmanagers=taskmanagers,
        slots=slots,
        adaptive=adaptive,
        taskmanager_memory=taskmanager_memory,
        jobmanager_memory=jobmanager_memory,
        extra_conf=dict(extra_conf or {}),
    )
    where = _directory_of(name, directory, cache)
    with locked(_lock_of(where), waiting=lambda: progress(f"Another command works on cluster {name}: waiting for it")):
        known = state.load(where)
        if known is not None and known.running():
            return FlinkCluster(where, known, cache=cache, was_running=True)
        if known is not None:
            progress(f"Ending what is left of an earlier cluster {name}")
            launch.end(known.processes())
            state.forget(where)
        current = launch.bring_up(home, where, name, settings, progress)
    return FlinkCluster(where, current, cache=cache, was_running=False)


def find(name: str = DEFAULT_NAME, *, directory: Path | None = None, cache: Path | None = None) -> FlinkCluster | None:
    """A cluster that was started and not stopped, whether its processes still live or not."""
    where = _directory_of(name, directory, cache)
    known = state.load(where)
    if known is None or known.jobmanager is None:
        return None
    return FlinkCluster(where, known, cache=cache)


def find_all(cache: Path | None = None) -> list[FlinkCluster]:
    """Every cluster in the cache's own run directory."""
    names = sorted(path.parent.name for path in _run_directory(cache).glob(f"*/{state.STATE_FILE}"))
    return [cluster for name in names if (cluster := find(name, cache=cache)) is not None]


def _run_directory(cache: Path | None) -> Path:
    return (cache or cache_directory()) / "run" / "flink"


def _directory_of(name: str, directory: Path | None, cache: Path | None) -> Path:
    if not _NAME.fullmatch(name):
        raise LachesisError(f"{name!r} is no name for a cluster: use letters, digits, - and _, 64 at most")
    return directory.absolute() if directory is not None else _run_directory(cache) / name


def _lock_of(directory: Path) -> Path:
    return directory / "lock"


def _next_index(current: State) -> int:
    used = [int(record.id.rsplit("-", 2)[1]) for record in current.taskmanagers]
    return max(used, default=-1) + 1
