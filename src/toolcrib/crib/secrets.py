"""The secret values that the configuration holds, so that the book and the person's screen can leave them out.

In: the projects. Out: every value that stands for a key, token or password in any of their servers' entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toolcrib.config.model import Config
from toolcrib.servers.environment import Mask


class KnownSecrets:
    """Worked out again only when a configuration is another than before."""

    def __init__(self, configs: Callable[[], Iterable[Config]]) -> None:
        self._configs = configs
        self._seen: tuple[Config, ...] = ()
        self._values: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        configs = tuple(self._configs())
        if len(configs) != len(self._seen) or any(new is not old for new, old in zip(configs, self._seen, strict=True)):
            self._values = frozenset(
                secret for config in configs for server in config.servers.values() for secret in Mask(server).secrets
            )
            self._seen = configs
        return self._values
