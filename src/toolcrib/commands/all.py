"""Every command, in one registry: importing this module declares them."""

from toolcrib.commands import (
    account,
    agent,
    approval,
    audit,
    config,
    favorites,
    job,
    permission,
    pins,
    resource,
    run,
    secret,
    server,
    server_details,
    system,
    task,
    tool,
)
from toolcrib.commands.registry import registry

__all__ = [
    "account",
    "agent",
    "approval",
    "audit",
    "config",
    "favorites",
    "job",
    "permission",
    "pins",
    "registry",
    "resource",
    "run",
    "secret",
    "server",
    "server_details",
    "system",
    "task",
    "tool",
]
