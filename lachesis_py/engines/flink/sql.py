"""Takes a SQL script apart into settings and statements."""

from __future__ import annotations

import re
from typing import NamedTuple

from lachesis_py.errors import LachesisError

# Quoted text and comments hide the semicolons inside them.
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^']|'')*'|`(?:[^`]|``)*`|\"[^\"]*\")|(?P<end>;)|(?P<other>[^;'`\"/-]+|.)",
    re.DOTALL,
)
_SET = re.compile(r"SET\s+'((?:[^']|'')+)'\s*=\s*'((?:[^']|'')*)'", re.IGNORECASE)
_SET_WORD = re.compile(r"(SET|RESET)\b", re.IGNORECASE)
_OPENS_SET = re.compile(r"(EXECUTE\s+STATEMENT\s+SET\s+)?BEGIN\b", re.IGNORECASE)
_STARTS_JOB = re.compile(r"(INSERT|EXECUTE\s+(STATEMENT\s+SET|INSERT))\b", re.IGNORECASE)


class Submission(NamedTuple):
    """One job: the statements that lead to it, and the settings in force at that point."""

    statements: tuple[str, ...]
    settings: dict[str, str]


def statements(script: str) -> list[str]:
    """The statements of a script without comments; a statement set counts as one."""
    found: list[str] = []
    current: list[str] = []
    in_set = False
    for token in _TOKEN.finditer(script):
        if token["comment"]:
            current.append(" ")
            continue
        current.append(token[0])
        text = "".join(current).strip()
        if not token["end"]:
            continue
        in_set = in_set or bool(_OPENS_SET.match(text))
        if in_set and not re.search(r"\bEND\s*;$", text, re.IGNORECASE):
            continue
        in_set = False
        if text.rstrip("; \n\t"):
            found.append(text.rstrip("; \n\t") + (";" if _OPENS_SET.match(text) else ""))
        current = []
    rest = "".join(current).strip()
    if in_set:
        raise LachesisError("the SQL script opens a statement set with BEGIN that no END closes: add `END;`")
    if rest:
        found.append(rest)
    return found


def submissions(script: str) -> list[Submission]:
    """The jobs of a script, in order: each INSERT and each statement set is one."""
    settings: dict[str, str] = {}
    leading: list[str] = []
    jobs: list[Submission] = []
    for statement in statements(script):
        setting = _SET.fullmatch(statement)
        if setting:
            settings[setting[1].replace("''", "'")] = setting[2].replace("''", "'")
        elif _SET_WORD.match(statement):
            raise LachesisError(f"cannot read the setting {statement!r}: write SET 'key' = 'value';")
        elif _STARTS_JOB.match(statement):
            jobs.append(Submission((*leading, statement), dict(settings)))
        else:
            leading.append(statement)
    if not jobs:
        raise LachesisError("the SQL script starts no job: it needs an INSERT or an EXECUTE STATEMENT SET")
    return jobs
