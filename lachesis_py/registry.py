"""Finds drivers, policies and translators by name: our own, and those of other packages by entry point."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from lachesis_py.errors import LachesisError

BUILT_IN: dict[str, dict[str, str]] = {
    "drivers": {"flink": "lachesis_py.drivers.flink:FlinkDriver"},
    "policies": {
        "qs": "lachesis_py.policies.queue_size:QueueSize",
        "hr": "lachesis_py.policies.highest_rate:HighestRate",
        "fcfs": "lachesis_py.policies.fcfs:FirstComeFirstServed",
        "random": "lachesis_py.policies.random:Random",
        "constant": "lachesis_py.policies.constant:Constant",
        "none": "lachesis_py.policies.none:NoPolicy",
    },
    "translators": {"nice": "lachesis_py.translators.nice:Nice"},
}

METRIC_POLICY = "metric:"


class UnknownName(LachesisError):
    pass


class Found(NamedTuple):
    name: str
    cls: Any
    origin: str  # the distribution it comes from


def names(group: str) -> list[str]:
    return sorted({*BUILT_IN[group], *(point.name for point in _foreign(group))})


def find(group: str, name: str) -> Found:
    """The class behind a name; our own names cannot be taken by a plugin."""
    if group == "policies" and name.startswith(METRIC_POLICY):
        from lachesis_py.metrics.catalogue import CATALOGUE
        from lachesis_py.policies.metric import policy_for

        metric = name.removeprefix(METRIC_POLICY)
        if metric not in CATALOGUE:
            raise UnknownName(f"unknown metric {metric!r} in policy {name!r}{suggest(metric, CATALOGUE)}")
        return Found(name, policy_for(metric), "lachesis-py")
    target = BUILT_IN[group].get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return Found(name, getattr(importlib.import_module(module), attribute), "lachesis-py")
    for point in _foreign(group):
        if point.name == name:
            try:
                return Found(name, point.load(), point.dist.name if point.dist else "unknown package")
            except Exception as error:
                raise LachesisError(f"plugin {point.value} for {group} {name!r} cannot be loaded: {error!r}") from error
    known = names(group) + ([f"{METRIC_POLICY}<name>"] if group == "policies" else [])
    raise UnknownName(f"unknown {_SINGULAR[group]} {name!r}{suggest(name, known)}")


_SINGULAR = {"drivers": "driver", "policies": "policy", "translators": "translator"}


@cache
def _foreign(group: str) -> tuple[Any, ...]:
    return tuple(entry_points(group=f"lachesis_py.{group}"))


def nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known word, or all of them."""
    known = sorted(known)
    near = nearest(word, known)
    return f": did you mean {near!r}?" if near else f"; known: {', '.join(known)}"
