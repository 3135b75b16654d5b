"""Boots a real kernel in user-mode-linux with the files of this machine as its root.

The guest sees every file of the host and may write everywhere, but what it writes stays in its memory (init.sh).
It is a kernel of its own: cgroup v2 with the cpu controller, systemd as the first process, loopback only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
KERNEL = "linux.uml"
OUTPUT_LIMIT_BYTES = 8 << 20
LARGE_REGISTER_FILE_FLAGS = {"amx_tile", "apx"}

BEGIN_MARK = "GUEST-BEGIN"
EXIT_MARK = "GUEST-EXIT"
RUN_SCRIPT = f"""#!/bin/sh
echo "{BEGIN_MARK}"
"${{0%/*}}/script"
echo "{EXIT_MARK} $?"
"""
START_PLAIN = """#!/bin/sh
"${0%/*}/run"
echo o >/proc/sysrq-trigger
sleep 60
"""
START_SYSTEMD = """#!/bin/sh
exec /lib/systemd/systemd --unit=guest.target --show-status=no
"""
SYSTEMD_TARGET = """[Unit]
DefaultDependencies=no
Requires=sysinit.target
Wants=guest.service
"""
SYSTEMD_SERVICE = """[Unit]
DefaultDependencies=no
After=sysinit.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart={directory}/run
ExecStopPost=/bin/systemctl poweroff -ff
StandardOutput=file:/dev/console
StandardError=file:/dev/console
"""
# An empty file hides the one of the distribution: time servers that the guest cannot reach, and the emptying of /tmp
# at boot, which would take the script along.
MASKED = ("run/systemd/system/systemd-timesyncd.service", "run/tmpfiles.d/tmp.conf")


class GuestError(Exception):
    """The guest could not be booted or did not end by itself; the message carries what it printed."""


@dataclass(frozen=True)
class Boot:
    output: str
    exit_code: int
    seconds: float

    def check(self) -> str:
        """The output of a script that ended well."""
        if self.exit_code != 0:
            raise GuestError(f"the script in the guest ended with {self.exit_code}:\n{self.output}")
        return self.output


def boot(script: str, *, timeout_s: float = 60.0, memory: str = "512M", files: Mapping[str, str] | None = None) -> Boot:
    """Runs a script (for sh, unless it begins with #!) as the only work of a guest. `files`: path -> content."""
    with _guest_directory(script, START_PLAIN, files or {}) as directory:
        return _run(directory, timeout_s, memory)


def boot_systemd(
    script: str, *, timeout_s: float = 120.0, memory: str = "512M", files: Mapping[str, str] | None = None
) -> Boot:
    """The same with systemd as the first process: the script runs when sysinit.target is reached."""
    with _guest_directory(script, START_SYSTEMD, files or {}) as directory:
        _write(directory / "files/run/systemd/system/guest.target", SYSTEMD_TARGET)
        _write(directory / "files/run/systemd/system/guest.service", SYSTEMD_SERVICE.format(directory=directory))
        for path in MASKED:
            _write(directory / "files" / path, "")
        return _run(directory, timeout_s, memory)


def run_python(
    arguments: Sequence[str], *, timeout_s: float = 120.0, memory: str = "1024M", systemd: bool = False
) -> Boot:
    """Runs this project's Python in the guest from the project's root: `["-m", "pytest", "tests/x.py"]`."""
    command = shlex.join([sys.executable, "-B", *arguments])
    script = f"cd {shlex.quote(str(PROJECT))} && exec {command}"
    return (boot_systemd if systemd else boot)(script, timeout_s=timeout_s, memory=memory)


@contextlib.contextmanager
def _guest_directory(script: str, start: str, files: Mapping[str, str]) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="lachesis-uml-"))
    try:
        for name in ("init.sh", "prepare.py"):
            _write(directory / name, (HERE / name).read_text())
        _write(directory / "environment", f"GUEST_PYTHON={shlex.quote(sys.executable)}\n")
        _write(directory / "start", start)
        _write(directory / "run", RUN_SCRIPT)
        _write(directory / "script", script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        for path, content in files.items():
            _write(directory / "files" / path.lstrip("/"), content)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755 if content.startswith("#!") else 0o644)


def _run(directory: Path, timeout_s: float, memory: str) -> Boot:
    started = time.monotonic()
    console = directory / "console"
    with console.open("wb") as output:
        process = subprocess.Popen(
            _command(directory, memory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(directory),
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise GuestError(f"the guest did not end within {timeout_s:g} s:\n{_printed(console)}") from None
        finally:
            _end_session(process)
    printed = _printed(console)
    match = re.search(rf"^{EXIT_MARK} (\d+)$", printed, re.MULTILINE)
    if match is None:
        raise GuestError(f"the guest ended before its script did:\n{printed}")
    return Boot(printed[: match.start()], int(match[1]), time.monotonic() - started)


def _command(directory: Path, memory: str) -> list[str]:
    kernel = shutil.which(KERNEL)
    if kernel is None:
        raise GuestError(f"{KERNEL} is missing: install it with `apt-get install user-mode-linux`")
    guest = [
        *(
            kernel,
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "quiet",
            "selinux=0",
            f"mem={memory}",
            f"uml_dir={directory}",
        ),
        *("con=null", "con0=null,fd:1", f"init={directory}/init.sh"),
    ]
    if os.geteuid() != 0:
        return guest
    # The guest mounts its root read-only; should it ever remount it, the host's kernel still says no.
    protect = 'mount -n --bind "$0" "$0" && mount -n -o remount,bind,ro / && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", protect, str(directory), *guest]


def _environment(directory: Path) -> dict[str, str]:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory)}
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if flags and LARGE_REGISTER_FILE_FLAGS & set(flags[1].split()):
        environment["LD_PRELOAD"] = str(_compile_xstate(directory))
    return environment


def _compile_xstate(directory: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise GuestError("this CPU has AMX registers, which user-mode-linux needs help with: `apt-get install gcc`")
    library = directory / "xstate.so"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "xstate.c")], check=True, timeout=60
    )
    return library


def _printed(console: Path) -> str:
    with console.open("rb") as file:
        text = file.read(OUTPUT_LIMIT_BYTES).decode("utf-8", "replace").replace("\r", "")
    _, begin, after = text.partition(f"{BEGIN_MARK}\n")
    return after if begin else text


def _end_session(leader: subprocess.Popen[bytes]) -> None:
    """The processes of the guest are processes of the host: all in the session that we started, none outside."""
    deadline = time.monotonic() + 10
    while (members := _session_members(leader.pid)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            leader.wait(0.05)
    leader.wait(5)


def _session_members(session: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(sid) == session and state != "Z":
                    members.append(int(entry.name))
    return members
