"""`Config` → what `config show` may print.

In: a `Config`. Out: a plain JSON object without a secret in it: values of env and headers are hidden,
what came from a variable shows as `${VAR}`, and known shapes of secrets are hidden everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.config.masking import mask_tree
from toolcrib.config.model import Config, JobSettings, KeyPath, ServerConfig, Transport
from toolcrib.config.redact import HIDDEN, mask_args, mask_spelling, mask_text, printable
from toolcrib.config.tool_rules import shown_rule
from toolcrib.config.visible import visible


def mask(config: Config) -> dict[str, Any]:
    """Also with nothing in it that shows as something else."""
    shown: dict[str, Any] = mask_tree(_masked(config), visible)
    return shown


def _masked(config: Config) -> dict[str, Any]:
    return {
        "servers": {printable(name): mask_server(server) for name, server in config.servers.items()},
        "settings": {
            "port": config.settings.port,
            "names": str(config.settings.names),
            "log_level": config.settings.log_level,
            "store": mask_text(config.settings.store),
            "audit_values": config.settings.audit_values,
            "audit_keep_days": config.settings.audit_keep_days,
            "audit_keep_mb": config.settings.audit_keep_mb,
            "session_idle_hours": config.settings.session_idle_hours,
            "workspace": config.settings.workspace,
            "jobs": _jobs(config.settings.jobs),
        },
        "tools": [shown_rule(rule.written) for rule in config.tools],
        "problems": [str(problem) for problem in config.problems],
        "untrusted": [printable(str(file)) for file in config.untrusted],
    }


def _jobs(jobs: JobSettings) -> dict[str, Any]:
    urls = {printable(provider): mask_args([url])[0] for provider, url in jobs.base_urls.items()}
    models = [printable(model) for model in jobs.models]
    keys = {printable(provider): HIDDEN for provider in jobs.api_keys}
    told = {name: value for name, value in vars(jobs).items() if name != "spelled"}
    return {**told, "model": printable(jobs.model), "models": models, "base_urls": urls, "api_keys": keys}


def mask_server(server: ServerConfig) -> dict[str, Any]:
    shown: dict[str, Any] = {"transport": str(server.transport), "source": printable(str(server.source))}
    if server.transport is Transport.STDIO:
        words = [_written(server, ("command",), server.command)]
        words += [_written(server, ("args", position), arg) for position, arg in enumerate(server.args)]
        command, *args = mask_args(words)
        shown |= {"command": command, "args": args, "env": _hidden(server, "env", server.env)}
        if server.cwd:
            shown["cwd"] = printable(_written(server, ("cwd",), server.cwd))
    else:
        shown |= {
            "url": mask_args([_written(server, ("url",), server.url)])[0],
            "headers": _hidden(server, "headers", server.headers),
            "verify_tls": server.verify_tls,
        }
    retry = {"max_attempts": server.retry.max_attempts, "backoff": server.retry.backoff}
    return shown | {
        "enabled": server.enabled,
        "connect_timeout": server.connect_timeout,
        "call_timeout": server.call_timeout,
        "max_message_mb": server.max_message_mb,
        "retry": retry,
    }


def _written(server: ServerConfig, path: KeyPath, value: str) -> str:
    return server.spelled.get(path, value)


def _hidden(server: ServerConfig, table: str, values: Mapping[str, str]) -> dict[str, str]:
    """Literal values are hidden whole; `Bearer ${KEY}` keeps what tells where it comes from."""
    spelled = server.spelled
    return {
        mask_text(name): mask_spelling(spelled[table, name]) if (table, name) in spelled else HIDDEN for name in values
    }
