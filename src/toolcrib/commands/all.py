"""Every command, in one registry: importing this module declares them."""

from toolcrib.commands import agent, approval, audit, config, job, permission, run, server, system, tool
from toolcrib.commands import agent as servers_seen
from toolcrib.commands import agent as session
from toolcrib.commands import config as workspace
from toolcrib.commands import permission as profile
from toolcrib.commands import system as log
from toolcrib.commands import tool as raw
from toolcrib.commands.registry import registry

__all__ = [
    "agent",
    "approval",
    "audit",
    "config",
    "job",
    "log",
    "permission",
    "profile",
    "raw",
    "registry",
    "run",
    "server",
    "servers_seen",
    "session",
    "system",
    "tool",
    "workspace",
]
