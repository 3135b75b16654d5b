"""Which operators a schedule speaks for: an OR of ANDs of globs over engine, query and operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

import msgspec

from lachesis_py.model import Operator, Query


class Clause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All parts must match. Queries match by name or id, operators by name."""

    engine: str = "*"
    query: str = "*"
    operator: str = "*"

    def matches(self, operator: Operator, query: Query | None) -> bool:
        return (
            fnmatchcase(operator.key.engine, self.engine)
            and (fnmatchcase(operator.key.query, self.query) or fnmatchcase(query.name if query else "", self.query))
            and fnmatchcase(operator.name, self.operator)
        )

    def overlaps(self, other: Clause) -> bool:
        return (
            globs_intersect(self.engine, other.engine)
            and globs_intersect(self.query, other.query)
            and globs_intersect(self.operator, other.operator)
        )

    def __str__(self) -> str:
        parts = [
            f"{name}={getattr(self, name)}" for name in ("engine", "query", "operator") if getattr(self, name) != "*"
        ]
        return " ".join(parts) or "everything"


def matches_any(clauses: Sequence[Clause], operator: Operator, query: Query | None) -> bool:
    return any(clause.matches(operator, query) for clause in clauses)


_TOKEN = re.compile(r"\*|\?|\[[^]]+\]|.", re.DOTALL)


def globs_intersect(left: str, right: str) -> bool:
    """Could one name match both? Character classes count as any character, so a doubt is a yes."""
    a, b = _TOKEN.findall(left), _TOKEN.findall(right)

    @cache
    def meet(i: int, j: int) -> bool:
        if i == len(a) and j == len(b):
            return True
        if i < len(a) and a[i] == "*":
            return meet(i + 1, j) or (j < len(b) and meet(i, j + 1))
        if j < len(b) and b[j] == "*":
            return meet(i, j + 1) or (i < len(a) and meet(i + 1, j))
        if i == len(a) or j == len(b):
            return False
        return (a[i] == b[j] or len(a[i]) > 1 or len(b[j]) > 1 or "?" in (a[i], b[j])) and meet(i + 1, j + 1)

    return meet(0, 0)
