"""Asks a HotSpot JVM for the names of its threads through the attach protocol, without starting a process.

What attaching does to a JVM, what it costs and what is guarded against: docs/attach.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from lachesis_py.errors import LachesisError
from lachesis_py.kernel import jvmdump, safefs
from lachesis_py.kernel.jvmprobe import attach_disabled, keeps_signals, kind_of, read_target, tids_by_own_number
from lachesis_py.kernel.proc import Gone, ProcFs

REPLY_LIMIT = 16 << 20
_REQUEST = b"1\0threaddump\0\0\0\0"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02
_DIRECTORY_UNUSABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR)


class AttachError(LachesisError):
    """The JVM could not be asked. `kind` is a short word for counters; the message says what to do about it.

    Kinds: not_jvm, not_hotspot, gone, no_permission, disabled, no_handler (does not catch SIGQUIT: starting, or -Xrs),
    unsignalled (no socket, and the caller forbade the signal), timeout, refused, planted, malformed, too_large.
    `signalled` says whether the JVM got a SIGQUIT: then its stacks may stand in its own output.
    """

    def __init__(self, kind: str, message: str, *, signalled: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.signalled = signalled


class JvmThread(NamedTuple):
    tid: int  # in our pid namespace
    name: str
    elapsed: float | None = None  # seconds since the thread began, by the JVM's clock
    java: bool = True  # False: the JVM's own (VM, GC, JIT compiler, service threads), or a thread of no JVM at all


class Answer(NamedTuple):
    threads: list[JvmThread]
    doubtful: int  # threads left out because their header cannot be told from an imitation in another's name


def attach_threads(pid: int, *, proc: str = "/proc", timeout: float = 2.0) -> list[JvmThread]:
    """The named threads of a JVM. Raises AttachError."""
    return attach(pid, proc=proc, timeout=timeout).threads


def attach(
    pid: int,
    *,
    start: int | None = None,
    proc: str = "/proc",
    timeout: float = 2.0,
    may_signal: bool = True,
    limit: int = REPLY_LIMIT,
) -> Answer:
    """The same with what a caller who comes back needs: the start time the process must have, and a say on SIGQUIT."""
    attachment = _Attachment(pid, start, ProcFs(proc), timeout, may_signal, limit)
    try:
        return attachment.run()
    except (Gone, OSError) as error:
        raise _in_our_words(error, pid, attachment.signalled) from error


def _in_our_words(error: Gone | OSError, pid: int, signalled: bool) -> AttachError:
    match error:
        case Gone() | ProcessLookupError():
            kind, message = "gone", "it ended, or another process has its number now: nothing to do"
        case PermissionError():
            needs = "run as root (CAP_SYS_PTRACE, CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_KILL) or as the JVM's user"
            kind, message = "no_permission", f"{error}: {needs}"
        case _:
            kind, message = "refused", f"{error}: the operating system did not let us attach"
    return AttachError(kind, f"process {pid}: {message}", signalled=signalled)


class _Attachment:
    def __init__(self, pid: int, start: int | None, proc: ProcFs, timeout: float, may_signal: bool, limit: int) -> None:
        self.pid = pid
        self.start = start
        self.proc = proc
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.may_signal = may_signal
        self.limit = limit
        self.signalled = False
        self.stale: os.stat_result | None = None  # a socket that nobody serves

    def run(self) -> Answer:
        with contextlib.ExitStack() as held:
            self.pidfd = self._open_pidfd()
            held.callback(os.close, self.pidfd)
            # Read after the pidfd is open: as long as the start time stays, /proc/PID and the pidfd are one process.
            present = self.proc.stat(self.pid)
            if present.state in "ZX" or self.start not in (None, present.start):
                raise Gone(f"process {self.pid}")
            self.start = present.start
            self.target = read_target(self.proc, self.pid)
            self.socket_name = f".java_pid{self.target.own_pid}"
            self.tmp_fd = self._open_tmp()
            held.callback(os.close, self.tmp_fd)
            stream = self._connect() or self._start_listener()
            with stream:
                text = self._ask(stream)
        return self._answer(text)

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                self._fail("refused", "this kernel has no pidfd (Linux 5.3): a signal could hit another process")
            if error.errno in (errno.EINVAL, errno.ENOENT):
                self._fail("not_jvm", "that number is a thread, not a process: give its process id")
            raise

    def _open_tmp(self) -> int:
        try:
            root_fd = safefs.enter(f"{self.proc.root}/{self.pid}/root")
        except FileNotFoundError:
            self._require_same_process()
            self._fail("not_jvm", "a kernel thread has no files")
        try:
            return safefs.open_below(root_fd, "tmp", os.O_PATH | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError, safefs.PlantedError) as error:
            self._fail("planted", f"/tmp in its root is not a directory ({error}): a JVM listens only there")
        finally:
            os.close(root_fd)

    def _connect(self) -> socket.socket | None:
        """None where nobody listens (yet)."""
        while True:
            present = safefs.status_of(self.tmp_fd, self.socket_name)
            try:
                return safefs.connect(
                    self.tmp_fd,
                    self.socket_name,
                    owners=(self.target.uid, 0),
                    pid=self.pid,
                    pidfd=self.pidfd,
                    timeout=self._left(),
                    proc=self.proc.root,
                )
            except safefs.PlantedError as error:
                self._fail(
                    "planted",
                    f"{error}, where uid {self.target.uid}, process {self.pid} was expected: see who made "
                    f"/proc/{self.pid}/root/tmp/{self.socket_name} and remove it",
                )
            except FileNotFoundError:
                return None
            except ConnectionRefusedError:
                self.stale = present
                return None
            except TimeoutError:
                self._fail_late("no place in its queue")
            except BlockingIOError:  # its queue of 5 is full: others ask too, or it is stuck
                self._pause(_LONGEST_PAUSE, "no place in its queue")

    def _start_listener(self) -> socket.socket:
        """The trigger file and SIGQUIT, by which a JVM learns that somebody wants to talk to it."""
        self._require_signal_is_harmless()
        self._remove_stale_socket()
        with self._trigger():
            self._require_same_process()
            self.signalled = True
            signal.pidfd_send_signal(self.pidfd, signal.SIGQUIT)
            pause = _FIRST_PAUSE
            while True:
                self._pause(pause, "it did not open its attach socket")
                if stream := self._connect():
                    return stream
                pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _require_signal_is_harmless(self) -> None:
        kind = kind_of(self.proc, self.pid)
        if not kind.has_jvm:
            self._fail("not_jvm", "it has no libjvm.so mapped: check the pattern that chose it")
        if kind.has_openj9:
            self._fail("not_hotspot", "it is an OpenJ9 JVM, which has no attach of this kind: use a HotSpot JDK")
        self.target = read_target(self.proc, self.pid)
        if not self.target.catches_sigquit or keeps_signals(self.proc, self.pid):
            self._fail(
                "no_handler",
                "it does not listen to SIGQUIT, which might kill it: it is still starting, or it runs with -Xrs and "
                "lost its attach socket (then restart it)",
            )
        if attach_disabled(self.proc, self.pid, self.tmp_fd, kind):
            self._fail("disabled", "it runs with -XX:+DisableAttachMechanism: remove that flag, or exclude the process")
        if self.target.is_stopped:
            self._fail("timeout", "it is stopped, and would print its stacks once continued: send it SIGCONT")
        if not self.may_signal:
            self._fail("unsignalled", "it has no attach socket, and an earlier SIGQUIT did not make it open one")

    def _remove_stale_socket(self) -> None:
        """What a dead JVM left keeps a living one from opening its own, in a sticky /tmp or after a first attach."""
        if self.stale is not None:
            safefs.remove_if_same(self.tmp_fd, self.socket_name, self.stale)

    @contextlib.contextmanager
    def _trigger(self) -> Iterator[None]:
        name = f".attach_pid{self.target.own_pid}"
        with contextlib.ExitStack() as held:
            directories = [self.tmp_fd]
            with contextlib.suppress(FileNotFoundError):
                cwd_fd = safefs.enter(f"{self.proc.root}/{self.pid}/cwd")
                held.callback(os.close, cwd_fd)
                directories.insert(0, cwd_fd)
            for directory in directories:
                made = self._make_trigger(directory, name)
                if made is not None:
                    held.callback(_remove_quietly, directory, name, made)
                    break
            else:
                self._fail("refused", f"{name} can be made neither in its working directory nor in its /tmp")
            yield

    def _make_trigger(self, directory: int, name: str) -> os.stat_result | None:
        """None where this directory will not do. The JVM looks here first: what it would find must be right."""
        target = self.target
        found = safefs.status_of(directory, name)
        if found is None:
            if not safefs.user_may_create(directory, target.uid, target.groups):
                return None
            try:
                return safefs.create_empty(directory, name, target.uid, target.gid)
            except FileExistsError:
                found = safefs.status_of(directory, name)
            except OSError as error:
                if error.errno in _DIRECTORY_UNUSABLE:
                    return None
                raise
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_uid not in (target.uid, 0):
            self._fail("planted", f"{name} in its working directory or /tmp is no trigger file of its user: remove it")
        return found  # left behind by another tool, or in use by it: it serves the same end

    def _ask(self, stream: socket.socket) -> bytes:
        try:
            stream.settimeout(self._left())
            stream.sendall(_REQUEST)
            reply = bytearray()
            while True:
                stream.settimeout(self._left())
                if not (part := stream.recv(1 << 18)):
                    break
                reply += part
                if len(reply) > self.limit:
                    self._fail("too_large", f"its answer exceeds {self.limit >> 10} KiB: it has too many threads")
        except TimeoutError:
            self._fail_late("its answer is not complete")
        except (BrokenPipeError, ConnectionResetError):
            reply = bytearray()
        code, _, text = bytes(reply).partition(b"\n")
        if not code:
            self._fail(
                "no_permission",
                f"it closed the connection: it talks only to root and to uid {self.target.uid}, gid {self.target.gid} "
                "as its own user namespace sees them",
            )
        if code != b"0":
            self._fail("refused", f"it answered with code {code[:20]!r}: {text[:200].decode(errors='replace')!r}")
        return text

    def _answer(self, text: bytes) -> Answer:
        try:
            dump = jvmdump.parse(text)
        except jvmdump.DumpError as error:
            self._fail("malformed", f"its thread dump cannot be trusted, {error}: HotSpot of JDK 11 or later is needed")
        tids = tids_by_own_number(self.proc, self.target)
        self._require_same_process()
        threads = [
            JvmThread(tids[thread.nid], thread.name, thread.elapsed, thread.java)
            for thread in dump.threads
            if thread.nid in tids
        ]
        return Answer(threads, dump.doubtful)

    def _require_same_process(self) -> None:
        present = self.proc.stat(self.pid)
        if present.start != self.start or present.state in "ZX":
            raise Gone(f"process {self.pid}")

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _pause(self, seconds: float, complaint: str) -> None:
        try:
            time.sleep(min(seconds, self._left()))
        except TimeoutError:
            self._fail_late(complaint)
        signal.pidfd_send_signal(self.pidfd, 0)

    def _fail_late(self, complaint: str) -> NoReturn:
        state = read_target(self.proc, self.pid).state
        remedy = "send it SIGCONT" if state in "Tt" else "it is starved or stuck: look at its CPU time and its GC"
        self._fail("timeout", f"{complaint} within {self.timeout:g} s, its state is {state}: {remedy}")

    def _fail(self, kind: str, reason: str) -> NoReturn:
        raise AttachError(kind, f"process {self.pid}: {reason}", signalled=self.signalled)


def _remove_quietly(directory: int, name: str, made: os.stat_result) -> None:
    """Another tool's trigger may not be ours to remove, and the JVM has answered by now."""
    with contextlib.suppress(OSError):
        safefs.remove_if_same(directory, name, made)
