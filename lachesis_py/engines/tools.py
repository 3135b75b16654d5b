"""The programs that engines need beside themselves, and what to do where one is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lachesis_py.errors import LachesisError

DEBIAN_PACKAGES = {"java": "openjdk-17-jdk-headless", "javac": "openjdk-17-jdk-headless", "mvn": "maven"}
OLDEST_JAVA = 17


class ToolMissing(LachesisError):
    """A program is not installed."""


def find_tool(name: str, purpose: str) -> str:
    """The path of a program: below JAVA_HOME for Java's own, else on PATH."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home and name in ("java", "javac"):
        own = Path(java_home) / "bin" / name
        if own.is_file():
            return str(own)
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(
            f"{name} is needed to {purpose} and is not on PATH: install it, on Debian or Ubuntu with"
            f" `apt-get install {DEBIAN_PACKAGES[name]}`"
        )
    return found


def java_version(java: str) -> int:
    """The feature release (17, 21, ...) of a `java` program."""
    answer = run_tool([java, "-XshowSettings:properties", "-version"], "ask for its version", timeout=60)
    found = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer)
    if found is None:
        raise LachesisError(f"{java} does not say its version: is it a Java runtime?")
    return int(found[1])


def find_java(purpose: str) -> tuple[str, int]:
    """A Java runtime that is new enough, with its feature release."""
    java = find_tool("java", purpose)
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise ToolMissing(
            f"{java} is Java {version}; Java {OLDEST_JAVA} or newer is needed to {purpose}: install it, on Debian or"
            f" Ubuntu with `apt-get install {DEBIAN_PACKAGES['java']}`, or point JAVA_HOME at it"
        )
    return java, version


def run_tool(command: Sequence[str], purpose: str, *, timeout: float, directory: Path | None = None) -> str:
    """What a short-lived program printed; its last lines become the error when it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise LachesisError(f"{command[0]} did not {purpose} within {timeout:.0f} s: try again") from error
    if done.returncode != 0:
        raise LachesisError(
            f"{command[0]} could not {purpose} (exit status {done.returncode}):\n{last_lines(done.stdout)}"
        )
    return done.stdout


def last_lines(text: str, count: int = 15) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[-count:])
