"""The secret values that the configuration holds, so that the book and the person's screen can leave them out.

In: the projects. Out: every value that stands for a key, token or password in any of their servers' entries, their
rules for tools, and among the keys of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toolcrib.config.model import Config
from toolcrib.servers.environment import SHORTEST_SECRET, Mask


class KnownSecrets:
    """Worked out again only when a configuration is another than before. Asked by several threads."""

    def __init__(self, configs: Callable[[], Iterable[Config]]) -> None:
        self._configs = configs
        self._known: tuple[tuple[Config, ...], frozenset[str]] = ((), frozenset())
        """Of which configurations, and the values; put in place together."""

    def __call__(self) -> frozenset[str]:
        configs = tuple(self._configs())
        seen, values = self._known
        if len(configs) != len(seen) or any(new is not old for new, old in zip(configs, seen, strict=True)):
            of_servers = (Mask(server).secrets for config in configs for server in config.servers.values())
            of_rules = (rule.secrets for config in configs for rule in config.tools)
            of_jobs = (config.settings.jobs.api_keys.values() for config in configs)
            found = (secret for some in (*of_servers, *of_rules, *of_jobs) for secret in some)
            values = frozenset(secret for secret in found if len(secret) >= SHORTEST_SECRET)
            self._known = configs, values
        return values
