"""Highest rate: operators whose path to the sinks gives most output for the least CPU run first."""

from __future__ import annotations

from lachesis_py.policies.metric import MetricPolicy


class HighestRate(MetricPolicy):
    name = "hr"
    summary = "Highest rate: operators whose path yields most output per CPU time run first."
    normaliser = "log"
    metric = "highest_rate"
