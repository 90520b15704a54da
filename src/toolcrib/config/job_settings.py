"""The settings of jobs, under `jobs:` in the user's configuration.

In: nothing (only a type). Out: the frozen `JobSettings`. `settings` reads them; `jobs` follows them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    for_agents: bool = False
    """Whether agents can submit jobs: true if the user's file has `jobs:`, even empty. The owner always can."""
    model: str = ""
    """`provider:model`, for jobs without a model."""
    models: tuple[str, ...] = ()
    """Other models that agents may choose: names, or globs such as `anthropic:*`."""
    programs: tuple[str, ...] = ()
    """Coding agents that agents may run as jobs. The owner may run any."""
    base_urls: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By provider: another endpoint with the same API."""
    api_keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """By provider. Without a key here, the provider's usual variable is used, and sent only to its own address."""
    spelled: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    """By provider: its key as written, if it has a `${VAR}`."""
    max_running: int = 4
    max_waiting: int = 100
    max_per_agent: int = 20
    """Running and waiting jobs of one agent."""
    timeout: float = 3600
    """Seconds, for jobs without a timeout."""
    max_timeout: float = 86_400
    keep_days: float = 30

    def allows(self, model: str) -> bool:
        """Whether an agent may choose it."""
        return model == self.model or any(fnmatch.fnmatchcase(model, glob) for glob in self.models)
