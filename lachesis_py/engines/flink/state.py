"""What we remember of a cluster between commands: a JSON file in its directory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lachesis_py.errors import LachesisError
from lachesis_py.kernel.process import ProcessIdentity, alive, boot_id

STATE_FILE = "state.json"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster was asked to be."""

    taskmanagers: int = 1
    slots: int = 8
    adaptive: bool = False
    taskmanager_memory: str = "1g"
    jobmanager_memory: str = "768m"
    extra_conf: dict[str, str] = msgspec.field(default_factory=dict)


class TaskManagerRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str  # as the engine names it
    process: ProcessIdentity
    prometheus_ports: tuple[int, int]  # from, to (exclusive): where its reporter may listen
    prometheus_url: str = ""  # where it does


class State(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` is set last: a state without it belongs to a start that did not finish."""

    name: str
    version: str
    boot: str
    rest_url: str
    settings: Settings
    ready: bool = False
    jobmanager: ProcessIdentity | None = None
    taskmanager_command: tuple[str, ...] = ()
    taskmanagers: tuple[TaskManagerRecord, ...] = ()

    def processes(self) -> list[ProcessIdentity]:
        """Those that still run; none after a reboot, whatever the numbers say."""
        if self.boot != boot_id():
            return []
        recorded = [record.process for record in self.taskmanagers]
        if self.jobmanager is not None:
            recorded.append(self.jobmanager)
        return [process for process in recorded if alive(process)]

    def running(self) -> bool:
        return self.ready and self.jobmanager is not None and self.jobmanager in self.processes()


def load(directory: Path) -> State | None:
    path = directory / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise LachesisError(
            f"{path} cannot be read ({error}): make sure the cluster's processes have ended, then remove it"
        ) from error


def save(directory: Path, state: State) -> None:
    partial = directory / f".{STATE_FILE}.{os.getpid()}"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    partial.rename(directory / STATE_FILE)


def forget(directory: Path) -> None:
    (directory / STATE_FILE).unlink(missing_ok=True)
