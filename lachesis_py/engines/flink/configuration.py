"""The configuration of a cluster, and the Java commands that Flink derives from it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lachesis_py.engines import tools
from lachesis_py.engines.flink.state import Settings
from lachesis_py.errors import LachesisError

CONFIG_FILE = "config.yaml"
LOG_CONFIG = "log4j.properties"
JOBMANAGER_CLASS = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASKMANAGER_CLASS = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
RESULT_PREFIX = "BASH_JAVA_UTILS_EXEC_RESULT:"
PURPOSE = "run Flink"


class Ports(NamedTuple):
    rpc: int
    rest: int


def own_settings(directory: Path, ports: Ports, settings: Settings) -> dict[str, str]:
    """What we set beside what Flink ships."""
    scratch = str(directory / "tmp")
    conf = {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": str(ports.rpc),
        "rest.address": "localhost",
        "rest.bind-address": "localhost",
        "rest.port": str(ports.rest),
        "taskmanager.numberOfTaskSlots": str(settings.slots),
        "jobmanager.memory.process.size": settings.jobmanager_memory,
        "jobmanager.memory.jvm-overhead.min": "96m",
        "taskmanager.memory.process.size": settings.taskmanager_memory,
        # Flink gives 40 % to managed memory by default; jobs without RocksDB or batch operators leave it idle.
        "taskmanager.memory.managed.size": "32m",
        "taskmanager.memory.jvm-overhead.min": "96m",
        "io.tmp.dirs": scratch,
        "web.tmpdir": scratch,
        "web.upload.dir": str(directory / "jars"),
        "metrics.fetcher.update-interval": "200",
        "web.refresh-interval": "200",  # how old the answers on jobs may be; 3 s by default
        "metrics.reporter.prom.factory.class": "org.apache.flink.metrics.prometheus.PrometheusReporterFactory",
        "metrics.reporter.prom.filterLabelValueCharacters": "false",
        # A lost TaskManager is noticed by a refused heartbeat; a busy machine still has the default 50 s to answer.
        "heartbeat.interval": "1000",
        # TaskManagers start beside the JobManager and would otherwise try again only after 10 s.
        "cluster.registration.error-delay": "250",
        "taskmanager.load-balance.mode": "slots",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000000",
        "restart-strategy.fixed-delay.delay": "1 s",
    }
    if settings.adaptive:
        conf |= {
            "jobmanager.scheduler": "adaptive",
            "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
            "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "1 s",
        }
    return conf | settings.extra_conf


def write_configuration(home: Path, target: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Flink's shipped configuration with our settings over it, in a directory of its own. Returns the whole."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (home / "conf").iterdir():
        if path.name != CONFIG_FILE and path.is_file():
            shutil.copyfile(path, target / path.name)
    shipped = yaml.safe_load((home / "conf" / CONFIG_FILE).read_text())
    whole = dict(_flat(shipped or {})) | dict(own)
    # A JSON string is a YAML string, however odd the value.
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(whole.items()))
    (target / CONFIG_FILE).write_text(text)
    return whole


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield f"{prefix}{key}", str(value).lower()
        elif value is not None:
            yield f"{prefix}{key}", str(value)


class Commands:
    """Builds the command lines of the cluster's processes, as Flink's own scripts would.

    The scripts start a Java process three times to parse the configuration; we ask once per role.
    """

    def __init__(self, home: Path, directory: Path, conf: Mapping[str, str]) -> None:
        self._home = home
        self._directory = directory
        self._conf = conf
        self._java, self._java_version = tools.find_java(PURPOSE)

    def jobmanager(self) -> tuple[str, ...]:
        return self._command("GET_JM_RESOURCE_PARAMS", "env.java.opts.jobmanager", JOBMANAGER_CLASS)

    def taskmanager(self) -> tuple[str, ...]:
        return self._command("GET_TM_RESOURCE_PARAMS", "env.java.opts.taskmanager", TASKMANAGER_CLASS)

    def _command(self, question: str, options_key: str, main_class: str) -> tuple[str, ...]:
        jvm_memory, dynamic = self._resources(question)
        options = [
            option
            for key in ("env.java.default-opts.all", "env.java.opts.all", options_key)
            for option in shlex.split(self._conf.get(key, ""))
        ]
        if self._java_version > 17:
            options.append("-Djava.security.manager=allow")
        log_config = self._directory / "conf" / LOG_CONFIG
        return (
            self._java,
            *jvm_memory,
            "-XX:+IgnoreUnrecognizedVMOptions",
            *options,
            f"-Dlog4j.configurationFile=file:{log_config}",
            "-classpath",
            classpath(self._home),
            main_class,
            "--configDir",
            str(self._directory / "conf"),
            *dynamic,
        )

    def _resources(self, question: str) -> tuple[list[str], list[str]]:
        """The memory options of the JVM and the dynamic properties that go with them."""
        dist = _dist_jar(self._home)
        utilities = self._home / "bin" / "bash-java-utils.jar"
        command = [self._java, "-XX:TieredStopAtLevel=1", "-classpath", f"{utilities}:{dist}"]
        command += ["org.apache.flink.runtime.util.bash.BashJavaUtils", question]
        command += ["--configDir", str(self._directory / "conf")]
        answer = tools.run_tool(command, "work out Flink's memory settings", timeout=120, directory=self._directory)
        results = [
            line.removeprefix(RESULT_PREFIX).split() for line in answer.splitlines() if line.startswith(RESULT_PREFIX)
        ]
        if len(results) != 2:
            raise LachesisError(f"Flink gave no memory settings:\n{tools.last_lines(answer)}")
        return results[0], results[1]


def classpath(home: Path) -> str:
    """Every jar of lib/, the distribution last: the order of Flink's scripts."""
    dist = _dist_jar(home)
    others = sorted(str(jar) for jar in (home / "lib").glob("*.jar") if jar != dist)
    return ":".join([*others, str(dist)])


def _dist_jar(home: Path) -> Path:
    return next((home / "lib").glob("flink-dist-*.jar"))


def with_identity(command: tuple[str, ...], role: str, logs: Path, properties: Mapping[str, str]) -> list[str]:
    """The command of one process: with its own log file and its own dynamic properties."""
    main = next(i for i, word in enumerate(command) if word == "-classpath")
    dynamic = [word for key, value in properties.items() for word in ("-D", f"{key}={value}")]
    return [*command[:main], f"-Dlog.file={logs / role}.log", *command[main:], *dynamic]
