"""What /proc says about a process before anybody signals it: whose it is, whether it is a JVM, whether it may be asked.

A SIGQUIT kills a process that does not catch it and makes a JVM without attach print its stacks into its own output,
so each of these questions is answered first.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import NamedTuple

from lachesis_py.kernel import safefs
from lachesis_py.kernel.proc import Gone, ProcFs

_MAPS_LIMIT = 16 << 20
_PERFDATA_LIMIT = 1 << 20
_SIGQUIT_BIT = 1 << 2
_PERFDATA_NAME = re.compile(rb"/(hsperfdata_[^/\n]+/\d+)\n")
_CAPABILITIES = re.compile(rb"sun\.rt\.jvmCapabilities\0([01]+)\0")
_FLAG = re.compile(r"-XX:([+-])DisableAttachMechanism")
_OPTIONS_WITH_VALUE = frozenset(
    ("-cp", "-classpath", "--class-path", "-p", "--module-path", "--upgrade-module-path", "--add-modules",
     "--enable-native-access", "--add-exports", "--add-opens", "--add-reads", "--patch-module", "--source")
)  # fmt: skip


class Target(NamedTuple):
    """The fields of /proc/PID/status that decide how to attach."""

    pid: int
    name: str
    state: str
    uid: int  # effective
    gid: int
    groups: frozenset[int]
    pids: tuple[int, ...]  # in each pid namespace from ours to its own
    catches_sigquit: bool

    @property
    def own_pid(self) -> int:
        """The pid the process knows itself by."""
        return self.pids[-1]

    @property
    def in_other_pid_namespace(self) -> bool:
        return len(self.pids) > 1

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"


class Kind(NamedTuple):
    """What the mapped files of a process say it is."""

    has_jvm: bool
    has_openj9: bool = False
    perfdata: str = ""  # the JVM's counters file, relative to its /tmp


def read_target(proc: ProcFs, pid: int) -> Target:
    fields: dict[str, str] = {}
    for line in proc.read(f"{pid}/status").decode(errors="replace").splitlines():
        key, _, value = line.partition(":\t")
        fields.setdefault(key, value)
    try:
        gid = int(fields["Gid"].split()[1])
        return Target(
            pid=pid,
            name=fields["Name"],
            state=fields["State"][0],
            uid=int(fields["Uid"].split()[1]),
            gid=gid,
            groups=frozenset((gid, *map(int, fields.get("Groups", "").split()))),
            pids=tuple(map(int, fields.get("NSpid", str(pid)).split())),
            catches_sigquit=bool(int(fields["SigCgt"], 16) & _SIGQUIT_BIT),
        )
    except (KeyError, IndexError) as error:  # read while the process was being torn down
        raise Gone(f"process {pid}") from error


def kind_of(proc: ProcFs, pid: int) -> Kind:
    """Judged by the libraries it maps; by its program's name where the maps are not ours to read."""
    try:
        maps = proc.read(f"{pid}/maps", _MAPS_LIMIT)
    except PermissionError:
        return Kind(has_jvm=proc.stat(pid).comm == "java")
    perfdata = _PERFDATA_NAME.search(maps)
    return Kind(
        has_jvm=b"/libjvm.so" in maps,
        has_openj9=b"/libj9vm" in maps,
        perfdata=os.fsdecode(perfdata[1]) if perfdata else "",
    )


def attach_disabled(proc: ProcFs, pid: int, tmp_fd: int, kind: Kind) -> bool:
    """Whether the JVM runs with -XX:+DisableAttachMechanism.

    Its counters file tells what is in force, wherever the flag came from (an @argument file, a flags file, an embedding
    program); without one the command line and the environment have to do.
    """
    if kind.perfdata:
        with contextlib.suppress(OSError, safefs.PlantedError):
            counters = safefs.read_regular(tmp_fd, kind.perfdata, _PERFDATA_LIMIT, proc=proc.root)
            if capabilities := _CAPABILITIES.search(counters):
                return capabilities[1][:1] == b"0"
    disabled = False
    for option in _options(proc, pid):
        if flag := _FLAG.fullmatch(option):
            disabled = flag[1] == "+"
    return disabled


def keeps_signals(proc: ProcFs, pid: int) -> bool:
    """Whether the JVM leaves SIGQUIT to the program (-Xrs), which may have put it to another use."""
    return not {"-Xrs", "-XX:+ReduceSignalUsage"}.isdisjoint(_options(proc, pid))


def _options(proc: ProcFs, pid: int) -> list[str]:
    """JVM options in the order in which HotSpot reads them: the last word on a flag holds."""
    environment = _environment(proc, pid)
    command = os.fsdecode(proc.read(f"{pid}/cmdline", 1 << 20)).rstrip("\0").split("\0")
    return [
        *_words(environment.get("JAVA_TOOL_OPTIONS", "")),
        *_words(environment.get("JDK_JAVA_OPTIONS", "")),
        *jvm_arguments(command),
        *_words(environment.get("_JAVA_OPTIONS", "")),
    ]


def jvm_arguments(command: list[str]) -> list[str]:
    """The words of a java command line that are meant for the JVM, not for the program it runs."""
    options = []
    words = iter(command[1:])
    for word in words:
        if not word.startswith(("-", "@")) or word in ("-jar", "-m", "--module"):
            break
        options.append(word)
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
    return options


def _environment(proc: ProcFs, pid: int) -> dict[str, str]:
    try:
        block = proc.read(f"{pid}/environ", 1 << 20)
    except PermissionError:
        return {}
    entries = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0"))
    return {key: value for key, _, value in entries}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unbalanced quote
        return text.split()


def tids_by_own_number(proc: ProcFs, target: Target) -> dict[int, int]:
    """For each live thread: the number the process itself knows it by -> the number it has here."""
    tids = proc.tids(target.pid)
    if not target.in_other_pid_namespace:
        return {tid: tid for tid in tids}
    own = {}
    for tid in tids:
        with contextlib.suppress(Gone):
            status = proc.read(f"{target.pid}/task/{tid}/status")
            if (at := status.find(b"\nNSpid:")) >= 0:
                own[int(status[at + 7 : status.index(b"\n", at + 1)].split()[-1])] = tid
    return own
