"""The words of `.toolcrib/workspace.yml`.

In: `Settings`. Out: the keys that a file may have, the bounds of each limit, and settings as a file would say them.
`read_settings`, `narrow` and `example` stand on it, and the documentation is held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from toolcrib.workspace.settings.model import KB, MB, TOOL_NAMES, Settings

_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class LimitKey:
    """One key beneath `limits:`."""

    name: str
    """The field of `Limits`."""
    unit: int = 1
    """What one of it is there."""
    least: float
    most: float
    whole: bool = True


LIMITS: Mapping[str, LimitKey] = MappingProxyType(
    {
        "memory_mb": LimitKey(name="memory", unit=MB, least=64, most=1_048_576),
        "processes": LimitKey(name="processes", least=16, most=65_536),
        "file_mb": LimitKey(name="file_size", unit=MB, least=1, most=1_048_576),
        "output_kb": LimitKey(name="output", unit=KB, least=1, most=1024),
        "kept_mb": LimitKey(name="kept", unit=MB, least=0, most=1024),
        "read_kb": LimitKey(name="read", unit=KB, least=1, most=10_240),
        "session_calls": LimitKey(name="session_calls", least=1, most=1_000_000_000),
        "session_seconds": LimitKey(name="session_seconds", least=1, most=365 * _DAY, whole=False),
        "session_mb": LimitKey(name="session_bytes", unit=MB, least=0, most=1_048_576),
    }
)

SECONDS = LimitKey(name="seconds", least=0.1, most=_DAY, whole=False)
"""Every key beneath `limits.seconds`."""

SECONDS_KEYS = ("default", *TOOL_NAMES)
LIMITS_KEYS = ("seconds", *LIMITS)
TOP_KEYS = (
    "read_only",
    "tools",
    "git",
    "network",
    "forbid_shell_in_ci",
    "environment",
    "readable",
    "hidden",
    "guarded",
    "repositories",
    "python",
    "limits",
)


def flat(settings: Settings) -> dict[str, Any]:
    """Every value under its key, as a file would give it: `limits.seconds.run_tests` → 600."""
    limits = settings.limits
    values: dict[str, Any] = {"read_only": settings.read_only}
    values |= {f"tools.{name}": "off" if name in settings.off else "on" for name in TOOL_NAMES}
    values |= {
        "git": str(settings.git),
        "network": settings.network,
        "forbid_shell_in_ci": settings.forbid_shell_in_ci,
        "environment": list(settings.environment),
        "readable": [str(folder) for folder in settings.readable],
        "hidden": list(settings.hidden),
        "guarded": list(settings.guarded),
        "repositories": settings.repositories,
        "python": settings.python,
    }
    values |= {f"limits.seconds.{name}": _plain(limits.seconds[name]) for name in TOOL_NAMES}
    values |= {f"limits.{word}": _plain(getattr(limits, key.name) / key.unit) for word, key in LIMITS.items()}
    return values


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number
