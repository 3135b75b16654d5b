"""Installs and starts real engines on loopback for the demo, the tests and the benchmarks."""
