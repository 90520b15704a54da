"""Every command, in one registry: importing this module declares them."""

from toolcrib.commands import (
    agent,
    approval,
    audit,
    config,
    job,
    log,
    permission,
    profile,
    raw,
    run,
    server,
    servers_seen,
    session,
    system,
    tool,
    workspace,
)
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
