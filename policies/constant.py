"""Fixed priorities by operator name, for people who know better than any metric."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from lachesis_py.model import Operator, Schedule
from lachesis_py.policies.base import MetricView, Policy, PolicyOptions


class ConstantOptions(PolicyOptions, frozen=True):
    value: float = 1.0
    """Priority of operators that no pattern matches."""

    operators: dict[str, float] = msgspec.field(default_factory=dict)
    """Priority by pattern (glob) of the operator's name; the first that matches counts."""


class Constant(Policy):
    name = "constant"
    summary = "Fixed priorities, by pattern of the operator's name."
    options_type = ConstantOptions

    def metrics(self) -> tuple[str, ...]:
        return ()

    def decide(self, view: MetricView, operators: Sequence[Operator], round_number: int) -> Schedule:
        return Schedule({op.key: self._priority(op.name) for op in operators}, "configured priority")

    def _priority(self, name: str) -> float:
        matching = (value for pattern, value in self.options.operators.items() if fnmatchcase(name, pattern))
        return float(next(matching, self.options.value))
