"""No policy: every thread at its baseline, the OS decides."""

from __future__ import annotations

from collections.abc import Sequence

from lachesis_py.model import Operator, Schedule
from lachesis_py.policies.base import MetricView, Policy


class NoPolicy(Policy):
    name = "none"
    summary = "Nothing is changed: every thread stays at (or returns to) its baseline."

    def metrics(self) -> tuple[str, ...]:
        return ()

    def decide(self, view: MetricView, operators: Sequence[Operator], round_number: int) -> Schedule:
        return Schedule(reason="policy none leaves the choice to the OS")
