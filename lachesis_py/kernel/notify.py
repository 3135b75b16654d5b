"""Tells systemd how the daemon fares (the sd_notify protocol), and does nothing where systemd does not ask."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)

STATE_TIMEOUT_S = 0.5
STATUS_LIMIT_CHARS = 512


class Notifier:
    """Sends one datagram per message. A message that cannot be sent is logged once and never raised."""

    def __init__(self, address: str | None, watchdog_timeout_s: float | None = None) -> None:
        self._address = _socket_address(address) if address else None
        self.watchdog_timeout_s = watchdog_timeout_s if self._address is not None else None
        self._next_beat = float("-inf")
        self._complained = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, pid: int | None = None) -> Notifier:
        """What systemd set for this process: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID."""
        variables = os.environ if environ is None else environ
        own_pid = os.getpid() if pid is None else pid
        return cls(variables.get("NOTIFY_SOCKET"), _watchdog_timeout_s(variables, own_pid))

    @property
    def enabled(self) -> bool:
        return self._address is not None

    @property
    def watchdog_interval_s(self) -> float | None:
        """How long the daemon may stay silent: half of what systemd tolerates. None without a watchdog."""
        return None if self.watchdog_timeout_s is None else self.watchdog_timeout_s / 2

    def ready(self, status: str | None = None) -> bool:
        """Start-up or reload is complete."""
        return self._send_state("READY=1", status)

    def reloading(self, status: str | None = None) -> bool:
        """A reload has begun: `ready` must follow, also when the old configuration is kept."""
        return self._send_state(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", status)

    def stopping(self, status: str | None = None) -> bool:
        return self._send_state("STOPPING=1", status)

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send(_status_line(text), timeout_s=0.0)

    def beat(self, now: float) -> bool:
        """Call in every turn of a healthy loop, with its monotonic time: sends WATCHDOG=1 when one is due."""
        interval = self.watchdog_interval_s
        if interval is None or now < self._next_beat:
            return False
        sent = self._send("WATCHDOG=1", timeout_s=0.0)
        if sent:
            # Twice as often as needed, so that one turn that comes late does not cost the daemon its life.
            self._next_beat = now + interval / 2
        return sent

    def _send_state(self, message: str, status: str | None) -> bool:
        if status is not None:
            message = f"{message}\n{_status_line(status)}"
        return self._send(message, STATE_TIMEOUT_S)

    def _send(self, message: str, timeout_s: float) -> bool:
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(timeout_s)
                channel.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("systemd cannot be notified through NOTIFY_SOCKET: %s", error)
            return False
        self._complained = False
        return True


def _socket_address(address: str) -> str | None:
    if address.startswith("@") and len(address) > 1:
        return "\0" + address[1:]
    if address.startswith("/"):
        return address
    log.warning("NOTIFY_SOCKET=%r is neither a path nor an abstract socket (@name): systemd is not notified", address)
    return None


def _watchdog_timeout_s(variables: Mapping[str, str], own_pid: int) -> float | None:
    microseconds = variables.get("WATCHDOG_USEC")
    if not microseconds:
        return None
    meant_for = variables.get("WATCHDOG_PID") or str(own_pid)
    if not (microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0):
        log.warning("WATCHDOG_USEC=%r is not a positive number of microseconds: no watchdog", microseconds)
        return None
    return int(microseconds) / 1e6 if meant_for == str(own_pid) else None


def _status_line(text: str) -> str:
    # A line break would begin a new assignment, and engine names are not ours.
    return "STATUS=" + " ".join(text.split())[:STATUS_LIMIT_CHARS]
