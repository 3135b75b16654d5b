"""First come, first served: operators whose waiting tuples have been in the system longest run first."""

from __future__ import annotations

from lachesis_py.policies.metric import MetricPolicy


class FirstComeFirstServed(MetricPolicy):
    name = "fcfs"
    summary = "First come, first served: operators whose head tuple entered the system earliest run first."
    normaliser = "minmax"
    metric = "system_age"
