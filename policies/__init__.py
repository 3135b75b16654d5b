"""Policies: one file each, pure functions from metrics to priorities."""
