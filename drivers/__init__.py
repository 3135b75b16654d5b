"""Drivers: one file per engine, each a thin reader of what that engine tells."""
