"""Streaming queries for the engines: demo, tests and benchmarks share them."""
