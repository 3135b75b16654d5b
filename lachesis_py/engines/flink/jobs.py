"""Jobs on a cluster: compiled, submitted, rescaled and cancelled."""

from __future__ import annotations

import hashlib
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lachesis_py.engines import tools
from lachesis_py.engines.cache import cache_directory
from lachesis_py.engines.flink import sql
from lachesis_py.engines.flink.configuration import classpath
from lachesis_py.engines.flink.install import VERSION, require
from lachesis_py.engines.flink.rest import Rest, RestError
from lachesis_py.errors import LachesisError
from lachesis_py.workloads.flink import CHAIN_JOB, SOURCES, SQL_JOB

RUNNING_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1
JAVA_RELEASE = "17"
UNCHAINED = {"pipeline.operator-chaining.enabled": "false"}
ENDED_STATES = frozenset({"FAILED", "CANCELED", "FINISHED"})


def workload_jar(cache: Path | None = None) -> Path:
    """Our Java jobs as a jar, compiled once for each version of their sources."""
    digest = hashlib.sha256(f"{VERSION} {JAVA_RELEASE}".encode())
    for source in SOURCES:
        digest.update(source.name.encode() + source.read_bytes())
    jar = (cache or cache_directory()) / "jars" / f"lachesis-flink-{digest.hexdigest()[:16]}.jar"
    if jar.is_file():
        return jar
    javac = tools.find_tool("javac", "compile Flink jobs")
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=jar.parent) as scratch:
        classes = Path(scratch) / "classes"
        command = [javac, "--release", JAVA_RELEASE, "-nowarn", "-classpath", classpath(require(cache))]
        command += ["-d", str(classes), *map(str, SOURCES)]
        tools.run_tool(command, "compile Flink jobs", timeout=120)
        partial = Path(scratch) / jar.name
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\r\n\r\n")
            for path in sorted(classes.rglob("*.class")):
                archive.write(path, path.relative_to(classes))
        partial.rename(jar)
    return jar


class Jobs:
    def __init__(self, rest: Rest, cache: Path | None = None) -> None:
        self._rest = rest
        self._cache = cache

    def submit_chain(
        self,
        *,
        name: str = "chain",
        operators: int | Sequence[str] = 5,
        costs_us: float | Sequence[float] = 10.0,
        rate: float = 1000.0,
        parallelism: int = 1,
        conf: Mapping[str, str] | None = None,
    ) -> str:
        """Start source -> operators -> sink, each a thread of its own, and wait until all of them run.

        `operators` is a number or names; `costs_us` the CPU time per record of each (or of all); `rate` in records
        per second over all source instances, 0 for as many as the chain bears.
        """
        names = [f"op{i}" for i in range(1, operators + 1)] if isinstance(operators, int) else list(operators)
        costs = [float(costs_us)] * len(names) if isinstance(costs_us, int | float) else list(costs_us)
        if len(names) != len(costs) or not names:
            raise ValueError(f"{len(names)} operators need as many costs, not {len(costs)}")
        arguments = ["--name", name, "--operators", ",".join(names), "--costs-us", ",".join(map(str, costs))]
        arguments += ["--rate", str(rate), "--parallelism", str(parallelism)]
        return self._run(CHAIN_JOB, arguments, parallelism, dict(conf or {}))

    def submit_sql(
        self,
        script: str | Path,
        *,
        parallelism: int = 1,
        name: str | None = None,
        chaining: bool = False,
        conf: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Start every job of a SQL script. Settings: ours, overruled by the script's SET, overruled by `conf`."""
        text = script.read_text() if isinstance(script, Path) else script
        ours = {} if chaining else dict(UNCHAINED)
        if name:
            ours["pipeline.name"] = name
        jobs = sql.submissions(text)
        return [
            self._run(SQL_JOB, list(job.statements), parallelism, ours | job.settings | dict(conf or {}))
            for job in jobs
        ]

    def _run(self, main: str, arguments: list[str], parallelism: int, conf: dict[str, str]) -> str:
        body = {
            "entryClass": main,
            "programArgsList": arguments,
            "parallelism": parallelism,
            "flinkConfiguration": conf,
        }
        answer = self._rest.post(f"/jars/{self._uploaded()}/run", body)
        job: str = answer["jobid"]
        self.await_running(job)
        return job

    def _uploaded(self) -> str:
        jar = workload_jar(self._cache)
        for known in self._rest.get("/jars")["files"]:
            if known["name"] == jar.name:
                return str(known["id"])
        return Path(self._rest.upload_jar(jar)["filename"]).name

    def await_running(self, job: str, timeout: float = RUNNING_TIMEOUT_S) -> None:
        """Wait until every task of the job runs."""
        deadline = time.monotonic() + timeout
        while True:
            details = self.details(job)
            states = {vertex["status"] for vertex in details["vertices"]}
            if details["state"] in ENDED_STATES:
                raise LachesisError(f"job {job} is {details['state']}: {self._failure(job)}")
            if details["state"] == "RUNNING" and states == {"RUNNING"}:
                return
            if time.monotonic() > deadline:
                slots = self._rest.get("/overview")["slots-available"]
                raise LachesisError(
                    f"job {job} does not run on all its tasks within {timeout:.0f} s (it is {details['state']}); the"
                    f" cluster has {slots} free slots: start it with more --slots or --taskmanagers"
                )
            time.sleep(POLL_INTERVAL_S)

    def details(self, job: str) -> Any:
        return self._rest.get(f"/jobs/{job}")

    def overview(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self._rest.get("/jobs/overview")["jobs"]
        return jobs

    def _failure(self, job: str) -> str:
        history = self._rest.get(f"/jobs/{job}/exceptions?maxExceptions=1")["exceptionHistory"]["entries"]
        return history[0]["stacktrace"].splitlines()[0] if history else "no reason given"

    def cancel(self, job: str, timeout: float = 30.0) -> None:
        """Cancel a job and wait until it has ended; one that has ended already is fine."""
        try:
            self._rest.patch(f"/jobs/{job}?mode=cancel")
        except RestError as error:
            if error.status != 409:  # it has ended meanwhile
                raise
        deadline = time.monotonic() + timeout
        while self.details(job)["state"] not in ENDED_STATES:
            if time.monotonic() > deadline:
                raise LachesisError(f"job {job} is still not cancelled after {timeout:.0f} s")
            time.sleep(POLL_INTERVAL_S)

    def rescale(self, job: str, parallelism: int, timeout: float = RUNNING_TIMEOUT_S) -> None:
        """Give every vertex of a job this parallelism and wait until it has it."""
        path = f"/jobs/{job}/resource-requirements"
        vertices = [vertex["id"] for vertex in self.details(job)["vertices"]]
        bounds = {"lowerBound": 1, "upperBound": parallelism}
        try:
            self._rest.put(path, {vertex: {"parallelism": bounds} for vertex in vertices})
        except RestError as error:
            if error.status == 500:
                raise LachesisError(
                    "this cluster cannot rescale a running job: start it with --adaptive (the adaptive scheduler)"
                ) from error
            raise
        deadline = time.monotonic() + timeout
        while any(vertex["parallelism"] != parallelism for vertex in self.details(job)["vertices"]):
            if time.monotonic() > deadline:
                raise LachesisError(f"job {job} does not have parallelism {parallelism} after {timeout:.0f} s")
            time.sleep(POLL_INTERVAL_S)
        self.await_running(job, max(1.0, deadline - time.monotonic()))
