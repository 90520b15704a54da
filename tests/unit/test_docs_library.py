"""What docs/library.md says is so: its tables are those of the code, and its lines of Python can be read."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import toolcrib
from toolcrib import errors
from toolcrib.agent_loop import events
from toolcrib.agent_loop.models.endpoint import PROVIDERS
from toolcrib.agent_loop.options import AgentOptions, ToolRequest
from toolcrib.catalog import transforms
from toolcrib.config import from_code
from toolcrib.core import content
from toolcrib.core.connection import Connection
from toolcrib.core.crib import Crib
from toolcrib.core.projects import Projects
from toolcrib.core.provider import PUBLIC_EVENTS, ToolProvider
from toolcrib.core.results import Result
from toolcrib.core.server_registry import ServerRegistry
from toolcrib.core.toolbox import Tools
from toolcrib.run_events import AgentEvent, ToolStatus
from toolcrib.servers.model import ServerState, ServerStatus

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"the page has no section {title!r}"
    return found[1]


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table whose head begins so."""
    table = re.search(rf"^\| {re.escape(head)}.*?\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table, head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def of_kind(module: object, base: type) -> set[str]:
    """The classes that stand in the module."""
    found = inspect.getmembers(module, inspect.isclass)
    return {name for name, one in found if issubclass(one, base) and one is not base and not name.startswith("_")}


@pytest.mark.req("KAI-1")
def test_every_option_is_in_the_table_with_its_default() -> None:
    told = {name: default for names, default, _ in rows(section("Options"), "option") for name in words(names)}
    assert set(told) == {field.name for field in dataclasses.fields(AgentOptions)}
    for field in dataclasses.fields(AgentOptions):
        if field.default_factory is not dataclasses.MISSING:
            assert ast.literal_eval(told[field.name].strip("`")) == field.default_factory(), field.name
        elif field.default is not dataclasses.MISSING:
            assert ast.literal_eval(told[field.name].strip("`")) == field.default, field.name
        else:
            assert told[field.name] == "", field.name
    assert all(f"`{provider}`" in section("Options") for provider in PROVIDERS)


@pytest.mark.req("KAI-1", "FRG-6")
def test_every_event_is_in_the_table_with_its_fields() -> None:
    table = rows(section("Events"), "`type`")
    known = {name: one for name, one in inspect.getmembers(events, inspect.isclass) if hasattr(one, "type")}
    assert {name.strip("`"): kind.strip("`") for kind, name, _, _ in table} == {
        name: one.type for name, one in known.items()
    }
    common = {field.name for field in dataclasses.fields(AgentEvent)}
    for _, name, fields, _ in table:
        own = {field.name for field in dataclasses.fields(known[name.strip("`")])}
        told = set(words(fields)) - {"started", "tool_call"}
        assert told <= own, name
        assert own - common - {"run_id"} <= told, name
    assert all(f"`{name}`" in section("Events") for name in ("kind", "role", "provider", "time", "run_id"))


def test_every_way_to_end_and_every_status_is_in_the_tables() -> None:
    text = section("Events")
    ends = [re.findall(r"`ended: (\w+)`", last) for _, last in rows(text, "how it ends")]
    assert [end for row in ends for end in row] == list(events.RunEnd)
    told = {name for names, _ in rows(text, "`tool_status`") for name in words(names)}
    assert told == set(ToolStatus) - {"started"}
    assert {field.name for field in dataclasses.fields(events.ModelUsage)} == set(
        re.findall(r"\w+", re.search(r"`usage` is `{(.*?)}`", text)[1])
    )
    assert {field.name for field in dataclasses.fields(ToolRequest)} <= set(words(section("Approvals")))


def test_every_kind_of_server_is_in_the_table_with_its_fields() -> None:
    text = section("Servers")
    classes = {name: getattr(from_code, name) for name in ("StdioServer", "HttpServer", "SseServer", "WebSocketServer")}
    table = {re.match(r"`(\w+)\(", name)[1]: (name.strip("`"), told) for name, told in rows(text, "class")}
    assert set(table) == set(classes)
    for name, (example, told) in table.items():
        made = eval(example, dict(classes))  # noqa: S307 - our own page
        fields = {field.name for field in dataclasses.fields(made)} - {"name"}
        common = {"connect_timeout", "call_timeout", "max_message_mb"}
        assert common <= set(words(text))
        if not told.startswith("the same"):
            assert set(words(told)) == fields - common, name
    assert re.search(r"`connect_timeout` \(10 seconds.*`call_timeout` \(300\)", text, re.DOTALL)


@pytest.mark.req("ENG-5", "ENG-6")
def test_every_filter_and_transform_is_in_its_table() -> None:
    classes = {
        name
        for name, one in inspect.getmembers(transforms, inspect.isclass)
        if one.__module__ == transforms.__name__ and dataclasses.is_dataclass(one) and not name.startswith("_")
    }
    told = {name for cell, _ in rows(section("Transforms"), "transform") for name in re.findall(r"`(\w+)\(", cell)}
    assert told == classes
    assert told <= set(toolcrib.__all__)
    predicates = {name for name in toolcrib.__all__ if name.islower() and name not in ("run_agent", "server_config")}
    assert predicates - {"__version__"} <= set(words(section("Filters")))


@pytest.mark.req("ENG-2", "ENG-3")
def test_what_counters_cribs_tools_and_results_can_do_is_so() -> None:
    page = section("Tools for an agent that you have")
    of_all = {re.findall(r"`(?:await )?(\w+)", cell)[0] for cell, _ in rows(page, "of all three")}
    assert of_all == {name for name in vars(ToolProvider) if not name.startswith("_")} - {"bus"}
    states = re.search(r"`state` \((.*?)\)", page)[1]
    assert set(words(states)) == set(ServerState)
    fields = {field.name for field in dataclasses.fields(ServerStatus)}
    assert {"last_error", "protocol_version", "tools", "pid", "server_info"} <= fields
    assert {kind.__name__ for kind in PUBLIC_EVENTS} <= set(words(page))
    own = [
        name
        for cell, _ in rows(section("A crib of your configuration"), "of a `Crib`")
        for name in re.findall(r"`(?:await )?([\w.]+)", cell)
    ]
    of_crib = {"Crib": Crib, "servers": ServerRegistry, "projects": Projects}
    assert [name for name in own if not hasattr(of_crib[name.partition(".")[0]], name.partition(".")[2])] == []
    wanted = inspect.signature(Connection).parameters
    told = {name for cell, _ in rows(section("The tools of a running daemon"), "argument") for name in words(cell)}
    assert told == set(wanted) - {"paths", "environ"}
    of_tools = [
        name
        for cell, _ in rows(section("Choosing and changing tools"), "of `Tools`")
        for name in re.findall(r"`(?:await )?(?:tools\.)?(\w+)[(`]", cell)
    ]
    assert {"names", "of", "call", "transformed", "adaptations"} <= set(of_tools)
    assert {"to_openai", "to_anthropic", "to_google"} <= set(of_tools)
    assert [name for name in of_tools if not hasattr(Tools, name) and name != "len"] == []
    of_result = {re.match(r"`(\w+)", cell)[1] for cell, _ in rows(section("Results"), "of a `Result`")}
    assert of_result == {name for name in dir(Result) if not name.startswith("_")} | {
        field.name for field in dataclasses.fields(Result)
    }
    assert of_kind(content, content.Block) <= set(words(section("Results")))


def test_every_error_of_the_page_is_one() -> None:
    told = [name for cell, _ in rows(section("Errors"), "error") for name in words(cell)]
    assert all(issubclass(getattr(errors, name), errors.ToolcribError) for name in told)
    assert len(set(told)) == 13


def test_every_piece_of_python_can_be_read() -> None:
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        body = block if "asyncio.run(" in block else f"async def work():\n{textwrap.indent(block, '    ')}"
        compile(body, "docs/library.md", "exec")


def test_links_lead_somewhere() -> None:
    for page, place in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", PAGE):
        file = ROOT / "docs" / page if page else ROOT / "docs" / "library.md"
        assert file.exists(), page
        if place:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert place in anchors, (page, place)
