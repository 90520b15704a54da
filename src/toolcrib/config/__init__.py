"""Files, environment and flags → one frozen `Config`.

In: JSON and YAML of a user and of a trusted project, `TOOLCRIB_*` variables, `--mcp-server`.
Out: `Config` with its servers, settings and problems; `add_server` and `remove_server` for changing
a user's file. Below: `events` and `errors`. Above: `store` keeps what is trusted, everybody reads `Config`.

A name is imported when it is first used: who only asks for a path pays only for `paths`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.config.edit import IfExists, ProjectEdit, add_server, remove_server
    from toolcrib.config.layers import load, store_location, trust_nothing
    from toolcrib.config.model import (
        Config,
        ConfigSource,
        DaemonSettings,
        Flags,
        Layer,
        NameStyle,
        Problem,
        Retry,
        ServerConfig,
        Severity,
        Transport,
        UntrustedFile,
    )
    from toolcrib.config.paths import Paths
    from toolcrib.config.show import mask
    from toolcrib.config.trust import trust_digest

__all__ = [
    "Config",
    "ConfigSource",
    "DaemonSettings",
    "Flags",
    "IfExists",
    "Layer",
    "NameStyle",
    "Paths",
    "Problem",
    "ProjectEdit",
    "Retry",
    "ServerConfig",
    "Severity",
    "Transport",
    "UntrustedFile",
    "add_server",
    "load",
    "mask",
    "remove_server",
    "store_location",
    "trust_digest",
    "trust_nothing",
]

_HOMES = {
    "IfExists": "edit",
    "ProjectEdit": "edit",
    "Paths": "paths",
    "add_server": "edit",
    "remove_server": "edit",
    "load": "layers",
    "store_location": "layers",
    "trust_nothing": "layers",
    "mask": "show",
    "trust_digest": "trust",
}
"""Where a name lives when it is not in `model`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'model')}"), name)
    globals()[name] = value
    return value
