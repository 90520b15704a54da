"""Every command, in one registry: importing this module declares them."""

from toolcrib.commands import (
    agent,
    approval,
    audit,
    config,
    job,
    permission,
    pins,
    resource,
    run,
    server,
    server_details,
    system,
    tool,
)
from toolcrib.commands.registry import registry

__all__ = [
    "agent",
    "approval",
    "audit",
    "config",
    "job",
    "permission",
    "pins",
    "registry",
    "resource",
    "run",
    "server",
    "server_details",
    "system",
    "tool",
]
