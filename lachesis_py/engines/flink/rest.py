"""A small client of Flink's REST API and of its Prometheus reporter, on loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import requests

from lachesis_py.errors import LachesisError

TIMEOUT_S = 10.0
SUBMIT_TIMEOUT_S = 120.0
LARGEST_ANSWER = 16 << 20


class RestError(LachesisError):
    """Flink did not answer, or refused. `status` is None where there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Rest:
    def __init__(self, url: str) -> None:
        self.url = url
        self._session = _session()

    def get(self, path: str, *, timeout: float = TIMEOUT_S) -> Any:
        return self._call("GET", path, timeout)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", path, SUBMIT_TIMEOUT_S, json=body)

    def put(self, path: str, body: Any) -> Any:
        return self._call("PUT", path, TIMEOUT_S, json=body)

    def patch(self, path: str) -> Any:
        return self._call("PATCH", path, TIMEOUT_S)

    def upload_jar(self, jar: Path) -> Any:
        with jar.open("rb") as handle:
            files = {"jarfile": (jar.name, handle, "application/x-java-archive")}
            return self._call("POST", "/jars/upload", SUBMIT_TIMEOUT_S, files=files)

    def _call(self, method: str, path: str, timeout: float, **arguments: Any) -> Any:
        try:
            with self._session.request(
                method, self.url + path, timeout=timeout, stream=True, allow_redirects=False, **arguments
            ) as response:
                text = _bounded_text(response)
        except requests.RequestException as error:
            raise RestError(f"{method} {self.url}{path}: {error}") from error
        if response.status_code >= 400:
            raise RestError(f"{method} {self.url}{path}: {_reason(text)}", response.status_code)
        try:
            return json.loads(text or "null")
        except ValueError as error:
            raise RestError(f"{method} {self.url}{path}: the answer is not JSON") from error


def serves_taskmanager(prometheus_url: str, taskmanager_id: str) -> bool:
    """Whether the reporter of exactly this TaskManager answers there."""
    try:
        with _session() as session, session.get(prometheus_url, timeout=3, stream=True) as response:
            return response.status_code == 200 and f'tm_id="{taskmanager_id}"' in _bounded_text(response)
    except (requests.RequestException, RestError):
        return False


def serves_jobmanager(prometheus_url: str) -> bool:
    try:
        with _session() as session, session.get(prometheus_url, timeout=3, stream=True) as response:
            return response.status_code == 200 and "flink_jobmanager_" in _bounded_text(response)
    except (requests.RequestException, RestError):
        return False


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a proxy of the environment has no business on loopback
    return session


def _bounded_text(response: requests.Response) -> str:
    body = bytearray()
    for piece in response.iter_content(1 << 16):
        body += piece
        if len(body) > LARGEST_ANSWER:
            raise RestError(f"{response.url} answers more than {LARGEST_ANSWER >> 20} MiB: is this Flink?")
    return body.decode(errors="replace")


def _reason(text: str) -> str:
    """The last cause in a Java stack trace is the one people can act on."""
    try:
        errors = "\n".join(json.loads(text)["errors"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
    causes: list[str] = re.findall(r"^Caused by: (.+)$", errors, flags=re.MULTILINE)
    first = errors.strip().splitlines()[0] if errors.strip() else "no reason given"
    return causes[-1] if causes else first
