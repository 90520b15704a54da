"""The commands as an in-process server with the reserved name `crib`.

In: a call from the door. Out: the command's result as an MCP tool result. In the catalog its tools are
`crib_<namespace>_<action>`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from toolcrib.commands.own_resources import SHOWN_EVENTS, changed_by, command_for, contents, own_offers
from toolcrib.commands.registry import (
    Availability,
    Command,
    CommandContext,
    CommandEffect,
    CommandHost,
    CommandRegistry,
    Via,
)
from toolcrib.core.crib import Crib
from toolcrib.core.project import BuiltinServer, Project
from toolcrib.core.workspace import WorkspaceServer
from toolcrib.errors import ToolcribError, UnknownOffer
from toolcrib.events import Event
from toolcrib.identity.principal import RequestContext
from toolcrib.policy.permission import OWNER_MARK
from toolcrib.servers.link import RESOURCE_UPDATED
from toolcrib.servers.model import Offers, OnProgress, ServerAnswer, ToolCall


def builtins(
    registry: CommandRegistry, host: CommandHost, *, unsafe_no_sandbox: bool = False
) -> dict[str, BuiltinServer]:
    """The in-process servers by their reserved names."""
    servers: tuple[BuiltinServer, ...] = (
        CommandServer(registry, host),
        WorkspaceServer(unsafe_no_sandbox=unsafe_no_sandbox),
    )
    return {server.name: server for server in servers}


class CommandServer:
    name = "crib"

    def __init__(self, registry: CommandRegistry, host: CommandHost) -> None:
        self._commands = {c.tool: c for c in registry.all() if c.availability is Availability.EVERYWHERE}
        self._registry = registry
        self._host = host
        self.crib: Crib | None = None
        self.tools = tuple(_definition(command) for command in self._commands.values())
        self._without_jobs = tuple(_definition(c) for c in self._commands.values() if not c.name.startswith("job:"))

    async def refresh(self, crib: Crib) -> None:
        if self.crib is None:
            crib.bus.subscribe(self._changed, *SHOWN_EVENTS)
        self.crib = crib

    def _changed(self, event: Event) -> None:
        uri, agent = changed_by(event)
        for project in self.crib.projects if self.crib is not None else ():
            project.report(self.name, RESOURCE_UPDATED, {"uri": uri}, agent=agent)

    def files(self, project: Project) -> tuple[Path, ...]:
        return ()

    def outdated(self, project: Project) -> bool:
        return False

    async def close(self) -> None:
        """There is nothing to close."""

    def tools_in(self, project: Project) -> tuple[bytes, ...]:
        """Jobs cost money and tokens, so they are listed only if the user's configuration has `jobs:`."""
        return self.tools if self._jobs_for_agents else self._without_jobs

    def offers_in(self, project: Project) -> Offers:
        return own_offers(jobs=self._jobs_for_agents)

    @property
    def _jobs_for_agents(self) -> bool:
        return self.crib is not None and self.crib.projects.home.config.settings.jobs.for_agents

    def absence(self, project: Project) -> str:
        return ""

    async def call(
        self,
        request: RequestContext[Project],
        call: ToolCall,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ServerAnswer:
        if self.crib is None:
            raise RuntimeError("a command was called before `refresh`")
        context = CommandContext(crib=self.crib, request=request, host=self._host, via=Via.MCP, emit=_discard)
        if call.method != "tools/call":
            return await self._read(call, context)
        arguments = msgspec.json.decode(call.params.get("arguments", b"{}")) or {}
        try:
            found = await self._registry.run(self._commands[call.name].name, arguments, context)
        except ToolcribError as error:
            return ServerAnswer(result=_result(error.text(), failed=True))
        return ServerAnswer(result=_result(msgspec.json.encode(found).decode(), structured=found))

    async def _read(self, call: ToolCall, context: CommandContext) -> ServerAnswer:
        command = command_for(call.name)
        if command is None:
            raise UnknownOffer(f"Toolcrib has no resource {call.name[:200]!r}.", remedy="List the resources.")
        if call.method == "resources/subscribe":
            return ServerAnswer(result=b"{}")
        found = await self._registry.run(command[0], dict(command[1]), context)
        return ServerAnswer(result=contents(call.name, found))


async def _discard(_: dict[str, Any]) -> None:
    """Streaming commands are not offered over MCP, so nothing is lost."""


def _definition(command: Command) -> bytes:
    schema = _without_titles(command.parameters.model_json_schema())
    reads = command.effect in (CommandEffect.READS, CommandEffect.REVEALS)
    annotations: dict[str, Any] = {"readOnlyHint": reads, "destructiveHint": not reads, "openWorldHint": False}
    if command.effect is CommandEffect.WORKS:
        annotations["openWorldHint"] = True
    if command.effect in (CommandEffect.REVEALS, CommandEffect.CHANGES):
        annotations[OWNER_MARK] = True
    return msgspec.json.encode(
        {
            "name": command.tool,
            "description": command.summary,
            "inputSchema": {"type": "object", **schema},
            "annotations": annotations,
        }
    )


def _without_titles(schema: Any) -> Any:
    """Removes the titles and class docstrings that pydantic adds: they cost tokens and don't help a model."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    is_model = "properties" in schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "description" and is_model)
    }


def _result(text: str, *, structured: dict[str, Any] | None = None, failed: bool = False) -> bytes:
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": failed}
    if structured is not None:
        result["structuredContent"] = structured
    return msgspec.json.encode(result)
