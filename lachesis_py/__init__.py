"""Schedules stream processing queries from outside the engine."""

__version__ = "0.1.0"
