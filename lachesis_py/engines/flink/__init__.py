"""Flink: installed into the cache, run as a standalone cluster on loopback, given jobs."""

from __future__ import annotations

from lachesis_py.engines.flink.cluster import DEFAULT_NAME, FlinkCluster, find, find_all, start
from lachesis_py.engines.flink.install import VERSION, home, install, installed

__all__ = ["DEFAULT_NAME", "VERSION", "FlinkCluster", "find", "find_all", "home", "install", "installed", "start"]
