"""What a policy is: a pure function from metrics to priorities. Larger is more urgent, absent is baseline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from lachesis_py.model import Entity, Operator, OperatorKey, Schedule


class MetricView(Protocol):
    """The metrics of one round, resolved on demand and cached for the round."""

    def get(self, metric: str) -> Mapping[Entity, float]:
        """All known values of a metric; entities without a value are absent. Raises MissingMetric."""

    def unit(self, metric: str) -> str:
        """The metric's unit as people write it."""


class PolicyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every policy's own settings."""


class Policy(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions
    normaliser: ClassVar[str] = "minmax"
    """The normaliser that suits these priorities unless the configuration names another."""

    def __init__(self, options: Any = None) -> None:
        self.options: Any = options if options is not None else self.options_type()

    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The metrics this policy reads, so that the loop can check for them before it starts."""

    @abstractmethod
    def decide(self, view: MetricView, operators: Sequence[Operator], round_number: int) -> Schedule:
        """Priorities for the operators in scope. Pure: the same view and round give the same schedule."""


def priorities_from(values: Mapping[Entity, float], operators: Sequence[Operator]) -> dict[OperatorKey, float]:
    """The values of the operators in scope; those without a value stay out and so at baseline."""
    return {op.key: values[op.key] for op in operators if op.key in values}
