"""A command is declared once, for the socket and for MCP."""

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
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, CommandRegistry, Parameters, Via
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
TRUSTED = Principal.fixed("t", Permission(BUILTIN["trusted"]))


class NoHost:
    def __init__(self) -> None:
        self.leases = ActiveLeases()

    def describe(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        raise AssertionError("unexpected stop")


async def unexpected(event: dict[str, Any]) -> None:
    raise AssertionError(f"unexpected event: {event}")


def asked(caller: Principal, project: Any = None) -> RequestContext[Project]:
    return RequestContext(caller, cast(Project, project))


def context(caller: Principal = OWNER) -> CommandContext:
    """For commands that use nothing but their parameters."""
    return CommandContext(crib=cast(Crib, None), request=asked(caller), host=NoHost(), via=Via.SOCKET, emit=unexpected)


class Paint(Parameters):
    colour: str
    coats: int = Field(default=1, ge=1)


@pytest.fixture
def small():
    made = CommandRegistry()

    @made.command("wall:paint", CommandEffect.CHANGES, Availability.EVERYWHERE)
    async def paint(context: CommandContext, params: Paint):
        """Paint the wall.

        Only the first line is the summary.
        """
        return {"colour": params.colour, "coats": params.coats, "by": context.principal.name}

    @made.command("wall:look", CommandEffect.READS, Availability.EVERYWHERE)
    async def look(context: CommandContext, _: Parameters):
        """Look at the wall."""
        return {"seen": True}

    @made.command("wall:watch", CommandEffect.READS, Availability.SOCKET)
    async def watch(context: CommandContext, _: Parameters):
        """Watch the paint dry."""
        return {}

    @made.command("wall:break", CommandEffect.READS, Availability.EVERYWHERE)
    async def fail(context: CommandContext, _: Parameters):
        """Fail."""
        raise UsageError("It is a wall.", remedy="Leave it.")

    return made


def wired(made: CommandRegistry) -> CommandServer:
    server = CommandServer(made, NoHost())
    server.crib = cast(Crib, object())
    return server


async def test_a_command_gets_its_parameters_checked_and_typed(small):
    result = await small.run("wall:paint", {"colour": "red"}, context())
    assert result == {"colour": "red", "coats": 1, "by": "owner"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "colour: Field required"),
        ({"colour": 5}, "colour: Input should be a valid string"),
        ({"colour": "red", "coats": 0}, "coats: "),
        ({"colour": "red", "color": "red"}, "color: Extra inputs"),
    ],
)
async def test_invalid_parameters_are_reported_with_the_valid_ones(small, params, message):
    with pytest.raises(UsageError) as caught:
        await small.run("wall:paint", params, context())
    assert caught.value.message.startswith("wall:paint: ")
    assert caught.value.message.endswith(".")
    assert message in caught.value.message
    assert caught.value.remedy == "`wall:paint` takes: colour, coats?."
    assert caught.value.exit_code == 2


async def test_unknown_commands_and_changes_by_others_than_the_owner_are_refused(small):
    with pytest.raises(UnknownCommand) as caught:
        await small.run("wall:pint", {}, context())
    assert "wall:paint" in caught.value.remedy
    with pytest.raises(UnknownCommand, match="no command 'zzz'"):
        small.find("zzz")
    for params in ({"colour": "red"}, {"nonsense": 1}):
        with pytest.raises(Denied, match="stranger may not use wall:paint"):
            await small.run("wall:paint", params, context(STRANGER))
    assert await small.run("wall:look", {}, context(STRANGER)) == {"seen": True}


def test_every_command_has_a_unique_name_a_summary_and_strict_parameters():
    names = [command.name for command in registry.all()]
    assert len({name.replace(":", "_") for name in names}) == len(names)
    for command in registry.all():
        assert re.fullmatch(r"[a-z]+:[a-z]+", command.name)
        assert re.fullmatch(r"[A-Z].*\.", command.summary), command.name
        assert issubclass(command.parameters, Parameters)
        assert command.parameters.model_config["extra"] == "forbid"


def test_only_commands_for_everywhere_are_offered_over_mcp(small):
    offered = [json.loads(tool)["name"] for tool in CommandServer(small, NoHost()).tools]
    assert offered == ["wall_paint", "wall_look", "wall_break"]
    names = offered_commands().by_public(NameStyle.SERVER)
    assert names["crib_system_health"].display == "crib:system_health"
    assert {"crib_system_health", "crib_system_stats", "crib_server_list", "crib_server_add"} <= names.keys()
    assert not names.keys() & {
        f"crib_{name}" for name in ("system_stop", "tool_call", "log_tail", "trust_add", "config_show")
    }


def test_a_definition_has_the_parameters_and_the_annotations(small):
    paint, look, _ = (json.loads(tool) for tool in CommandServer(small, NoHost()).tools)
    properties = {"colour": {"type": "string"}, "coats": {"default": 1, "minimum": 1, "type": "integer"}}
    hints = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False, "toolcrib/owner": True}
    assert paint == {
        "name": "wall_paint",
        "description": "Paint the wall.",
        "inputSchema": {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            "required": ["colour"],
        },
        "annotations": hints,
    }
    assert look["annotations"]["readOnlyHint"] is True


class FakeProject:
    """A project with only the commands."""

    def __init__(self, server: CommandServer) -> None:
        self._server = server
        self.catalog = Catalog.build({"crib": server.tools}, version=1)

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        return self.catalog.find(name, shown=shown, style=style)

    def target(self, server: str, request: RequestContext[Any]) -> Any:
        assert server == "crib"
        return _BuiltinTarget(self._server, request)


async def call(project: FakeProject, name: str, arguments: str | None = "{}", caller: Principal = OWNER) -> Any:
    params = {} if arguments is None else {"arguments": msgspec.Raw(arguments.encode())}
    outcome = await Door(Bus()).call(asked(caller, project), CallRequest(tool=name, params=params))
    return json.loads(outcome.answer.result or b"")


async def test_a_command_can_be_called_as_a_tool(small):
    project = FakeProject(wired(small))
    result = await call(project, "crib_wall_paint", '{"colour":"red"}')
    assert result["structuredContent"] == {"colour": "red", "coats": 1, "by": "owner"}
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["isError"] is False
    for arguments in (None, "null", "{}"):
        assert (await call(project, "crib_wall_look", arguments))["structuredContent"] == {"seen": True}
    result = await call(project, "crib_wall_break")
    assert (result["isError"], result["content"][0]["text"]) == (True, "It is a wall. Leave it.")
    with pytest.raises(RuntimeError, match="before `refresh`"):
        await CommandServer(small, NoHost()).call(asked(OWNER), ToolCall(name="wall_look"))


async def test_a_caller_without_permission_neither_sees_nor_uses_a_command(small):
    server = wired(small)
    project = FakeProject(server)
    assert json.loads(ListingCache(NameStyle.SERVER).tools(project.catalog, STRANGER.permission())) == []
    for name in ("crib_wall_paint", "crib_wall_look"):
        with pytest.raises(Denied):
            await call(project, name, '{"colour":"red"}', STRANGER)
    # The command checks its caller too, should the policy ever let one through.
    past_the_door = ToolCall(name="wall_paint", params={"arguments": msgspec.Raw(b'{"colour":"red"}')})
    result = json.loads((await server.call(asked(STRANGER), past_the_door)).result or b"")
    assert result["isError"] is True
    assert "may not use" in result["content"][0]["text"]


def test_the_effect_of_a_command_decides_who_may_use_it():
    (found,) = [command for command in registry.all() if command.name == "raw:command"]
    may = {effect: replace(found, effect=effect) for effect in CommandEffect}
    assert all(command.open_to(OWNER) for command in may.values())
    open_effects = {CommandEffect.READS, CommandEffect.CARRIES, CommandEffect.WORKS}
    assert {effect for effect, command in may.items() if command.open_to(STRANGER)} == open_effects


def offered_commands() -> Catalog:
    tools = CommandServer(registry, NoHost()).tools
    return Catalog.build({"crib": tools}, version=1, trusted=frozenset({"crib"}))


def shown_to(caller: Principal) -> set[str]:
    listing = ListingCache(NameStyle.SERVER).tools(offered_commands(), caller.permission())
    return {tool["name"] for tool in json.loads(listing)}


def test_a_client_without_an_agent_uses_all_tools_but_only_commands_that_change_nothing():
    jobs = {"submit_job", "list_jobs", "get_job_result", "cancel_job"}
    assert shown_to(CLIENT) == {"crib_system_health", "crib_system_stats", "crib_server_list", *jobs}
    files = Catalog.build({"files": (b'{"name":"delete","annotations":{"readOnlyHint":false}}',)}, version=1)
    decisions = {"crib_server_add": Verdict.DENY, "crib_system_health": Verdict.ALLOW, "files:delete": Verdict.ALLOW}
    for name, verdict in decisions.items():
        catalog = files if name == "files:delete" else offered_commands()
        assert CLIENT.permission().decide(catalog.find(name), None).verdict is verdict


@pytest.mark.parametrize(("caller", "may"), [(OWNER, True), (TRUSTED, True), (CLIENT, False), (STRANGER, False)])
def test_raw_commands_are_shown_only_to_trusted_agents_and_the_owner(caller, may):
    assert ("crib_raw_command" in shown_to(caller)) is may


def at_the_door(caller: Principal, made: CommandRegistry = registry) -> CommandContext:
    """A context whose commands can be called as tools."""
    crib = SimpleNamespace(services=SimpleNamespace(door=Door(Bus())))
    server = CommandServer(made, NoHost())
    server.crib = cast(Crib, crib)
    return replace(context(), crib=cast(Crib, crib), request=asked(caller, FakeProject(server)), via=Via.MCP)


@pytest.mark.parametrize("command", ["agent:add", "audit:query", "permission:allow", "server:add", "session:end"])
async def test_a_raw_command_reaches_only_commands_that_its_caller_may_use(command):
    with pytest.raises(Denied, match=f"t may not use crib:{command.replace(':', '_')}"):
        await registry.run("raw:command", {"command": command}, at_the_door(TRUSTED))


async def test_a_raw_command_runs_neither_itself_nor_a_command_of_the_command_line():
    for command, message in {
        "system:stop": "system:stop is only for the command line",
        "raw:command": "does not run itself",
    }.items():
        with pytest.raises(UsageError, match=message):
            await registry.run("raw:command", {"command": command}, at_the_door(OWNER))


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
def test_a_command_without_a_daemon_starts_only_the_servers_it_needs(name, params, servers):
    assert _needed(registry.find(name), params) == servers


def test_data_that_a_daemon_caches_is_changed_only_while_none_can_start():
    cached = {
        "agent": "add listing remove rotate",
        "permission": "allow deny",
        "profile": "put remove",
        "session": "end",
    }
    cached |= {"server": "trust untrust", "trust": "add remove", "pins": "accept reject"}
    cached |= {"favorites": "add remove refresh"}
    expected = {f"{namespace}:{action}" for namespace, actions in cached.items() for action in actions.split()}
    assert {command.name for command in registry.all() if excludes_daemon(command.name)} == expected
