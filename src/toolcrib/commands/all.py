"""Every command, in one registry: importing this module declares them."""

from toolcrib.commands import config, log, server, system, tool
from toolcrib.commands.registry import registry

__all__ = ["config", "log", "registry", "server", "system", "tool"]
