"""The tables and examples of docs/library.md match the code."""

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
def test_every_option_is_in_the_table_with_its_default():
    documented = {name: default for names, default, _ in rows(section("Options"), "option") for name in words(names)}
    assert set(documented) == {field.name for field in dataclasses.fields(AgentOptions)}
    for field in dataclasses.fields(AgentOptions):
        if field.default_factory is not dataclasses.MISSING:
            assert ast.literal_eval(documented[field.name].strip("`")) == field.default_factory(), field.name
        elif field.default is not dataclasses.MISSING:
            assert ast.literal_eval(documented[field.name].strip("`")) == field.default, field.name
        else:
            assert documented[field.name] == "", field.name
    assert all(f"`{provider}`" in section("Options") for provider in PROVIDERS)


@pytest.mark.req("KAI-1", "FRG-6")
def test_every_event_is_in_the_table_with_its_fields():
    table = rows(section("Events"), "`type`")
    known = {name: one for name, one in inspect.getmembers(events, inspect.isclass) if hasattr(one, "type")}
    types = {name: one.type for name, one in known.items()}
    assert {name.strip("`"): kind.strip("`") for kind, name, _, _ in table} == types
    common = {field.name for field in dataclasses.fields(AgentEvent)}
    for _, name, fields, _ in table:
        own = {field.name for field in dataclasses.fields(known[name.strip("`")])}
        documented = set(words(fields)) - {"started", "tool_call"}
        assert own - common - {"run_id"} <= documented <= own, name
    assert all(f"`{name}`" in section("Events") for name in ("kind", "role", "provider", "time", "run_id"))


def test_every_end_and_every_status_is_in_the_tables():
    text = section("Events")
    ends = [end for _, last in rows(text, "how it ends") for end in re.findall(r"`ended: (\w+)`", last)]
    assert ends == list(events.RunEnd)
    documented = {name for names, _ in rows(text, "`tool_status`") for name in words(names)}
    assert documented == set(ToolStatus) - {"started"}
    usage = re.findall(r"\w+", re.search(r"`usage` is `{(.*?)}`", text)[1])
    assert {field.name for field in dataclasses.fields(events.ModelUsage)} == set(usage)
    assert {field.name for field in dataclasses.fields(ToolRequest)} <= set(words(section("Approvals")))


def test_every_kind_of_server_is_in_the_table_with_its_fields():
    text = section("Servers")
    classes = {name: getattr(from_code, name) for name in ("StdioServer", "HttpServer", "SseServer", "WebSocketServer")}
    table = {re.match(r"`(\w+)\(", name)[1]: (name.strip("`"), documented) for name, documented in rows(text, "class")}
    assert set(table) == set(classes)
    for name, (example, documented) in table.items():
        made = eval(example, dict(classes))  # noqa: S307 - our own page
        fields = {field.name for field in dataclasses.fields(made)} - {"name"}
        common = {"connect_timeout", "call_timeout", "call_timeouts", "max_waiting_calls", "max_message_mb"}
        common |= {"sampling", "roots"}
        assert common <= set(words(text))
        if not documented.startswith("the same"):
            assert set(words(documented)) == fields - common, name
    assert re.search(r"`connect_timeout` \(10 seconds.*`call_timeout` \(300\)", text, re.DOTALL)


@pytest.mark.req("ENG-5", "ENG-6")
def test_every_filter_and_transform_is_in_its_table():
    own = [one for _, one in inspect.getmembers(transforms, dataclasses.is_dataclass)]
    classes = {one.__name__ for one in own if one.__module__ == transforms.__name__ and one.__name__[0] != "_"}
    documented = {
        name for cell, _ in rows(section("Transforms"), "transform") for name in re.findall(r"`(\w+)\(", cell)
    }
    assert documented == classes
    assert documented <= set(toolcrib.__all__)
    predicates = {name for name in toolcrib.__all__ if name.islower() and name not in ("run_agent", "server_config")}
    assert predicates - {"__version__"} <= set(words(section("Filters")))


@pytest.mark.req("ENG-2", "ENG-3")
def test_the_members_of_providers_cribs_tools_and_results_are_documented():
    def named(title, head, pattern):
        return [name for cell, _ in rows(section(title), head) for name in re.findall(pattern, cell)]

    page = section("Tools for an agent that you have")
    of_all = {re.findall(r"`(?:await )?(\w+)", cell)[0] for cell, _ in rows(page, "of all three")}
    assert of_all == {name for name in vars(ToolProvider) if not name.startswith("_")} - {"bus"}
    assert set(words(re.search(r"`state` \((.*?)\)", page)[1])) == set(ServerState)
    fields = {field.name for field in dataclasses.fields(ServerStatus)}
    assert {"last_error", "protocol_version", "tools", "pid", "server_info"} <= fields
    assert {kind.__name__ for kind in PUBLIC_EVENTS} <= set(words(page))
    of_crib = {"Crib": Crib, "servers": ServerRegistry, "projects": Projects}
    own = named("A crib of your configuration", "of a `Crib`", r"`(?:await )?([\w.]+)")
    assert [name for name in own if not hasattr(of_crib[name.partition(".")[0]], name.partition(".")[2])] == []
    arguments = set(named("The tools of a running daemon", "argument", r"`(\w+)`"))
    assert arguments == set(inspect.signature(Connection).parameters) - {"paths", "environ"}
    of_tools = named("Choosing and changing tools", "of `Tools`", r"`(?:await )?(?:tools\.)?(\w+)[(`]")
    formats = {"to_openai", "to_anthropic", "to_google"}
    assert {"names", "of", "call", "transformed", "adaptations"} | formats <= set(of_tools)
    assert [name for name in of_tools if not hasattr(Tools, name) and name != "len"] == []
    of_result = {re.match(r"`(\w+)", cell)[1] for cell, _ in rows(section("Results"), "of a `Result`")}
    public = {name for name in dir(Result) if not name.startswith("_")}
    assert of_result == public | {field.name for field in dataclasses.fields(Result)}
    assert of_kind(content, content.Block) <= set(words(section("Results")))


def test_every_documented_error_exists():
    documented = [name for cell, _ in rows(section("Errors"), "error") for name in words(cell)]
    assert all(issubclass(getattr(errors, name), errors.ToolcribError) for name in documented)
    assert len(set(documented)) == 13


def test_every_python_example_compiles():
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        body = block if "asyncio.run(" in block else f"async def work():\n{textwrap.indent(block, '    ')}"
        compile(body, "docs/library.md", "exec")
