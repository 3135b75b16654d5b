"""Credentials from files. Secrets stay inside: nothing here shows them in a message, a repr or a log."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from lachesis_py.drivers.base import DriverError

MAX_SECRET_BYTES = 64 * 1024


class SecretFile:
    """A file with one secret, read again whenever it changed (tokens are rotated under running daemons)."""

    def __init__(self, path: str, option: str) -> None:
        self.path = path
        self.option = option
        self._stamp: tuple[int, int, int] | None = None
        self._value = ""

    def read(self) -> str:
        try:
            seen = os.stat(self.path)
            stamp = (seen.st_mtime_ns, seen.st_ino, seen.st_size)
            if stamp != self._stamp:
                self._value = self._load()
                self._stamp = stamp
        except OSError as error:
            raise DriverError(
                "auth", f"cannot read {self.option} {self.path}: {error.strerror}; correct the path or its permissions"
            ) from None
        return self._value

    def _load(self) -> str:
        with Path(self.path).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise DriverError("auth", f"{self.option} {self.path} is larger than 64 KiB: that is not a secret")
        try:
            value = content.decode().strip()
        except UnicodeDecodeError:
            raise DriverError("auth", f"{self.option} {self.path} is not text") from None
        if not value or not value.isprintable():
            raise DriverError("auth", f"{self.option} {self.path} must hold one line with the secret and nothing else")
        return value


class Credentials:
    """Turns the options of a driver into an Authorization header."""

    def __init__(self, username: str = "", password_file: str = "", token_file: str = "") -> None:
        if token_file and (username or password_file):
            raise ValueError("token_file and username/password_file exclude each other: keep one of them")
        if bool(username) != bool(password_file):
            raise ValueError("username and password_file belong together: set both or neither")
        self._username = username
        self._secret: SecretFile | None = None
        if token_file:
            self._secret = SecretFile(token_file, "token_file")
        elif password_file:
            self._secret = SecretFile(password_file, "password_file")

    def __bool__(self) -> bool:
        return self._secret is not None

    def __repr__(self) -> str:
        return f"Credentials({self._secret.option if self._secret else 'none'})"

    def header(self) -> str:
        """The value of the Authorization header, "" without credentials."""
        if self._secret is None:
            return ""
        secret = self._secret.read()
        if self._secret.option == "token_file":
            return f"Bearer {secret}"
        return "Basic " + base64.b64encode(f"{self._username}:{secret}".encode()).decode()

    def hide(self, text: str) -> str:
        """The text without our secrets: a server may echo what we sent."""
        if self._secret is None:
            return text
        try:
            secrets = (self.header().partition(" ")[2], self._secret.read())
        except DriverError:
            return "(not shown)"
        for secret in secrets:
            text = text.replace(secret, "***")
        return text
