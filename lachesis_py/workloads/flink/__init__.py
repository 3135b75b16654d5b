"""Jobs for Flink, as Java sources: compiled on first use by `lachesis_py.engines.flink.jobs`."""

from __future__ import annotations

from pathlib import Path

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.java")))
CHAIN_JOB = "lachesis.workloads.ChainJob"
SQL_JOB = "lachesis.workloads.SqlJob"
