"""A small HTTP reader with limits: whatever the other side does, it ends in time with an answer or a DriverError."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, NoReturn, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec
import requests
import urllib3.exceptions
from requests.utils import get_environ_proxies

from lachesis_py.drivers.base import DriverError
from lachesis_py.drivers.http_auth import Credentials
from lachesis_py.drivers.http_deadline import DeadlineAdapter, deadline, remaining
from lachesis_py.units import show_duration, show_size

T = TypeVar("T")

MAX_REDIRECTS = 3
SHOWN_CHARACTERS = 200
CHUNK = 256 * 1024
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class StatusError(DriverError):
    """The server answered, but with a status that is not success."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__("status", message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Service:
    """How messages speak of the other side."""

    name: str  # "Flink's REST API"
    option: str  # the setting that holds its address
    remedy: str  # what to check when nobody answers


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete body, and when it was asked for and when its headers arrived (time.monotonic())."""

    body: bytes
    asked: float
    answered: float

    @property
    def midpoint(self) -> float:
        """The best guess at when the values in the body were taken.

        They are collected somewhere between our asking and the first byte of the answer; the middle is wrong by at
        most half of that time, and neither by the transfer of the body nor by how long we took to get to it.
        """
        return (self.asked + self.answered) / 2


def check_url(url: str, option: str) -> SplitResult:
    """Raises ValueError with what would be right."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f'{option} must start with http:// or https:// and name a host, e.g. "http://127.0.0.1:8081"')
    if parts.username or parts.password:
        raise ValueError(f"{option} must not hold a password: use username and password_file")
    if parts.query or parts.fragment:
        raise ValueError(f"{option} must not have a query (?...) or a fragment (#...)")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{option} has a port that is not between 0 and 65535") from None
    return parts


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpReader:
    """GETs below one base URL, over kept connections. Not for use by several threads at once.

    It works on the transport of `requests` and not on its Session: a Session reads the body of a redirect without
    any limit, and merges the environment (proxies, .netrc) into every request at a cost above that of the request.
    """

    def __init__(
        self,
        base_url: str,
        service: Service,
        *,
        timeout: float = 2.0,
        max_response: int = 16 * 1024**2,
        credentials: Credentials | None = None,
        ca_file: str = "",
        accept: str = "application/json",
    ) -> None:
        parts = check_url(base_url, service.option)
        self.base_url = base_url.rstrip("/")
        self.service = service
        self.timeout = timeout
        self.max_response = max_response
        self._credentials = credentials or Credentials()
        self._verify: bool | str = ca_file or True
        self._accept = accept
        self._origin = (parts.scheme, parts.netloc)
        self._proxies = {} if is_loopback(parts.hostname or "") else get_environ_proxies(base_url)
        self._adapter = DeadlineAdapter(pool_connections=1, pool_maxsize=1, max_retries=0)
        self._prepared: dict[str, requests.PreparedRequest] = {}
        self._authorization = ""

    def __repr__(self) -> str:
        return f"HttpReader({self.base_url!r})"

    def close(self) -> None:
        self._adapter.close()

    def get_json(self, path: str, decoder: msgspec.json.Decoder[T]) -> T:
        """GET and decode into the decoder's type; an answer of another shape is `foreign`."""
        body = self.get(path).body
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            self.raise_foreign(path, str(error))
        except msgspec.DecodeError as error:
            if body.lstrip()[:1] == b"<":
                self.raise_foreign(path, "it answers with HTML")
            raise DriverError(
                "malformed",
                f"{self._at(path)} answered with JSON that is broken off or wrong ({error}); "
                "if this repeats, look at that service's log and at proxies in between",
            ) from None

    def get(self, path: str) -> Answer:
        """GET, following redirects within this server only."""
        url = self.base_url + path
        token = deadline.set(monotonic() + self.timeout)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                asked = monotonic()
                response = self._send(url)
                answered = monotonic()
                if response.status_code not in REDIRECTS:
                    return Answer(self._body(response, url), asked, answered)
                url = self._redirected(response, url)
            raise DriverError("status", f"{self._at(path)} redirects in circles; {self._check_option}")
        finally:
            deadline.reset(token)

    def raise_foreign(self, path: str, why: str) -> NoReturn:
        """Say that something else than the expected service lives at this address."""
        raise DriverError(
            "foreign",
            f"this does not look like {self.service.name}: {self.base_url}{path}: {why}; {self._check_option}",
        ) from None

    @property
    def _check_option(self) -> str:
        return f"check `{self.service.option}`"

    def _at(self, path: str) -> str:
        return f"{self.service.name} at {self.base_url}{path}"

    def _request(self, url: str) -> requests.PreparedRequest:
        authorization = self._credentials.header()
        if authorization != self._authorization or len(self._prepared) > 4096:
            self._prepared.clear()
            self._authorization = authorization
        prepared = self._prepared.get(url)
        if prepared is None:
            # Compression would cost both sides more than loopback costs, and hide the size of the answer.
            headers = {"Accept": self._accept, "Accept-Encoding": "identity", "User-Agent": "lachesis"}
            if authorization:
                headers["Authorization"] = authorization
            prepared = requests.Request("GET", url, headers=headers).prepare()
            self._prepared[url] = prepared
        return prepared

    def _send(self, url: str) -> requests.Response:
        try:
            try:
                return self._transmit(url)
            except requests.ConnectionError as error:
                # A server may close an idle connection in the moment we reuse it: that is no fault, ask again.
                if not _has_cause(error, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
                    raise
                return self._transmit(url)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            self._raise_transport(error, url)

    def _transmit(self, url: str) -> requests.Response:
        left = remaining()
        return self._adapter.send(
            self._request(url), stream=True, timeout=(left, left), verify=self._verify, proxies=self._proxies
        )

    def _body(self, response: requests.Response, url: str) -> bytes:
        complete = False
        try:
            if response.status_code >= 300:
                self._raise_status(response, url)
            body = self._read(response, url)
            complete = True
            return body
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            self._raise_transport(error, url)
        finally:
            if not complete:
                response.raw.close()

    def _read(self, response: requests.Response, url: str) -> bytes:
        raw: Any = response.raw
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise DriverError(
                "malformed", f"{url} answered with Content-Encoding {encoding[:40]!r}, which we did not ask for"
            )
        length = raw.length_remaining
        if length is not None:
            if length > self.max_response:
                self._raise_too_large(url)
            whole: bytes = raw.read()
            return whole
        chunks, size = [], 0
        while chunk := raw.read(CHUNK):
            size += len(chunk)
            if size > self.max_response:
                self._raise_too_large(url)
            chunks.append(chunk)
        return b"".join(chunks)

    def _redirected(self, response: requests.Response, url: str) -> str:
        response.raw.close()
        target = urljoin(url, response.headers.get("Location", ""))
        parts = urlsplit(target)
        if (parts.scheme, parts.netloc) != self._origin:
            # Our credentials are for this server alone.
            elsewhere = f"{parts.scheme}://{parts.hostname or ''}"
            raise StatusError(
                response.status_code,
                f"{self.service.name} at {url} redirects to another server ({elsewhere[:SHOWN_CHARACTERS]}), which we "
                f"do not follow; if that is the right one, put it into `{self.service.option}`",
            )
        return target

    def _raise_status(self, response: requests.Response, url: str) -> NoReturn:
        code = response.status_code
        if code in (401, 403):
            remedy = "check the credentials" if self._credentials else "set username and password_file, or token_file"
            raise DriverError("auth", f"{self.service.name} at {url} refused us (HTTP {code}); {remedy}")
        raw: Any = response.raw
        shown = self._credentials.hide(_printable(raw.read(4 * SHOWN_CHARACTERS)))[:SHOWN_CHARACTERS]
        raise StatusError(
            code,
            f"{self.service.name} at {url} answered HTTP {code}: {shown or '(empty)'}; "
            f"look at its log, and {self._check_option}",
        )

    def _raise_too_large(self, url: str) -> NoReturn:
        raise DriverError(
            "too_large",
            f"the answer of {url} is larger than {show_size(self.max_response)}; "
            f"if it is {self.service.name}, raise `max_response`",
        )

    def _raise_transport(self, error: BaseException, url: str) -> NoReturn:
        at = f"{self.service.name} at {url}"
        if _has_cause(error, TimeoutError, urllib3.exceptions.ReadTimeoutError):
            raise DriverError(
                "timeout",
                f"{at} did not answer within {show_duration(self.timeout)}; "
                "see whether it is overloaded or hangs, or raise `timeout`",
            ) from None
        if _has_cause(error, ssl.SSLError, ssl.CertificateError, urllib3.exceptions.SSLError):
            raise DriverError("tls", f"{at}: {_tls_trouble(error)}") from None
        if isinstance(error, OSError) and "TLS CA certificate bundle" in str(error):
            raise DriverError("tls", f"{at}: cannot read ca_file {self._verify}; correct the path") from None
        if _has_cause(error, http.client.IncompleteRead, urllib3.exceptions.IncompleteRead):
            raise DriverError(
                "malformed", f"{at} broke off in the middle of its answer; if this repeats, look at its log"
            ) from None
        if _has_cause(error, http.client.HTTPException) and not _has_cause(error, http.client.RemoteDisconnected):
            raise DriverError("malformed", f"{at} does not speak HTTP; {self._check_option}") from None
        reason = _os_reason(error)
        raise DriverError("unreachable", f"{at} cannot be reached ({reason}); {self.service.remedy}") from None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it was made from: `requests` and urllib3 nest in args, in reason and in __cause__."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, BaseException) or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        waiting += [*item.args, getattr(item, "reason", None), item.__cause__, item.__context__]


def _has_cause(error: BaseException, *types: type[BaseException]) -> bool:
    return any(isinstance(cause, types) for cause in _causes(error))


def _os_reason(error: BaseException) -> str:
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return cause.strerror
        if isinstance(cause, http.client.RemoteDisconnected):
            return "it closed the connection without an answer"
    return type(error).__name__


def _tls_trouble(error: BaseException) -> str:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({cause.verify_message}); set ca_file to the CA that signed it"
    if any("WRONG_VERSION_NUMBER" in str(c) or "record layer" in str(c) for c in _causes(error)):
        return "it does not speak TLS; write http:// instead of https://, or enable TLS there"
    reasons = [cause.reason for cause in _causes(error) if isinstance(cause, ssl.SSLError) and cause.reason]
    return f"TLS failed ({reasons[0] if reasons else 'no reason given'}); check ca_file and the server's certificate"


def _printable(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    return "".join(character if character.isprintable() else "?" for character in text)
