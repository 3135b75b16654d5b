"""sd_notify against a real datagram socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lachesis_py.kernel.notify import STATUS_LIMIT_CHARS, Notifier


class Listener:
    """The end of NOTIFY_SOCKET that systemd would hold."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def listener(path: str) -> Iterator[Listener]:
    listener = Listener(path)
    yield listener
    listener.close()


def test_without_the_variable_nothing_is_sent_and_nothing_fails() -> None:
    notifier = Notifier.from_environment({})
    assert not notifier.enabled
    assert notifier.watchdog_interval_s is None
    assert [notifier.ready(), notifier.reloading(), notifier.stopping(), notifier.status("x"), notifier.beat(1.0)] == [
        False
    ] * 5


def test_a_watchdog_without_a_socket_is_no_watchdog() -> None:
    assert Notifier.from_environment({"WATCHDOG_USEC": "1000000"}).watchdog_interval_s is None


def test_states_reach_the_socket_in_order(path: str, listener: Listener) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": path})
    assert notifier.ready("2 engines, mode observe")
    assert notifier.status("3 engines")
    assert notifier.stopping()
    assert listener.received() == ["READY=1\nSTATUS=2 engines, mode observe", "STATUS=3 engines", "STOPPING=1"]


def test_reloading_carries_the_monotonic_clock(path: str, listener: Listener) -> None:
    before = time.monotonic_ns() // 1000
    assert Notifier(path).reloading()
    after = time.monotonic_ns() // 1000
    first, second = listener.received()[0].split("\n")
    assert first == "RELOADING=1"
    name, _, microseconds = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(microseconds) <= after


def test_abstract_sockets_are_reached() -> None:
    name = f"lachesis-test-{time.monotonic_ns()}"
    listener = Listener("\0" + name)
    try:
        assert Notifier.from_environment({"NOTIFY_SOCKET": "@" + name}).ready()
        assert listener.received() == ["READY=1"]
    finally:
        listener.close()


def test_a_status_cannot_smuggle_in_another_assignment(path: str, listener: Listener) -> None:
    Notifier(path).status("job a\nMAINPID=1\r\nREADY=1")
    assert listener.received() == ["STATUS=job a MAINPID=1 READY=1"]


def test_a_status_is_cut_to_its_limit(path: str, listener: Listener) -> None:
    Notifier(path).status("x" * 100_000)
    assert listener.received() == ["STATUS=" + "x" * STATUS_LIMIT_CHARS]


def test_beats_are_sent_only_when_due(path: str, listener: Listener) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "77"}, 77)
    assert notifier.watchdog_timeout_s == 8.0
    assert notifier.watchdog_interval_s == 4.0
    assert [notifier.beat(now) for now in (100.0, 100.05, 101.9, 102.0, 103.0, 104.1)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert listener.received() == ["WATCHDOG=1"] * 3


def test_the_watchdog_of_another_process_is_not_ours(path: str) -> None:
    variables = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "77"}
    assert Notifier.from_environment(variables, 78).watchdog_interval_s is None


@pytest.mark.parametrize("microseconds", ["", "0", "-5", "1e6", "soon", "²"])
def test_a_malformed_watchdog_is_no_watchdog(path: str, microseconds: str) -> None:
    variables = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": microseconds}
    assert Notifier.from_environment(variables).watchdog_interval_s is None


@pytest.mark.parametrize("address", ["vsock:2:1234", "@", "relative/path", "/" + "x" * 200, "/nowhere/notify"])
def test_an_unreachable_socket_never_raises(address: str) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    assert not notifier.ready()
    assert not notifier.beat(1.0)


def test_a_socket_with_a_full_queue_delays_but_does_not_hang(path: str, listener: Listener) -> None:
    notifier = Notifier(path, watchdog_timeout_s=1.0)
    attempts = 0
    while notifier.status("filling"):
        attempts += 1
        assert attempts < 100_000
    assert not notifier.beat(1.0)
    assert not notifier.stopping()
    listener.received()
    assert notifier.beat(1.1), "a beat that was not delivered stays due"


def test_trouble_is_logged_once_until_it_is_over(path: str, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(path)
    notifier.status("a")
    notifier.status("b")
    assert len(caplog.records) == 1
    listener = Listener(path)
    notifier.status("c")
    listener.close()
    notifier.status("d")
    assert len(caplog.records) == 2
