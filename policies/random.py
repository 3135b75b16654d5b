"""Random priorities: the control column. A gain that random shows too is mere perturbation."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lachesis_py.model import Operator, Schedule
from lachesis_py.policies.base import MetricView, Policy, PolicyOptions


class RandomOptions(PolicyOptions, frozen=True):
    seed: int = 1
    """The same seed gives the same sequence of decisions."""


class Random(Policy):
    name = "random"
    summary = "Random priorities in every round: a control to measure others against."
    options_type = RandomOptions

    def metrics(self) -> tuple[str, ...]:
        return ()

    def decide(self, view: MetricView, operators: Sequence[Operator], round_number: int) -> Schedule:
        source = random.Random(f"{self.options.seed}/{round_number}")
        return Schedule({op.key: source.random() for op in operators}, "random number")
