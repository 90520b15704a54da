"""A daemon action is declared once, and serves socket and MCP by the same words."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pydantic import Field

from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.commands.all import registry
from toolcrib.commands.builtin import CommandServer
from toolcrib.commands.local import _needed, excludes_daemon
from toolcrib.commands.registry import (
    Availability,
    Command,
    CommandContext,
    CommandEffect,
    CommandRegistry,
    Parameters,
    Via,
)
from toolcrib.config.model import NameStyle
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project, _BuiltinTarget
from toolcrib.daemon_client.lifetime import ActiveLeases
from toolcrib.errors import Denied, UnknownCommand, UsageError
from toolcrib.events import Bus
from toolcrib.identity.principal import CLIENT, OWNER, Principal, RequestContext
from toolcrib.listing import ListingCache
from toolcrib.policy import BUILTIN, Permission, Verdict
from toolcrib.servers.model import ToolCall

pytestmark = pytest.mark.req("KSI-6")

STRANGER = Principal.fixed("stranger", Permission(BUILTIN["nothing"]))


class NoHost:
    def __init__(self) -> None:
        self.leases = ActiveLeases()

    def describe(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        raise AssertionError("nobody asked to stop")


async def nowhere(event: dict[str, Any]) -> None:
    raise AssertionError(f"nobody streams: {event}")


def asked(caller: Principal, project: Any = None) -> RequestContext[Project]:
    return RequestContext(caller, cast(Project, project))


def context(caller: Principal = OWNER) -> CommandContext:
    """For commands that use nothing but their parameters."""
    return CommandContext(crib=cast(Crib, None), request=asked(caller), host=NoHost(), via=Via.SOCKET, emit=nowhere)


class Paint(Parameters):
    colour: str
    coats: int = Field(default=1, ge=1)


@pytest.fixture
def small() -> CommandRegistry:
    made = CommandRegistry()

    @made.command("wall:paint", CommandEffect.CHANGES, Availability.EVERYWHERE)
    async def paint(context: CommandContext, params: Paint) -> dict[str, Any]:
        """Paint the wall.

        More than the first line is nobody's business.
        """
        return {"colour": params.colour, "coats": params.coats, "by": context.principal.name}

    @made.command("wall:look", CommandEffect.READS, Availability.EVERYWHERE)
    async def look(context: CommandContext, _: Parameters) -> dict[str, Any]:
        """Look at the wall."""
        return {"seen": True}

    @made.command("wall:watch", CommandEffect.READS, Availability.SOCKET)
    async def watch(context: CommandContext, _: Parameters) -> dict[str, Any]:
        """Watch the paint dry."""
        return {}

    return made


def wired(made: CommandRegistry) -> CommandServer:
    server = CommandServer(made, NoHost())
    server.crib = cast(Crib, object())
    return server


async def test_a_command_gets_its_parameters_checked_and_typed(small: CommandRegistry) -> None:
    told = await small.run("wall:paint", {"colour": "red"}, context())
    assert told == {"colour": "red", "coats": 1, "by": "owner"}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({}, "colour: Field required"),
        ({"colour": 5}, "colour: Input should be a valid string"),
        ({"colour": "red", "coats": 0}, "coats: "),
        ({"colour": "red", "color": "red"}, "color: Extra inputs"),
    ],
)
async def test_wrong_parameters_are_told_with_what_there_is(small: CommandRegistry, params: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        await small.run("wall:paint", params, context())
    assert caught.value.message.startswith("wall:paint: ")
    assert says in caught.value.message
    assert caught.value.remedy == "`wall:paint` takes: colour, coats?."
    assert caught.value.exit_code == 2


async def test_an_unknown_command_is_told_with_the_nearest(small: CommandRegistry) -> None:
    with pytest.raises(UnknownCommand) as caught:
        await small.run("wall:pint", {}, context())
    assert "wall:paint" in caught.value.remedy
    with pytest.raises(UnknownCommand, match="no command 'zzz'"):
        small.find("zzz")


async def test_what_changes_the_daemon_is_the_owners_alone(small: CommandRegistry) -> None:
    with pytest.raises(Denied, match="stranger may not use wall:paint"):
        await small.run("wall:paint", {"colour": "red"}, context(STRANGER))
    assert await small.run("wall:look", {}, context(STRANGER)) == {"seen": True}


async def test_who_may_is_asked_before_the_parameters_are_looked_at(small: CommandRegistry) -> None:
    with pytest.raises(Denied):
        await small.run("wall:paint", {"nonsense": 1}, context(STRANGER))


def test_system_health_is_the_tool_crib_system_health() -> None:
    catalog = Catalog.build({"crib": CommandServer(registry, NoHost()).tools}, version=1)
    names = catalog.by_public(NameStyle.SERVER)
    assert names["crib_system_health"].display == "crib:system_health"
    assert {"crib_system_health", "crib_system_stats", "crib_server_list", "crib_server_add"} <= names.keys()


def test_every_command_is_named_described_and_typed() -> None:
    for command in registry.all():
        assert re.fullmatch(r"[a-z]+:[a-z]+", command.name)
        assert re.fullmatch(r"[A-Z].*\.", command.summary), command.name
        assert issubclass(command.parameters, Parameters)
        assert command.parameters.model_config["extra"] == "forbid"


def test_each_command_is_declared_once() -> None:
    names = [command.name for command in registry.all()]
    assert len(names) == len(set(names))
    assert len({name.replace(":", "_") for name in names}) == len(names)


def test_only_commands_for_everywhere_are_offered_over_mcp(small: CommandRegistry) -> None:
    offered = [json.loads(tool)["name"] for tool in CommandServer(small, NoHost()).tools]
    assert offered == ["wall_paint", "wall_look"]
    over_mcp = {json.loads(tool)["name"] for tool in CommandServer(registry, NoHost()).tools}
    assert not over_mcp & {"system_stop", "tool_call", "log_tail", "trust_add", "config_show"}


def test_a_definition_says_what_the_command_takes_and_whether_it_changes_anything(small: CommandRegistry) -> None:
    paint, look = (json.loads(tool) for tool in CommandServer(small, NoHost()).tools)
    assert paint == {
        "name": "wall_paint",
        "description": "Paint the wall.",
        "inputSchema": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"colour": {"type": "string"}, "coats": {"default": 1, "minimum": 1, "type": "integer"}},
            "required": ["colour"],
        },
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "openWorldHint": False,
            "toolcrib/owner": True,
        },
    }
    assert look["annotations"]["readOnlyHint"] is True


class Shelf:
    """The commands alone, as a project would hold them."""

    def __init__(self, server: CommandServer) -> None:
        self._server = server
        self.catalog = Catalog.build({"crib": server.tools}, version=1)

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        return self.catalog.find(name, shown=shown, style=style)

    def target(self, server: str, request: RequestContext[Any]) -> Any:
        assert server == "crib"
        return _BuiltinTarget(self._server, request)


def called(name: str, arguments: str | None = "{}") -> CallRequest:
    params = {} if arguments is None else {"arguments": msgspec.Raw(arguments.encode())}
    return CallRequest(tool=name, params=params)


async def test_a_command_called_as_a_tool_answers_as_one(small: CommandRegistry) -> None:
    shelf = Shelf(wired(small))
    outcome = await Door(Bus()).call(asked(OWNER, shelf), called("crib_wall_paint", '{"colour":"red"}'))
    told = json.loads(outcome.answer.result or b"")
    assert told["structuredContent"] == {"colour": "red", "coats": 1, "by": "owner"}
    assert json.loads(told["content"][0]["text"]) == told["structuredContent"]
    assert told["isError"] is False


@pytest.mark.parametrize("arguments", [None, "null", "{}"])
async def test_a_command_without_parameters_may_be_called_with_none(
    small: CommandRegistry, arguments: str | None
) -> None:
    outcome = await Door(Bus()).call(asked(OWNER, Shelf(wired(small))), called("crib_wall_look", arguments))
    assert json.loads(outcome.answer.result or b"")["structuredContent"] == {"seen": True}


async def test_a_stranger_is_neither_shown_nor_given_a_command(small: CommandRegistry) -> None:
    shelf = Shelf(wired(small))
    assert json.loads(ListingCache(NameStyle.SERVER).tools(shelf.catalog, STRANGER.permission())) == []
    for name in ("crib_wall_paint", "crib_wall_look"):
        with pytest.raises(Denied):
            await Door(Bus()).call(asked(STRANGER, shelf), called(name, '{"colour":"red"}'))


async def test_even_past_the_door_a_stranger_changes_nothing(small: CommandRegistry) -> None:
    """Two locks: should the policy ever let a caller through, the command itself still asks who it is."""
    server = wired(small)
    call = ToolCall(name="wall_paint", params={"arguments": msgspec.Raw(b'{"colour":"red"}')})
    answer = await server.call(asked(STRANGER), call)
    told = json.loads(answer.result or b"")
    assert told["isError"] is True
    assert "may not use" in told["content"][0]["text"]


async def test_an_error_of_a_command_is_told_to_the_model() -> None:
    made = CommandRegistry()

    @made.command("wall:break", CommandEffect.READS, Availability.EVERYWHERE)
    async def fail(context: CommandContext, _: Parameters) -> dict[str, Any]:
        """Fail."""
        raise UsageError("It is a wall.", remedy="Leave it.")

    outcome = await Door(Bus()).call(asked(OWNER, Shelf(wired(made))), called("crib_wall_break"))
    told = json.loads(outcome.answer.result or b"")
    assert (told["isError"], told["content"][0]["text"]) == (True, "It is a wall. Leave it.")


async def test_commands_that_are_not_wired_yet_say_so(small: CommandRegistry) -> None:
    server = CommandServer(small, NoHost())
    with pytest.raises(RuntimeError, match="before `refresh`"):
        await server.call(asked(OWNER), ToolCall(name="wall_look"))


def test_a_command_knows_to_whom_it_is_open() -> None:
    async def run(context: CommandContext, params: Parameters) -> dict[str, Any]:
        """Do nothing."""
        await asyncio.sleep(0)
        return {}

    def made(effect: CommandEffect) -> Command:
        registry = CommandRegistry()
        registry.command("a:b", effect, Availability.EVERYWHERE)(run)
        return registry.find("a:b")

    assert made(CommandEffect.CHANGES).open_to(OWNER)
    assert not made(CommandEffect.CHANGES).open_to(STRANGER)
    assert not made(CommandEffect.REVEALS).open_to(STRANGER)
    assert made(CommandEffect.READS).open_to(STRANGER)
    assert made(CommandEffect.CARRIES).open_to(STRANGER), "what it carries is judged by itself"


@pytest.mark.req("KSI-6")
def test_a_client_at_the_bridge_sees_and_uses_only_commands_that_change_nothing() -> None:
    catalog = Catalog.build({"crib": CommandServer(registry, NoHost()).tools}, version=1)
    shown = {tool["name"] for tool in json.loads(ListingCache(NameStyle.SERVER).tools(catalog, CLIENT.permission()))}
    jobs = {"submit_job", "list_jobs", "get_job_result", "cancel_job"}
    assert shown == {"crib_system_health", "crib_system_stats", "crib_server_list", *jobs}
    assert CLIENT.permission().decide(catalog.find("crib_server_add"), None).verdict is Verdict.DENY
    assert CLIENT.permission().decide(catalog.find("crib_system_health"), None).verdict is Verdict.ALLOW


@pytest.mark.req("KSI-6")
def test_another_server_s_tools_are_the_client_s_whatever_they_claim() -> None:
    definition = b'{"name":"delete","annotations":{"readOnlyHint":false}}'
    catalog = Catalog.build({"files": (definition,)}, version=1)
    assert CLIENT.permission().decide(catalog.find("files:delete"), None).verdict is Verdict.ALLOW


TRUSTED = Principal.fixed("t", Permission(BUILTIN["trusted"]))


@pytest.mark.parametrize(("caller", "may"), [(OWNER, True), (TRUSTED, True), (CLIENT, False), (STRANGER, False)])
def test_raw_commands_are_shown_to_the_trusted_and_the_owner_alone(caller: Principal, may: bool) -> None:
    catalog = Catalog.build({"crib": CommandServer(registry, NoHost()).tools}, version=1, trusted=frozenset({"crib"}))
    shown = {tool["name"] for tool in json.loads(ListingCache(NameStyle.SERVER).tools(catalog, caller.permission()))}
    assert ("crib_raw_command" in shown) is may


def at_the_door(caller: Principal, made: CommandRegistry = registry) -> CommandContext:
    """A context whose commands can be called as tools."""
    crib = SimpleNamespace(services=SimpleNamespace(door=Door(Bus())))
    server = CommandServer(made, NoHost())
    server.crib = cast(Crib, crib)
    return replace(context(), crib=cast(Crib, crib), request=asked(caller, Shelf(server)), via=Via.MCP)


@pytest.mark.parametrize("command", ["agent:add", "audit:query", "permission:allow", "server:add", "session:end"])
async def test_a_raw_command_reaches_only_what_its_caller_may_use(command: str) -> None:
    with pytest.raises(Denied, match=f"t may not use crib:{command.replace(':', '_')}"):
        await registry.run("raw:command", {"command": command}, at_the_door(TRUSTED))


async def test_a_raw_command_reaches_no_command_of_the_command_line() -> None:
    with pytest.raises(UsageError, match="system:stop is only for the command line"):
        await registry.run("raw:command", {"command": "system:stop"}, at_the_door(OWNER))


async def test_a_raw_command_does_not_run_itself() -> None:
    with pytest.raises(UsageError, match="does not run itself"):
        await registry.run("raw:command", {"command": "raw:command"}, at_the_door(OWNER))


@pytest.mark.parametrize(
    ("name", "params", "servers"),
    [
        ("agent:list", {}, frozenset()),
        ("server:list", {}, None),
        ("server:add", {"name": "a", "entry": {}}, {"a"}),
        ("tool:list", {}, None),
        ("tool:list", {"server": "a"}, {"a"}),
        ("tool:call", {"tool": "a:b"}, {"a"}),
        ("tool:call", {"tool": "a_b"}, None),
        ("tool:call", {"tool": "crib:server_list"}, None),
        ("permission:why", {"agent": "x", "tool": "a:b"}, {"a"}),
    ],
)
def test_a_command_without_a_daemon_starts_only_the_servers_it_needs(
    name: str, params: dict[str, Any], servers: set[str] | None
) -> None:
    assert _needed(registry.find(name), params) == servers


def test_what_a_daemon_holds_in_memory_is_changed_only_while_none_can_start() -> None:
    assert {command.name for command in registry.all() if excludes_daemon(command.name)} == {
        "agent:add",
        "agent:remove",
        "agent:rotate",
        "permission:allow",
        "permission:deny",
        "profile:put",
        "profile:remove",
        "server:trust",
        "server:untrust",
        "session:end",
        "trust:add",
        "trust:remove",
    }
