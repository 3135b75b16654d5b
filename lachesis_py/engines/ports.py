"""Free TCP ports of this machine."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from lachesis_py.errors import LachesisError

LOWEST_PORT = 20_000
ATTEMPTS = 200
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port, on loopback as well as on every address."""
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError:
                return False
    return True


def free_ports(count: int = 1, *, source: random.Random | None = None) -> range:
    """`count` free ports in a row.

    They are chosen at random, so that two runs that look at the same moment rarely meet, and below the kernel's own
    range, so that no outgoing connection takes one before its server listens. Whoever listens must still expect to
    be refused.
    """
    chooser = source or random.SystemRandom()
    highest = _first_ephemeral_port() - count
    for _ in range(ATTEMPTS):
        first = chooser.randint(LOWEST_PORT, highest)
        candidates = range(first, first + count)
        if all(map(is_free, candidates)):
            return candidates
    raise LachesisError(
        f"no {count} free TCP ports in a row between {LOWEST_PORT} and {highest}: stop servers that are not needed"
    )


def _first_ephemeral_port(path: Path = EPHEMERAL_RANGE) -> int:
    try:
        first = int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    return first if first > LOWEST_PORT + 1000 else 65_536
