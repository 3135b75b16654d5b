"""Opens, creates and removes files in a directory tree that someone hostile may own, without following any link.

A path below /proc/PID/root is not confined: an absolute symlink in it resolves in OUR root. So nothing here takes
such a path: a tree is entered once, by descriptor, and everything below it is reached from that descriptor.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterable

from lachesis_py.kernel.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    SO_PEERPIDFD,
    openat2,
)

_CONFINED = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_OPENAT2_ABSENT = (errno.ENOSYS, errno.EPERM)  # an old kernel, or a seccomp filter that does not know the call
_RACES = 16  # openat2 answers EAGAIN while something below is being renamed


class PlantedError(Exception):
    """Something stands where it must not: a link, a special file, or a file of the wrong owner."""


class ForeignPeerError(PlantedError):
    """A socket is served by another process than the one it is named after."""


def enter(path: str) -> int:
    """A descriptor of the directory at `path`, itself trusted (such as the magic link /proc/PID/root)."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_below(dir_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Opens a relative path without following a link in any component. PlantedError where there is one."""
    parts = _components(path)
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            descriptor = _open_confined(dir_fd, path, flags, mode)
        except OSError as error:
            if error.errno not in _OPENAT2_ABSENT:
                raise
            descriptor = _open_stepwise(dir_fd, parts, flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PlantedError(f"{path} is a symbolic link") from error
        raise
    # O_PATH with O_NOFOLLOW opens the link itself instead of failing.
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PlantedError(f"{path} is a symbolic link")
    return descriptor


def _components(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"not a plain relative path: {path!r}")
    return parts


def _open_confined(dir_fd: int, path: str, flags: int, mode: int) -> int:
    for _ in range(_RACES):
        try:
            return openat2(dir_fd, path, flags, mode, _CONFINED)
        except BlockingIOError:
            continue
    raise OSError(errno.EAGAIN, "the directories on the way keep being renamed", path)


def _open_stepwise(dir_fd: int, parts: list[str], flags: int, mode: int) -> int:
    """The same with one openat for each component."""
    current = os.dup(dir_fd)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            except NotADirectoryError as error:
                if stat.S_ISLNK(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode):
                    raise PlantedError(f"{'/'.join(parts)}: {part} is a symbolic link") from error
                raise
            os.close(current)
            current = below
        return os.open(parts[-1], flags, mode, dir_fd=current)
    finally:
        os.close(current)


def status_of(dir_fd: int, name: str) -> os.stat_result | None:
    """What stands under a name, the link itself if it is one; None where nothing does."""
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def create_empty(dir_fd: int, name: str, uid: int, gid: int) -> os.stat_result:
    """A new empty file of that owner. FileExistsError where anything has the name, a dangling link included."""
    descriptor = open_below(dir_fd, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (uid, gid):
            try:
                os.fchown(descriptor, uid, gid)
            except OSError:
                remove_if_same(dir_fd, name, made)
                raise
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def remove_if_same(dir_fd: int, name: str, known: os.stat_result) -> bool:
    """Removes the name while it still stands for the file we know; somebody else's file stays."""
    present = status_of(dir_fd, name)
    if present is None or (present.st_dev, present.st_ino) != (known.st_dev, known.st_ino):
        return False
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def read_regular(dir_fd: int, path: str, limit: int, *, proc: str = "/proc") -> bytes:
    """At most `limit` bytes of a regular file. A device or pipe is never opened: opening alone may act or hang."""
    handle = open_below(dir_fd, path, os.O_PATH)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise PlantedError(f"{path} is not a regular file")
        readable = os.open(f"{proc}/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    try:
        return os.read(readable, limit)
    finally:
        os.close(readable)


def user_may_create(dir_fd: int, uid: int, groups: Iterable[int]) -> bool:
    """Whether the mode bits let that user create files there, so that root never does it where the user could not."""
    if uid == 0:
        return True
    directory = os.fstat(dir_fd)
    if directory.st_uid == uid:
        needed = stat.S_IWUSR | stat.S_IXUSR
    elif directory.st_gid in groups:
        needed = stat.S_IWGRP | stat.S_IXGRP
    else:
        needed = stat.S_IWOTH | stat.S_IXOTH
    return directory.st_mode & needed == needed


def connect(
    dir_fd: int, name: str, *, owners: Iterable[int], pid: int, pidfd: int, timeout: float, proc: str = "/proc"
) -> socket.socket:
    """A stream to the unix socket of that name, which must belong to one of `owners` and be served by `pid`."""
    handle = open_below(dir_fd, name, os.O_PATH)
    try:
        found = os.fstat(handle)
        if not stat.S_ISSOCK(found.st_mode):
            raise PlantedError(f"{name} is not a socket")
        if found.st_uid not in owners:
            raise PlantedError(f"{name} belongs to uid {found.st_uid}")
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            stream.settimeout(timeout)
            # By descriptor: the inode that was checked is the one that is connected to, whatever the name says now.
            stream.connect(f"{proc}/self/fd/{handle}")
            _require_peer(stream, name, pid, pidfd)
        except BaseException:
            stream.close()
            raise
        return stream
    finally:
        os.close(handle)


def _require_peer(stream: socket.socket, name: str, pid: int, pidfd: int) -> None:
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    (peer, _uid, _gid) = struct.unpack("iII", credentials)
    if peer != pid:
        raise ForeignPeerError(f"{name} is served by {f'process {peer}' if peer else 'a process outside our view'}")
    # The number alone would also fit a listener inherited from a dead process whose pid was given out again.
    try:
        peer_pidfd = stream.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):
            raise ForeignPeerError(f"{name} was opened by a process that ended") from error
        raise
    try:
        if os.fstat(peer_pidfd).st_ino != os.fstat(pidfd).st_ino:
            raise ForeignPeerError(f"{name} is served by an earlier process {peer}")
    finally:
        os.close(peer_pidfd)
