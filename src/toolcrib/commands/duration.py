"""Parses durations: `90s`, `30m`, `8h`, `2d`, `1w`."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?P<number>[0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(?P<unit>[smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(text: str) -> float | None:
    """The duration in seconds, or None if the text is not one."""
    span = _DURATION.fullmatch(text.strip())
    return None if span is None else float(span["number"]) * _UNITS[span["unit"]]
