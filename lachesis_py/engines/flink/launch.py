"""Brings the processes of a cluster up, and down again when one of them fails."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from lachesis_py.engines import ports
from lachesis_py.engines.flink import configuration, state
from lachesis_py.engines.flink.install import VERSION
from lachesis_py.engines.flink.rest import Rest, RestError, serves_taskmanager
from lachesis_py.engines.flink.state import Settings, State, TaskManagerRecord
from lachesis_py.engines.tools import last_lines
from lachesis_py.errors import LachesisError
from lachesis_py.kernel import process
from lachesis_py.kernel.process import ProcessIdentity

Report = Callable[[str], object]
READY_TIMEOUT_S = 120.0
STOP_GRACE_S = 10.0
POLL_INTERVAL_S = 0.1
PORT_ATTEMPTS = 3
PROMETHEUS_PORTS = 5  # Flink's reporter takes the first free one
PORT_TAKEN = re.compile(r"BindException|Address already in use")
LOG_TAIL_BYTES = 64 << 10


class PortTaken(LachesisError):
    """Somebody else took a port between our look and Flink's."""


def bring_up(home: Path, directory: Path, name: str, settings: Settings, report: Report) -> State:
    """Start a cluster whose REST API, slots and reporters all answer; leave nothing running otherwise."""
    for attempt in range(1, PORT_ATTEMPTS + 1):
        try:
            return _attempt(home, directory, name, settings, report)
        except PortTaken as error:
            if attempt == PORT_ATTEMPTS:
                raise
            report(f"A port was taken meanwhile ({error}): trying others")
    raise AssertionError("unreachable")


def _attempt(home: Path, directory: Path, name: str, settings: Settings, report: Report) -> State:
    for part in ("conf", "logs", "tmp", "jars"):
        shutil.rmtree(directory / part, ignore_errors=True)
        (directory / part).mkdir(parents=True)
    chosen = configuration.Ports(*(ports.free_ports()[0] for _ in range(2)))
    own = configuration.own_settings(directory, chosen, settings)
    whole = configuration.write_configuration(home, directory / "conf", own)
    report("Asking Flink for its memory settings")
    commands = configuration.Commands(home, directory, whole)
    with ThreadPoolExecutor(2) as pool:
        jobmanager, taskmanager = pool.map(lambda ask: ask(), (commands.jobmanager, commands.taskmanager))
    current = State(
        name=name,
        version=VERSION,
        boot=process.boot_id(),
        rest_url=f"http://127.0.0.1:{chosen.rest}",
        settings=settings,
        taskmanager_command=taskmanager,
    )
    try:
        report(f"Starting a JobManager and {settings.taskmanagers} TaskManager(s) with {settings.slots} slots each")
        # Flink has one reporter setting for all roles, and nobody reads the JobManager's: leave it out there.
        command = configuration.with_identity(
            jobmanager, "jobmanager", directory / "logs", {"metrics.reporters": "none"}
        )
        current = msgspec.structs.replace(current, jobmanager=_launch(home, directory, "jobmanager", command))
        state.save(directory, current)
        for index in range(settings.taskmanagers):
            current = launch_taskmanager(home, directory, current, index)
        current = await_ready(directory, current, report)
        current = msgspec.structs.replace(current, ready=True)
        state.save(directory, current)
    except BaseException:
        end(current.processes())
        state.forget(directory)
        raise
    return current


def launch_taskmanager(home: Path, directory: Path, current: State, index: int) -> State:
    identity = f"{current.name}-tm-{index}-{secrets.token_hex(3)}"
    candidates = ports.free_ports(PROMETHEUS_PORTS)
    properties = {
        "taskmanager.resource-id": identity,
        "metrics.reporter.prom.port": f"{candidates.start}-{candidates.stop - 1}",
    }
    command = configuration.with_identity(current.taskmanager_command, identity, directory / "logs", properties)
    born = _launch(home, directory, identity, command)
    record = TaskManagerRecord(
        id=identity, process=born, prometheus_ports=(candidates.start, candidates.stop), prometheus_url=""
    )
    current = msgspec.structs.replace(current, taskmanagers=(*current.taskmanagers, record))
    state.save(directory, current)
    return current


def _launch(home: Path, directory: Path, role: str, command: list[str]) -> ProcessIdentity:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FLINK_")}
    environment |= {
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(directory / "conf"),
        "FLINK_LIB_DIR": str(home / "lib"),
        "FLINK_OPT_DIR": str(home / "opt"),
        "FLINK_PLUGINS_DIR": str(home / "plugins"),
        "FLINK_BIN_DIR": str(home / "bin"),
        "FLINK_LOG_DIR": str(directory / "logs"),
        "MAX_LOG_FILE_NUMBER": "3",
        "ROOT_LOG_LEVEL": "INFO",
    }
    output = directory / "logs" / f"{role}.out"
    return process.launch(command, directory=directory, environment=environment, output=output)


def await_ready(directory: Path, current: State, report: Report) -> State:
    """Wait until every recorded TaskManager has its slots and its reporter answers; returns their addresses."""
    rest = Rest(current.rest_url)
    deadline = time.monotonic() + READY_TIMEOUT_S
    said = ""
    while True:
        _fail_if_ended(directory, current)
        registered = _registered(rest)
        records = tuple(_with_address(record) if record.id in registered else record for record in current.taskmanagers)
        current = msgspec.structs.replace(current, taskmanagers=records)
        ready = sum(bool(record.prometheus_url) for record in records)
        if ready == len(records):
            report(f"{ready} of {len(records)} TaskManagers are ready")
            return current
        stage = f"{ready} of {len(records)} TaskManagers are ready" if registered else "Waiting for the JobManager"
        if stage != said:
            report(stage)
            said = stage
        if time.monotonic() > deadline:
            missing = [record.id for record in records if not record.prometheus_url]
            raise LachesisError(
                f"the cluster was not ready within {READY_TIMEOUT_S:.0f} s (waiting for {', '.join(missing)}): is the"
                f" machine overloaded?\n{_tail(directory, missing[0])}"
            )
        time.sleep(POLL_INTERVAL_S)


def _registered(rest: Rest) -> set[str]:
    """TaskManagers that offer slots. The ids are random, so another cluster's answer never passes for ours."""
    try:
        answer = rest.get("/taskmanagers", timeout=3)
        return {manager["id"] for manager in answer["taskmanagers"] if manager["slotsNumber"] > 0}
    except (RestError, KeyError, TypeError):
        return set()


def _with_address(record: TaskManagerRecord) -> TaskManagerRecord:
    if record.prometheus_url:
        return record
    for port in range(*record.prometheus_ports):
        url = f"http://127.0.0.1:{port}/metrics"
        if serves_taskmanager(url, record.id):
            return msgspec.structs.replace(record, prometheus_url=url)
    return record


def _fail_if_ended(directory: Path, current: State) -> None:
    roles = [("jobmanager", current.jobmanager)] + [(record.id, record.process) for record in current.taskmanagers]
    for role, identity in roles:
        if identity is None or process.alive(identity):
            continue
        tail = _tail(directory, role)
        kind = PortTaken if PORT_TAKEN.search(tail) else LachesisError
        raise kind(f"{role} ended while the cluster was starting. Its log says:\n{tail}")


def _tail(directory: Path, role: str) -> str:
    """The end of a process's log, or of its output where it did not come as far as logging."""
    for path in (directory / "logs" / f"{role}.log", directory / "logs" / f"{role}.out"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as handle:
                handle.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                text = handle.read().decode(errors="replace")
            return f"{last_lines(text, 20)}\n  (from {path})"
    return f"  nothing (in {directory / 'logs'})"


def end(processes: Iterable[ProcessIdentity]) -> int:
    """End processes side by side; returns how many were still there."""
    targets = list(processes)
    if not targets:
        return 0
    with ThreadPoolExecutor(len(targets)) as pool:
        return sum(pool.map(lambda target: process.terminate(target, STOP_GRACE_S), targets))
