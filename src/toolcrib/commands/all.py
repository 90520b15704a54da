"""Every command, in one registry: importing this module declares them."""

from toolcrib.commands import agent, approval, audit, config, job, permission, run, server, system, tool
from toolcrib.commands.registry import registry

__all__ = ["agent", "approval", "audit", "config", "job", "permission", "registry", "run", "server", "system", "tool"]
