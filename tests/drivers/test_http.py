"""Whatever the other side does, a request ends in time with an answer or an error that names place and remedy."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lachesis_py.drivers.base import DriverError
from lachesis_py.drivers.http import HttpReader, Service, StatusError, is_loopback
from lachesis_py.drivers.http_auth import Credentials

from .servers import Behaviour, Server, answer, certificate_authority, drip, routes, serving

FLINK = Service("Flink's REST API", "url", "start the JobManager or correct `url`")
STORM = (Path(__file__).parent / "recorded" / "storm-ui-2.8.3-topology-summary.json").read_bytes()


class Jobs(msgspec.Struct):
    jobs: list[str]


DECODER = msgspec.json.Decoder(Jobs)
GOOD = answer('{"jobs": ["a"], "unknown": 1}')


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(GOOD) as running:
        yield running


def reader_of(url: str, **settings: object) -> HttpReader:
    return HttpReader(url, FLINK, **{"timeout": 1.0, **settings})  # type: ignore[arg-type]


def failure(reader: HttpReader) -> DriverError:
    with pytest.raises(DriverError) as caught:
        reader.get_json("/jobs/overview", DECODER)
    return caught.value


def silence(connection: socket.socket, _: str) -> None:
    connection.recv(1)  # until the client gives up


def endless(connection: socket.socket, _: str) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for _ in range(1600):
        connection.sendall(piece)
    connection.sendall(b"0\r\n\r\n")


def hundred_megabytes(connection: socket.socket, _: str) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
    for _ in range(1526):
        connection.sendall(b" " * 65536)


def broken_off(connection: socket.socket, _: str) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"jobs": [')
    connection.shutdown(socket.SHUT_RDWR)


def hang_up(connection: socket.socket, _: str) -> None:
    connection.shutdown(socket.SHUT_RDWR)


FAULTS: dict[str, tuple[Behaviour, str, str]] = {
    "hangs": (silence, "timeout", "within 300ms"),
    "500": (answer("out of\r\nslots" + "x" * 500, "500 Internal Server Error"), "status", "HTTP 500: out of slots"),
    "404": (answer("nothing here", "404 Not Found"), "status", "check `url`"),
    "half a JSON": (answer('{"jobs": ["a", '), "malformed", "broken off"),
    "half a body": (broken_off, "malformed", "broke off"),
    "100 MB": (hundred_megabytes, "too_large", "max_response"),
    "endless": (endless, "too_large", "max_response"),
    "Storm": (answer(STORM), "foreign", "this does not look like Flink's REST API"),
    "HTML": (answer("<!doctype html><html></html>"), "foreign", "HTML"),
    "not HTTP": (lambda c, _: c.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "malformed", "does not speak HTTP"),
    "401": (answer("", "401 Unauthorized"), "auth", "password_file"),
    "403": (answer("", "403 Forbidden"), "auth", "token_file"),
    "hangs up": (hang_up, "unreachable", "start the JobManager"),
    "redirect away": (answer("", "302 Found", Location="http://192.0.2.1/jobs"), "status", "redirects to another"),
    "redirect to itself": (answer("", "302 Found", Location="/jobs/overview"), "status", "in circles"),
    "compressed": (answer(b"\x1f\x8b", Content_Encoding="gzip"), "malformed", "gzip"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_place_and_remedy_and_the_next_request_recovers(server: Server, fault: str) -> None:
    server.behaviour, kind, words = FAULTS[fault]
    reader = reader_of(server.url, timeout=0.3 if fault == "hangs" else 10.0)
    error = failure(reader)
    assert error.kind == kind
    assert f"{server.url}/jobs/overview" in str(error)
    assert words in str(error)
    assert len(str(error)) < 500
    server.behaviour = GOOD
    assert reader.get_json("/jobs/overview", DECODER).jobs == ["a"]


@pytest.mark.parametrize(
    "prefix",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 500 Broken\r\nContent-Length: 90000\r\n\r\n"],
    ids=["status line", "headers", "body", "chunk size", "body of an error"],
)  # fmt: skip
def test_a_server_that_drips_bytes_is_left_at_the_deadline(server: Server, prefix: bytes) -> None:
    server.behaviour = drip(prefix, lambda: server.stopping)
    reader = reader_of(server.url, timeout=0.4)
    error = failure(reader)
    assert error.kind == "timeout"
    assert "400ms" in str(error)
    server.behaviour = GOOD
    assert reader.get_json("/jobs/overview", DECODER).jobs == ["a"]


def test_a_refused_connection_is_unreachable_and_recovers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    reader = reader_of(f"http://127.0.0.1:{port}")
    error = failure(reader)
    assert error.kind == "unreachable"
    assert "Connection refused" in str(error)
    assert FLINK.remedy in str(error)
    with serving(GOOD, port=port):
        assert reader.get_json("/jobs/overview", DECODER).jobs == ["a"]


def test_an_unknown_host_is_unreachable() -> None:
    assert failure(reader_of("http://nowhere.invalid:8081")).kind == "unreachable"


def test_connections_are_kept_and_a_connection_closed_while_idle_is_no_fault(server: Server) -> None:
    reader = reader_of(server.url)
    for _ in range(5):
        reader.get("/jobs/overview")
    assert server.connections == 1

    def close_after(connection: socket.socket, head: str) -> None:
        GOOD(connection, head)
        connection.shutdown(socket.SHUT_RDWR)

    server.behaviour = close_after
    for _ in range(5):
        reader.get("/jobs/overview")


def test_a_redirect_within_the_server_is_followed(server: Server) -> None:
    server.behaviour = routes({"/old": answer("", "307 Temporary Redirect", Location="/new"), "/new": GOOD})
    assert reader_of(server.url).get_json("/old", DECODER).jobs == ["a"]


def test_the_body_of_a_redirect_is_not_read(server: Server) -> None:
    def redirect_with_endless_body(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /new\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n")

    server.behaviour = routes({"/old": redirect_with_endless_body, "/new": GOOD})
    assert reader_of(server.url).get_json("/old", DECODER).jobs == ["a"]


def test_the_status_is_at_hand_for_the_caller(server: Server) -> None:
    server.behaviour = answer("gone", "404 Not Found")
    error = failure(reader_of(server.url))
    assert isinstance(error, StatusError)
    assert error.code == 404


def test_the_midpoint_does_not_count_the_transfer_of_the_body(server: Server) -> None:
    def slow_body(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        time.sleep(0.3)
        connection.sendall(b"{}")

    server.behaviour = slow_body
    reply = reader_of(server.url).get("/")
    assert reply.asked <= reply.midpoint <= reply.answered <= time.monotonic() - 0.25


def test_a_password_goes_out_as_basic_authentication(server: Server, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret-pass\n")
    credentials = Credentials("jürgen", str(tmp_path / "password"))
    reader = reader_of(server.url, credentials=credentials)
    reader.get("/")
    expected = base64.b64encode("jürgen:s3cret-pass".encode()).decode()
    assert f"Authorization: Basic {expected}\r\n" in server.requests[-1]
    assert "s3cret" not in repr(reader) + repr(credentials)


def test_a_token_is_read_again_when_its_file_changed(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-token")
    reader = reader_of(server.url, credentials=Credentials(token_file=str(token)))
    reader.get("/")
    assert "Authorization: Bearer first-token\r\n" in server.requests[-1]
    (tmp_path / "new").write_text("second-token")
    (tmp_path / "new").replace(token)
    reader.get("/")
    assert "Authorization: Bearer second-token\r\n" in server.requests[-1]
    token.unlink()
    error = failure(reader)
    assert error.kind == "auth"
    assert str(token) in str(error)


def test_a_secret_that_the_server_echoes_is_not_shown(server: Server, tmp_path: Path) -> None:
    def echo(connection: socket.socket, head: str) -> None:
        answer(head, "500 Internal Server Error")(connection, head)

    (tmp_path / "token").write_text("echoed-token")
    server.behaviour = echo
    error = failure(reader_of(server.url, credentials=Credentials(token_file=str(tmp_path / "token"))))
    assert "Bearer ***" in str(error)
    assert "echoed-token" not in str(error)


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff\xfe", b"x" * 70000])
def test_a_file_that_holds_no_secret_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(DriverError, match="token_file") as caught:
        Credentials(token_file=str(tmp_path / "token")).header()
    assert caught.value.kind == "auth"
    assert "lines" not in str(caught.value)


@pytest.mark.parametrize("arguments", [{"username": "a"}, {"password_file": "a"}, {"token_file": "a", "username": "b"}])
def test_credentials_that_do_not_fit_together_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="file"):
        Credentials(**arguments)


def test_tls_works_with_the_right_ca_and_only_then(tmp_path: Path) -> None:
    ca_file, context = certificate_authority(tmp_path)
    with serving(GOOD, context) as server:
        assert reader_of(server.url, ca_file=str(ca_file)).get_json("/", DECODER).jobs == ["a"]
        error = failure(reader_of(server.url))
        assert error.kind == "tls"
        assert "set ca_file" in str(error)
        error = failure(reader_of(server.url.replace("127.0.0.1", "localhost"), ca_file=str(ca_file)))
        assert error.kind == "tls"
        error = failure(reader_of(server.url, ca_file=str(tmp_path / "absent.pem")))
        assert error.kind == "tls"
        assert "absent.pem" in str(error)


def test_tls_that_drips_ends_at_the_deadline(tmp_path: Path) -> None:
    ca_file, context = certificate_authority(tmp_path)
    with serving(GOOD, context) as server:
        server.behaviour = drip(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n", lambda: server.stopping)
        assert failure(reader_of(server.url, ca_file=str(ca_file), timeout=0.5)).kind == "timeout"


def test_https_to_a_plain_server_says_so(server: Server) -> None:
    error = failure(reader_of(server.url.replace("http:", "https:")))
    assert error.kind == "tls"
    assert "http://" in str(error)


def test_proxies_of_the_environment_are_ignored_for_loopback_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(answer('{"jobs": ["through the proxy"]}')) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert reader_of(server.url).get_json("/", DECODER).jobs == ["a"]
        assert reader_of("http://flink.example:8081").get_json("/", DECODER).jobs == ["through the proxy"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8081", "ftp://a", "http://", "http://u:p@h", "http://h:99999", "http://h/?a"]
)
def test_an_url_that_cannot_work_is_refused_early(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        reader_of(url)


def test_loopback_is_recognised() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["10.0.0.1", "flink", "localhost.example.org"]))
