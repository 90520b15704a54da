"""Tokens of tool definitions as each provider's model received them in its first request.

In: the programs. Out: tokens (o200k) of the definitions of MCP tools, of what is sent where they are deferred, of the
servers' instructions, and of the program's own tools: through Toolcrib, alone and with five servers, and directly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from at_work import Way, model, place, steps
from parts.runs import ProgramSetup
from report import Cell, Figure
from rounds import progress
from targets import NotMeasured
from toolcrib.audit.row import count_all_tokens
from toolcrib.testing.conversation import RequestConversation, ToolOffering

WAYS = (Way.WORKSPACE, Way.WARM, Way.DIRECT)
AT_ONCE = 3
Row = tuple[tuple[str, str, str], dict[str, Cell] | str]
OFFERED_AS = {
    ("claude", ToolOffering.DEFERRED): "deferred (default)",
    ("claude", ToolOffering.PLAIN): "loaded",
    ("codex", ToolOffering.CODE): "code mode",
    ("codex", ToolOffering.DEFERRED): "deferred",
    ("codex", ToolOffering.PLAIN): "namespace",
    ("gemini", ToolOffering.PLAIN): "loaded",
}
WITH_MCP = (
    *("ToolSearch", "tool_search", "ListMcpResourcesTool", "ReadMcpResourceTool", "DeferredToolPlaceholder"),
    *("list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource"),
)
"""Tools of the programs' own that are there for MCP servers."""

_NAME = re.compile(r"^mcp_\S+$", re.MULTILINE)
"""A deferred tool, in a list of names."""
_INSTRUCTIONS = (
    re.compile(r"# MCP Server Instructions\n.*", re.DOTALL),
    re.compile(r"The following are instructions provided by the tool server .*\[end of server instructions", re.DOTALL),
)


def measure(people: Iterable[ProgramSetup]) -> list[Figure]:
    figure = Figure(
        name="tokens",
        title="of the model's first request, o200k, over the JSON as it was sent",
        keys=("provider", "offered", "way"),
        values=(
            *("MCP tools", "definitions", "names, search", "instructions", "MCP in all"),
            *("one search", "its own tools"),
        ),
        notes=(
            "MCP tools: named in the request, by definition or by name. definitions: theirs alone. names, search: the "
            "names of deferred tools, and the program's own tools to search for them and to read resources.",
            "one search: the definitions that the search for one tool brought, in the requests that follow.",
            "its own tools: fewer where Toolcrib's profile leaves some out (developer, here).",
        ),
    )
    # Nothing is timed here, so several may run at once.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(_measure_one, *zip(*[(person, way) for person in people for way in WAYS], strict=True))
        rows = sorted((row for rows in found for row in rows), key=lambda row: row[0][:2])
    for keys, values in rows:
        if isinstance(values, str):
            figure.add_not_measured(keys, values)
        else:
            figure.add(keys, values)
    return [figure]


def _measure_one(person: ProgramSetup, way: Way) -> list[Row]:
    """A row for each way in which the program offers tools; or why it has none."""
    name = person.agent.name
    progress(f"tokens: {name}, {way}")
    rows: list[Row] = []
    with place(person, way) as at:
        for offering in person.offerings:
            keys = (name, OFFERED_AS[name, offering], way.value)
            with model(person, steps(way)) as (watch, served):
                at.use(served.url, offering)
                try:
                    at.run(watch)
                except NotMeasured as reason:
                    rows.append((keys, str(reason)))
                    continue
            _, _, body = watch.seen[0]
            _, last, _ = watch.seen[-1]
            rows.append((keys, request_tokens(body, last)))
    return rows


def request_tokens(body: dict[str, Any], last: RequestConversation) -> dict[str, Cell]:
    """Of a run's first request; `last` is the conversation at its end."""
    tools = list(_tools(body))
    mcp = [tool for tool in tools if _is_mcp(_named(tool))]
    helping = [tool for tool in tools if tool not in mcp and _named(tool) in WITH_MCP]
    own = [tool for tool in tools if tool not in mcp and tool not in helping]
    texts = [text for key, value in body.items() if key != "tools" for text in _texts(value)]
    names = [name for text in texts for name in _NAME.findall(text)]
    instructions = [found[0] for text in texts for pattern in _INSTRUCTIONS if (found := pattern.search(text))]
    definitions = _tokens(mcp)
    instead = _tokens(helping) + _count("\n".join(names))
    told = _count("\n".join(instructions))
    return {
        "MCP tools": len(names) + sum(len(tool.get("tools", [tool])) for tool in mcp) or None,
        "definitions": definitions,
        "names, search": instead,
        "instructions": told,
        "MCP in all": definitions + instead + told,
        "one search": _tokens([dict(tool.definition) for tool in last.found if _is_mcp(tool.namespace or tool.name)]),
        "its own tools": _tokens(own),
    }


def _tools(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    among = [item["tools"] for item in body.get("input", []) if item.get("type") == "additional_tools"]
    for tool in [*body.get("tools", []), *(tool for several in among for tool in several)]:
        yield from tool.get("functionDeclarations", [tool])


def _named(tool: dict[str, Any]) -> str:
    return str(tool.get("name") or tool.get("type"))


def _is_mcp(name: str) -> bool:
    return name.startswith("mcp_")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        # Tools that stand among the messages are counted as tools.
        for one in () if value.get("type") == "additional_tools" else value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _tokens(tools: list[dict[str, Any]]) -> int:
    return sum(_count(json.dumps(tool, ensure_ascii=False, separators=(",", ":"))) for tool in tools)


def _count(text: str) -> int:
    found = count_all_tokens(text.encode())
    if found.estimated:
        raise NotMeasured("tokens are only counted with toolcrib[tokens]")
    return found.tokens
