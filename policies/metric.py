"""Any metric as a priority: the base of qs, hr and fcfs, and `metric:<name>` for all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lachesis_py.model import Operator, Schedule
from lachesis_py.policies.base import MetricView, Policy, priorities_from


class MetricPolicy(Policy):
    metric: ClassVar[str]

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)

    def decide(self, view: MetricView, operators: Sequence[Operator], round_number: int) -> Schedule:
        return Schedule(priorities_from(view.get(self.metric), operators), self.metric, view.unit(self.metric))


def policy_for(metric_name: str) -> type[MetricPolicy]:
    """The policy `metric:<name>`."""

    class ByMetric(MetricPolicy):
        name = f"metric:{metric_name}"
        summary = f"Operators with a larger {metric_name} run first."
        metric = metric_name

    return ByMetric
