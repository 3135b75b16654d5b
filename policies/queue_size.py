"""Queue size: the longer the queue in front of an operator, the more urgent it is."""

from __future__ import annotations

from lachesis_py.policies.metric import MetricPolicy


class QueueSize(MetricPolicy):
    name = "qs"
    summary = "Queue size: operators with more records waiting in front of them run first."
    normaliser = "minmax"
    metric = "queue_size"
