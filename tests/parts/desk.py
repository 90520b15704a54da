"""A server in the gateway's own process whose answers a test chooses, and clients that call it and the gateway's tools.

For `gateway_harness.opened(folder, Desk(…))`; import the fixture `scene`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from parts.gateway_harness import (
    META,
    Exchange,
    GatewayHarness,
    Slow,
    legacy_body,
    modern_body,
    modern_headers,
    opened,
)
from toolcrib.core.project import Project
from toolcrib.identity.principal import RequestContext
from toolcrib.policy import rule_from
from toolcrib.servers.model import OnProgress, ServerAnswer, ToolCall

Json = dict[str, Any]
Answer = Callable[[Json], Json | bytes | Awaitable[Json]]
"""The arguments of a call to its result, or to the bytes of one."""
TEXT = {"type": "string"}


def tool(
    name: str, about: str = "", *, reads: bool = False, required: tuple[str, ...] = (), **properties: Json
) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    hints = {"annotations": {"readOnlyHint": True}} if reads else {}
    return {"name": name, "description": about or f"Does {name}.", "inputSchema": schema, **hints}


def said(text: str, **more: Any) -> Json:
    """A result."""
    return {"content": [{"type": "text", "text": text}], **more}


def text_of(result: Mapping[str, Any]) -> str:
    return "\n".join(block.get("text", "") for block in result["content"])


class Desk(Slow):
    """A server with these tools, whose annotations count. `seen` has the calls that reached it."""

    def __init__(self, name: str, *tools: Json) -> None:
        super().__init__()
        self.name = name
        self.seen: list[tuple[str, Json]] = []
        self.answers: dict[str, Answer] = {}
        """By tool. Others answer with their name and arguments."""
        self.list_tools(*tools)

    def list_tools(self, *tools: Json) -> None:
        self.tools = tuple(json.dumps(one).encode() for one in tools)

    async def call(
        self,
        request: RequestContext[Project],
        call: ToolCall,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> ServerAnswer:
        if call.name == "ask":
            return await self._ask(call, on_progress)
        arguments: Json = json.loads(bytes(call.params.get("arguments", b"{}")))
        self.seen.append((call.name, arguments))
        made = self.answers.get(call.name, lambda given: said(json.dumps([call.name, given])))(arguments)
        result = made if isinstance(made, dict | bytes) else await made
        return ServerAnswer(result=result if isinstance(result, bytes) else json.dumps(result).encode())

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


class Rendezvous:
    """Answers only when so many calls wait for it at the same time."""

    def __init__(self, calls: int) -> None:
        self._barrier = asyncio.Barrier(calls)

    async def __call__(self, arguments: Json) -> Json:
        async with asyncio.timeout(20), self._barrier:
            return said("met", structuredContent=arguments)


class Client:
    """One agent's client of either era."""

    def __init__(self, harness: GatewayHarness, token: str, era: str = "modern", *, name: str = "") -> None:
        self.harness = harness
        self.token = token
        self.era = era
        self.name = name
        self._session = ""

    async def ask(self, method: str, headers: Mapping[str, str] | None = None, **params: Any) -> Exchange:
        body, sent = await self.request(method, **params)
        return await self.harness.ask(body, self.token, {**sent, **(headers or {})})

    async def request(self, method: str, **params: Any) -> tuple[Json, dict[str, str]]:
        """The body and headers of a request."""
        about = {"name": self.name, "version": "1"} if self.name else {}
        if self.era == "modern":
            body = modern_body(method, **params)
            if about:
                body["params"]["_meta"] = {**META, "io.modelcontextprotocol/clientInfo": about}
            return body, modern_headers(method, **params)
        if not self._session:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, **({"clientInfo": about} if about else {})}
            answer = await self.harness.ask(legacy_body("initialize", **hello), self.token)
            self._session = answer.headers["mcp-session-id"]
        return legacy_body(method, **params), {"mcp-session-id": self._session}

    async def listed(self, listing: str = "") -> list[Json]:
        headers = {"x-toolcrib-listing": listing} if listing else {}
        tools: list[Json] = (await self.ask("tools/list", headers)).json["result"]["tools"]
        return tools

    async def names(self, listing: str = "") -> list[str]:
        return [one["name"] for one in await self.listed(listing)]

    async def call(self, name: str, /, **arguments: Any) -> Json:
        """The result."""
        result: Json = (await self.ask("tools/call", name=name, arguments=arguments)).json["result"]
        return result

    async def found(self, query: str, **more: Any) -> str:
        return text_of(await self.call("crib_find", query=query, **more))

    async def batch(self, *calls: tuple[str, Json]) -> Json:
        return await self.call("crib_batch", calls=[{"tool": name, "arguments": given} for name, given in calls])


async def rows(harness: GatewayHarness, agent: str) -> list[Json]:
    """The agent's calls in the audit log, oldest first."""
    await harness.crib.services.audit.flush()
    found: list[Json] = await harness.crib.services.audit.query(agent=agent)
    return [row for row in sorted(found, key=lambda row: row["seq"]) if row["kind"] != "change"]


DESK = (
    tool("read", "Reads a note.", reads=True, required=("note",), note=TEXT),
    tool("look", "Looks at a drawer.", reads=True, drawer=TEXT),
    tool(
        "write",
        "Writes a note. " + "It replaces another of the same day, but can be appended to it. " * 8,
        required=("note",),
        note=TEXT,
        mode={"enum": ["append", "replace"]},
    ),
    tool("burn", "Burns every note."),
    {"name": "ask", "inputSchema": {"type": "object"}},
)
VAULT = (tool("open_vault", "Opens the vault of notes."), tool("count_coins", "Counts coins.", reads=True))


class Scene:
    def __init__(self, harness: GatewayHarness, desk: Desk, vault: Desk) -> None:
        self.harness, self.desk, self.vault = harness, desk, vault
        self.agents = harness.crib.services.agents
        self.home = harness.crib.projects.home

    async def client(self, agent: str, era: str = "modern", *, name: str = "", **more: Any) -> Client:
        return Client(self.harness, await self.harness.agent(agent, **more), era, name=name)

    async def rule(self, agent: str, **data: Any) -> None:
        await self.agents.add_rule(agent, rule_from(data, where="test"))

    def mode(self, agent: str) -> str:
        (session,) = (one for one in self.harness.crib.services.sessions if one.agent == agent)
        return session.mode


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    desk, vault = Desk("desk", *DESK), Desk("vault", *VAULT)
    async with opened(tmp_path, desk, vault) as harness:
        yield Scene(harness, desk, vault)


def configure(folder: Path, **settings: Any) -> None:
    (folder / "t").mkdir(mode=0o700, exist_ok=True)
    (folder / "t" / "config.json").write_text(json.dumps(settings))
