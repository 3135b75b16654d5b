"""Durations and sizes as people write them: "250ms", "1.5s", "64MiB"."""

from __future__ import annotations

import re

DURATION_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "kB": 1000, "MB": 1000**2, "GB": 1000**3}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]+)\s*")


class Duration(float):
    """Seconds, written with a unit."""

    @classmethod
    def parse(cls, text: object) -> Duration:
        if isinstance(text, Duration):
            return text
        match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[2] not in DURATION_UNITS:
            raise ValueError(f'{text!r} is not a duration; write a number with a unit, such as "250ms", "1s" or "5m"')
        return cls(float(match[1]) * DURATION_UNITS[match[2]])

    def __str__(self) -> str:
        return show_duration(self)


class Size(int):
    """Bytes, written with a unit."""

    @classmethod
    def parse(cls, text: object) -> Size:
        if isinstance(text, Size):
            return text
        match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[2] not in SIZE_UNITS:
            raise ValueError(f'{text!r} is not a size; write a number with a unit, such as "64MiB" or "500kB"')
        return cls(round(float(match[1]) * SIZE_UNITS[match[2]]))

    def __str__(self) -> str:
        return show_size(self)


def show_duration(seconds: float) -> str:
    """Three significant digits in the unit that fits."""
    magnitude = abs(seconds)
    if magnitude == 0:
        return "0s"
    if magnitude < 1e-3:
        return f"{seconds * 1e6:.3g}µs"
    if magnitude < 1:
        return f"{seconds * 1e3:.3g}ms"
    if magnitude < 120:
        return f"{seconds:.3g}s"
    if magnitude < 7200:
        return f"{seconds / 60:.3g}m"
    if magnitude < 172800:
        return f"{seconds / 3600:.3g}h"
    return f"{seconds / 86400:.3g}d"


def show_size(size: float) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if abs(size) >= SIZE_UNITS[unit]:
            return f"{size / SIZE_UNITS[unit]:.3g}{unit}"
    return f"{size:g}B"


def show_count(value: float) -> str:
    """A plain number for a table: 12, 3.4, 12.3k, 4.5M."""
    magnitude = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if magnitude >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    return f"{value:.0f}" if magnitude >= 100 or value == int(value) else f"{value:.3g}"


def show_value(value: float, unit: str) -> str:
    """A metric's value with its unit, as `explain` and `status` print it."""
    if unit == "s":
        return show_duration(value)
    if unit == "ns" or unit.startswith("ns/"):
        return show_duration(value * 1e-9) + unit[2:]
    return f"{show_count(value)} {unit}".rstrip()
