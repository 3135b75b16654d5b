"""System calls that Python does not offer, through ctypes."""

from __future__ import annotations

import ctypes
import os

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10

SO_PEERPIDFD = 77

_SYS_OPENAT2 = 437  # one number on every architecture Python runs on, alpha excepted

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(dir_fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """A new descriptor, closed on exec. Raises OSError as os.open does."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(dir_fd),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return descriptor
