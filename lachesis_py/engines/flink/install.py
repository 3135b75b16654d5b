"""Installs Flink into the cache: wheels from the Python index, the SQL gateway through Maven."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lachesis_py.engines import tools
from lachesis_py.engines.cache import cache_directory, locked, staged
from lachesis_py.engines.progress import Progress, silent
from lachesis_py.errors import LachesisError

VERSION = "2.3.0"
MANIFEST = "lachesis-manifest.json"
PURPOSE = "install Flink"
DOWNLOAD_TIMEOUT_S = 1800.0
MEGABYTE = 1_000_000


class Wheel(NamedTuple):
    requirement: str
    sha256: str
    size: int


WHEELS = (
    Wheel(
        f"apache-flink-libraries=={VERSION}",
        "38ece876553286b3a285cf344c2d2038f8a7ca10da5df54d5107250386d64151",
        329_139_814,
    ),
    Wheel(
        f"apache-flink=={VERSION}",
        "0e5f612704de1610b153e919c0564b62ad513cddfcf4960f5a021658cdf41a13",
        2_838_429,
    ),
)
# Only scripts and jars are taken from the wheels, so any machine can use those of one platform.
WHEEL_PLATFORM = ["--platform=manylinux2014_x86_64", "--python-version=3.11", "--implementation=cp", "--abi=cp311"]
GATEWAY = f"org.apache.flink:flink-sql-gateway:{VERSION}:jar"
GATEWAY_SHA256 = "aad296a152dc367ddd70727f5a57dd61958cff3d8dceb1f947bf8d9705c8d724"
WANTED_DIRECTORIES = frozenset({"bin", "conf", "lib", "opt", "plugins"})
UNWANTED_PREFIX = "flink-python"  # 43 MB that only PyFlink needs


def home(cache: Path | None = None) -> Path:
    """FLINK_HOME, whether it is installed yet or not."""
    return (cache or cache_directory()) / "engines" / f"flink-{VERSION}"


def installed(directory: Path) -> bool:
    """Whether every file of the installation is there at its full size."""
    try:
        sizes = json.loads((directory / MANIFEST).read_text())
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def require(cache: Path | None = None) -> Path:
    directory = home(cache)
    if not installed(directory):
        raise LachesisError(f"Flink {VERSION} is not installed in {directory}: run `lachesis engine install flink`")
    return directory


def install(*, cache: Path | None = None, progress: Progress = silent) -> tuple[Path, bool]:
    """Make sure Flink is in the cache. Returns FLINK_HOME and whether it was there already."""
    directory = home(cache)
    if installed(directory):
        return directory, True
    tools.find_java(PURPOSE)
    maven = tools.find_tool("mvn", PURPOSE)
    lock = directory.with_name(f".{directory.name}.lock")
    with locked(lock, waiting=lambda: progress("Another installation of Flink is under way: waiting for it")):
        if installed(directory):
            return directory, True
        if directory.exists():
            progress(f"Removing a damaged installation in {directory}")
            shutil.rmtree(directory)
        with staged(directory) as staging:
            _fill(staging, maven, progress)
    progress(f"Flink {VERSION} is installed in {directory}")
    return directory, False


def _fill(staging: Path, maven: str, progress: Progress) -> None:
    scratch = staging / "scratch"
    wheels = scratch / "wheels"
    gateway = scratch / "gateway"
    for path in (wheels, gateway):
        path.mkdir(parents=True)
    # Maven spends its time waiting for small files: it runs beside the large download.
    with _running([maven, *_maven_arguments(gateway)], gateway) as maven_child:
        _download_wheels(wheels, scratch, progress)
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, staging, progress)
        progress(f"Fetching {GATEWAY} through Maven")
        _await(maven_child, "fetch the SQL gateway", gateway)
    jar = gateway / f"flink-sql-gateway-{VERSION}.jar"
    _check_sha256(jar, GATEWAY_SHA256)
    jar.rename(staging / "opt" / jar.name)
    shutil.rmtree(scratch)
    for script in (staging / "bin").iterdir():
        script.chmod(0o755)
    files = [path for path in staging.rglob("*") if path.is_file()]
    manifest = {str(path.relative_to(staging)): path.stat().st_size for path in sorted(files)}
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=0))


def _maven_arguments(output: Path) -> list[str]:
    return ["--batch-mode", "dependency:copy", f"-Dartifact={GATEWAY}", f"-DoutputDirectory={output}"]


def _download_wheels(wheels: Path, scratch: Path, progress: Progress) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text("".join(f"{w.requirement} --hash=sha256:{w.sha256}\n" for w in WHEELS))
    pip_log = scratch / "pip"
    pip_log.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += [*WHEEL_PLATFORM, "--require-hashes", f"--requirement={requirements}", f"--dest={wheels}"]
    total = sum(wheel.size for wheel in WHEELS)
    progress(f"Downloading Flink {VERSION}: {total // MEGABYTE} MB")
    with _running(command, pip_log) as child:
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.3)
            # pip writes to its temporary directory first and then copies: both are below ours.
            done = min(_size_below(scratch), total)
            progress(f"Downloading: {done // MEGABYTE} of {total // MEGABYTE} MB", part=done / total)
        _await(child, "download Flink's wheels", pip_log)


@contextlib.contextmanager
def _running(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that writes to `directory`/output and never outlives the block."""
    environment = {**os.environ, "TMPDIR": str(directory), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with (directory / "output").open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _await(child: subprocess.Popen[bytes], purpose: str, directory: Path) -> None:
    deadline = time.monotonic() + DOWNLOAD_TIMEOUT_S
    try:
        status = child.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise LachesisError(f"could not {purpose} within {DOWNLOAD_TIMEOUT_S:.0f} s: check the network") from error
    if status != 0:
        text = (directory / "output").read_text(errors="replace")
        raise LachesisError(
            f"could not {purpose} (exit status {status}): check the network and try again\n{tools.last_lines(text)}"
        )


def _unpack(wheel: Path, target: Path, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [(member, where) for member in archive.infolist() if (where := _wanted(member.filename))]
        total = sum(member.file_size for member, _ in members) or 1
        done = 0
        progress(f"Unpacking {wheel.name.partition('-')[0]}: {total / MEGABYTE:.1f} MB")
        for member, where in members:
            path = target / where
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            done += member.file_size
            progress(f"Unpacking: {done / MEGABYTE:.1f} of {total / MEGABYTE:.1f} MB", part=done / total)
    wheel.unlink()


def _wanted(member: str) -> PurePosixPath | None:
    path = PurePosixPath(member)
    if member.endswith("/") or ".." in path.parts or len(path.parts) < 3 or path.parts[0] != "pyflink":
        return None
    if path.parts[1] not in WANTED_DIRECTORIES or path.name.startswith(UNWANTED_PREFIX):
        return None
    return path.relative_to("pyflink")


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != expected:
        raise LachesisError(
            f"{path.name} is not the file we know (sha256 {found}, expected {expected}): check which repository your"
            " Maven settings name"
        )


def _size_below(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(root, name)).st_size
    return total
