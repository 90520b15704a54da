"""Rules, profiles and reasons as the owner has them: the commands, on a real registry and catalog."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from parts import fleet
from toolcrib.commands.all import registry
from toolcrib.commands.builtin import CommandServer
from toolcrib.commands.registry import Availability, CommandContext, CommandEffect, CommandHost, Via
from toolcrib.config.layers import load, store_location
from toolcrib.config.model import Flags
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.errors import ConfigError, NotFound, StoreError, UnknownServer, UnknownTool, UsageError
from toolcrib.events import AuditedChange
from toolcrib.identity.agent import Agent, MintedAgent
from toolcrib.identity.principal import OWNER, Principal, RequestContext
from toolcrib.policy import Verdict
from toolcrib.store import servers as tools
from toolcrib.store.database import Store
from toolcrib.store.servers import all_trusted_servers as trusted_servers

pytestmark = pytest.mark.req("KSI-5")


def definition(name: str, **annotations: Any) -> bytes:
    return json.dumps({"name": name, "annotations": annotations}).encode()


FILES = (definition("read", readOnlyHint=True), definition("write"), definition("list", readOnlyHint=True))


async def nowhere(event: dict[str, Any]) -> None:
    raise AssertionError(f"nobody streams: {event}")


class Desk:
    """The commands at a crib whose one server is away, but was seen before."""

    def __init__(self, crib: Crib) -> None:
        self.crib = crib

    async def run(
        self, name: str, /, *, caller: Principal = OWNER, via: Via = Via.SOCKET, **params: Any
    ) -> dict[str, Any]:
        context = CommandContext(
            crib=self.crib,
            request=RequestContext(caller, self.crib.projects.home),
            host=cast(CommandHost, None),
            via=via,
            emit=nowhere,
        )
        found = await registry.run(name, params, context)
        assert json.loads(json.dumps(found)) == found, "what a command says is plain JSON"
        return found

    async def verdict(self, agent: str, tool: str, arguments: dict[str, Any] | None = None) -> str:
        return str((await self.run("permission:why", agent=agent, tool=tool, arguments=arguments))["verdict"])


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    paths = Paths.of_user(environ)
    paths.user_config.parent.mkdir(parents=True, exist_ok=True)
    # Nobody listens at this port.
    paths.user_config.with_suffix(".json").write_text(
        json.dumps({"mcpServers": {"files": {"url": "http://127.0.0.1:9/mcp"}}})
    )
    identity = load(paths=paths, root=root, environ=environ).servers["files"].identity
    store = await Store.open(store_location(paths, environ, Flags()))
    await store.write(tools.remember_tools, identity, str(root), FILES)
    await store.close()
    commands = CommandServer(registry, cast(CommandHost, None))
    async with Crib(paths=paths, root=root, environ=environ, builtins={"crib": commands}) as crib:
        await crib.services.agents.add("reviewer", profile="read-only", workdir=root)
        yield Desk(crib)


async def test_an_allow_holds_at_once_and_says_what_it_covers(desk: Desk) -> None:
    assert await desk.verdict("reviewer", "files:write") == "deny"
    assert await desk.run("permission:allow", agent="reviewer", tools="files:w*") == {
        "agent": "reviewer",
        "rule": "agent reviewer: allow files:w*",
        "removed": False,
        "changed": True,
        "covers": 1,
        "unknown_servers": [],
        "still_denied": [],
        "still_denied_in_all": 0,
        "never_allowed": [],
    }
    assert await desk.verdict("reviewer", "files:write") == "allow"
    again = await desk.run("permission:allow", agent="reviewer", tools="files:w*")
    assert again["changed"] is False


async def test_a_rule_is_taken_away_by_the_same_words(desk: Desk) -> None:
    words: dict[str, Any] = {"agent": "reviewer", "tools": "files:*", "when": {"path": {"under": "src"}}}
    await desk.run("permission:allow", **words)
    with pytest.raises(NotFound) as caught:
        await desk.run("permission:allow", agent="reviewer", tools="files:*", remove=True)
    assert caught.value.remedy == "Its rules: agent reviewer: allow files:* when path under src."
    assert await desk.run("permission:allow", **words, remove=True) == {
        "agent": "reviewer",
        "rule": "agent reviewer: allow files:* when path under src",
        "removed": True,
        "changed": True,
    }
    assert await desk.verdict("reviewer", "files:write", {"path": "src/a"}) == "deny"


async def test_an_allow_that_a_deny_overrules_says_so(desk: Desk) -> None:
    await desk.run("permission:deny", agent="reviewer", tools="*:write")
    found = await desk.run("permission:allow", agent="reviewer", tools="files:*")
    assert (found["covers"], found["still_denied_in_all"]) == (3, 1)
    assert found["still_denied"] == [{"tool": "files:write", "rule": "agent reviewer: deny *:write"}]


async def test_a_rule_for_no_known_tool_says_so(desk: Desk) -> None:
    found = await desk.run("permission:deny", agent="reviewer", tools="flies:*")
    assert (found["covers"], found["unknown_servers"]) == (0, [])


async def test_a_rule_says_which_servers_it_may_also_speak_of(desk: Desk) -> None:
    file = desk.crib.environment.paths.user_config.with_suffix(".json")
    servers = {name: {"url": f"http://127.0.0.1:9/{name}"} for name in ("far", "off")} | {
        "files": {"url": "http://127.0.0.1:9/mcp"},
        "idle": {"url": "http://127.0.0.1:9/idle", "enabled": False},
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    await desk.crib.projects.reload()
    unknown = {}
    for named in ("files:zzz", "f*:*", "*", "FAR:x"):
        found = await desk.run("permission:deny", agent="reviewer", tools=named)
        unknown[named] = (min(found["covers"], 3), found["unknown_servers"])
    assert unknown == {
        "files:zzz": (0, []),
        "f*:*": (3, ["far"]),
        "*": (3, ["far", "off"]),
        "FAR:x": (0, ["far"]),
    }
    # In an allow, capitals count.
    assert (await desk.run("permission:allow", agent="reviewer", tools="FAR:x"))["unknown_servers"] == []


async def test_what_no_rule_can_allow_is_counted_apart_from_what_another_rule_denies(desk: Desk) -> None:
    await desk.run("permission:deny", agent="reviewer", tools="crib:s*_list")
    found = await desk.run("permission:allow", agent="reviewer", tools="crib:*")
    never = {row["rule"].removeprefix("built-in: "): row["tools"] for row in found["never_allowed"]}
    assert set(never) == {
        "what manages Toolcrib is for the owner alone",
        "raw commands are for the profiles owner and trusted alone",
    }
    assert never["raw commands are for the profiles owner and trusted alone"] == 1
    assert {row["rule"] for row in found["still_denied"]} == {"agent reviewer: deny crib:s*_list"}
    permission = desk.crib.services.agents.find("reviewer").permission
    denied = [
        tool
        for tool in desk.crib.projects.home.catalog.of_server("crib")
        if permission.decide(tool, None).verdict == "deny"
    ]
    assert found["still_denied_in_all"] + sum(never.values()) == len(denied)
    for row in found["still_denied"]:
        assert await remedies(desk, "reviewer", row["tool"]) == ["`toolcrib deny reviewer 'crib:s*_list' --remove`"]


async def test_an_ask_is_an_allow_with_a_question(desk: Desk) -> None:
    found = await desk.run("permission:allow", agent="reviewer", tools="files:write", ask=True)
    assert found["rule"] == "agent reviewer: ask files:write"
    assert await desk.verdict("reviewer", "files:write") == "ask"


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"agent": "nobody", "tools": "files:*"}, NotFound),
        ({"agent": "reviewer", "tools": "files"}, UsageError),
        ({"agent": "reviewer", "tools": "files:*", "when": {"path": {"udner": "x"}}}, UsageError),
        ({"agent": "reviewer", "tools": "files:*", "annotations": {"readonly": True}}, UsageError),
        ({"agent": "reviewer", "tools": "files:*", "effect": "allow"}, UsageError),
    ],
)
@pytest.mark.parametrize("command", ["permission:allow", "permission:deny"])
async def test_a_rule_that_cannot_be_is_refused(desk: Desk, command: str, params: Any, error: type[Exception]) -> None:
    version = desk.crib.services.agents.version
    with pytest.raises(error):
        await desk.run(command, **params)
    assert desk.crib.services.agents.version == version


async def test_why_names_the_rule_and_all_that_speak_of_the_tool(desk: Desk) -> None:
    await desk.run("permission:allow", agent="reviewer", tools="files:*")
    await desk.run("permission:deny", agent="reviewer", tools="files:write", when={"path": {"under": "src"}})
    found = await desk.run("permission:why", agent="reviewer", tool="files_write", arguments={"path": "src/a"})
    assert found == {
        "agent": "reviewer",
        "profile": "read-only",
        "tool": "files:write",
        "known": True,
        "unknown": "",
        "verdict": "deny",
        "rule": "agent reviewer: deny files:write when path under src",
        "arguments": {"path": "src/a"},
        "rules": [
            {
                "agent": "reviewer",
                "rule": "agent reviewer: deny files:write when path under src",
                "applies": True,
            },
            {"agent": "reviewer", "rule": "agent reviewer: allow files:*", "applies": True},
        ],
        "unjudged": [],
        "folder": None,
        "trusted": False,
        "new_or_changed": False,
        "claimed": {},
        "counts_as": {"read_only": False, "destructive": True, "idempotent": False, "open_world": True},
        "remedies": ["`toolcrib deny reviewer files:write --when 'path under src' --remove`"],
    }


async def remedies(desk: Desk, agent: str, tool: str, arguments: dict[str, Any] | None = None) -> list[str]:
    found = await desk.run("permission:why", agent=agent, tool=tool, arguments=arguments)
    return list(found["remedies"])


BELIEVE = "`toolcrib trust --server files`: its server's annotations would count."


async def test_why_says_what_would_allow_it(desk: Desk) -> None:
    assert await remedies(desk, "reviewer", "files:read") == [BELIEVE, "`toolcrib allow reviewer files:read`"]
    assert await remedies(desk, "reviewer", "files:write") == ["`toolcrib allow reviewer files:write`"]
    await desk.run("permission:deny", agent="reviewer", tools="files:write", when={"path": {"under": "secrets"}})
    await desk.run("permission:allow", agent="reviewer", tools="files:write", when={"path": {"under": "src"}})
    assert await remedies(desk, "reviewer", "files:write", {"path": f"{desk.crib.environment.root}/lib"}) == [
        "Arguments that match: agent reviewer: allow files:write when path under src.",
        "`toolcrib allow reviewer files:write`",
    ]
    assert await remedies(desk, "reviewer", "files:write", {"path": f"{desk.crib.environment.root}/src/a"}) == []


async def test_why_says_how_to_take_away_each_rule_that_stands_in_the_way(desk: Desk) -> None:
    await desk.run("profile:put", name="mine", rules=[{"allow": "*"}, {"deny": "files:*"}])
    await desk.crib.services.agents.add("worker", profile="mine")
    await desk.run("permission:deny", agent="worker", tools="*:write", annotations={"read_only": False})
    assert await remedies(desk, "worker", "files:write") == [
        "`toolcrib deny worker '*:write' --where 'not read_only' --remove`, then "
        "`toolcrib profile edit mine`: delete deny files:*."
    ]


async def test_why_tells_of_asks_and_floors_and_built_in_profiles(desk: Desk) -> None:
    await desk.crib.services.agents.add("builder", profile="developer")
    await desk.run("permission:allow", agent="builder", tools="files:*", ask=True)
    assert await remedies(desk, "builder", "files:write") == ["`toolcrib allow builder 'files:*' --ask --remove`"]
    assert await remedies(desk, "builder", "crib:server_add") == [
        "Nothing: only the owner may use it, on the command line or with the owner's token."
    ]
    assert await remedies(desk, "builder", "crib:raw_command") == [
        "A new agent with the profile `trusted`: an agent's profile can't be changed."
    ]
    await desk.run("profile:put", name="asking", rules=[{"ask": "*"}])
    await desk.crib.services.agents.add("asker", profile="asking")
    assert await remedies(desk, "asker", "files:write") == ["`toolcrib allow asker files:write`"]


async def test_why_names_all_that_has_to_be_done_where_one_step_is_not_enough(desk: Desk) -> None:
    await desk.run("permission:allow", agent="reviewer", tools="files:w*", ask=True)
    taken = "`toolcrib allow reviewer 'files:w*' --ask --remove`"
    assert await remedies(desk, "reviewer", "files:write") == [f"{taken}, then `toolcrib allow reviewer files:write`"]
    await desk.run("permission:allow", agent="reviewer", tools="files:write")
    assert await remedies(desk, "reviewer", "files:write") == [taken]
    await desk.run("permission:deny", agent="reviewer", tools="*:write")
    assert await remedies(desk, "reviewer", "files:write") == [
        f"`toolcrib deny reviewer '*:write' --remove`, then {taken}"
    ]


async def test_why_does_not_advise_trust_that_changes_nothing(desk: Desk) -> None:
    await desk.run("permission:deny", agent="reviewer", tools="files:read")
    assert await remedies(desk, "reviewer", "files:read") == [
        "`toolcrib deny reviewer files:read --remove`, then `toolcrib allow reviewer files:read`"
    ]


@pytest.mark.req("KSI-3")
async def test_why_names_what_has_to_be_done_for_a_child_and_for_those_above_it(desk: Desk) -> None:
    await desk.crib.services.agents.add("kid", profile="nothing", parent="reviewer")
    await desk.crib.services.agents.add("toddler", profile="trusted", parent="kid")
    assert await remedies(desk, "toddler", "files:write") == [
        "`toolcrib allow kid files:write`, then `toolcrib allow reviewer files:write`"
    ]
    await desk.run("permission:allow", agent="kid", tools="files:*", when={"path": {"under": "src"}})
    inside = str(desk.crib.projects.home.root / "src" / "a")
    found = await desk.run("permission:why", agent="toddler", tool="files:read", arguments={"path": inside})
    assert [row["rule"] for row in found["rules"]] == [
        "profile trusted: allow *:*",
        "its parent kid: agent kid: allow files:* when path under src",
    ]
    assert found["rule"] == "its parent kid: its parent reviewer: no rule allows it"
    assert found["remedies"] == [BELIEVE, "`toolcrib allow reviewer files:read`"]


@pytest.mark.parametrize("command", ["permission:allow", "permission:deny"])
async def test_a_relative_folder_is_refused_for_an_agent_that_has_none(desk: Desk, command: str) -> None:
    await desk.crib.services.agents.add("drifter", profile="nothing")
    words: dict[str, Any] = {"agent": "drifter", "tools": "files:*"}
    with pytest.raises(UsageError, match="drifter has no folder, so `path under docs` can't be checked") as caught:
        await desk.run(command, **words, when={"path": {"under": "docs"}})
    assert "absolute path" in caught.value.remedy
    assert "--workdir" in caught.value.remedy
    assert desk.crib.services.agents.rules("drifter") == ()
    assert (await desk.run(command, **words, when={"path": {"under": "/docs"}}))["changed"] is True
    assert (await desk.run(command, **(words | {"agent": "reviewer"}), when={"path": {"under": "docs"}}))["changed"]


async def test_a_profiles_rule_that_cannot_be_judged_is_told_where_it_matters(desk: Desk) -> None:
    rules = [
        {"allow": "files:*", "when": {"path": {"under": "docs"}}},
        {"deny": "files:*", "when": {"path": {"under": "docs/secret"}}},
        {"ask": "files:list", "when": {"path": {"under": "lib"}}},
        {"allow": "files:*", "when": {"path": {"under": "/srv"}}},
    ]
    await desk.run("profile:put", name="docs", rules=rules)
    said = [
        "drifter has no folder, so `path under docs` can't be checked: "
        "profile docs: allow files:* when path under docs never applies.",
        "drifter has no folder, so `path under docs/secret` can't be checked: "
        "profile docs: deny files:* when path under docs/secret may apply to every call with path.",
        "drifter has no folder, so `path under lib` can't be checked: "
        "profile docs: ask files:list when path under lib allows nothing.",
    ]
    assert (await desk.run("agent:add", name="drifter", profile="docs"))["unjudged"] == said
    assert (await desk.run("agent:show", name="drifter"))["unjudged"] == said
    found = await desk.run("permission:why", agent="drifter", tool="files:write")
    assert set(found["unjudged"]) == set(said[:2])
    settled = await desk.run("agent:add", name="settled", profile="docs", workdir=str(desk.crib.projects.home.root))
    assert settled["unjudged"] == []
    assert (await desk.run("permission:why", agent="settled", tool="files:write"))["unjudged"] == []


async def test_arguments_are_not_advised_where_they_cannot_be_judged(desk: Desk) -> None:
    await desk.run("profile:put", name="docs", rules=[{"allow": "files:*", "when": {"path": {"under": "docs"}}}])
    await desk.crib.services.agents.add("drifter", profile="docs")
    assert await remedies(desk, "drifter", "files:write", {"path": "/docs"}) == ["`toolcrib allow drifter files:write`"]


@pytest.mark.req("KSI-3")
async def test_who_limits_a_child_is_told_with_it(desk: Desk) -> None:
    kid = await desk.run("agent:add", name="kid", profile="trusted", parent="reviewer")
    assert kid["limited_by"] == [{"agent": "reviewer", "profile": "read-only"}]
    await desk.run("agent:add", name="toddler", profile="trusted", parent="kid")
    assert (await desk.run("agent:show", name="toddler"))["limited_by"] == [
        {"agent": "kid", "profile": "trusted"},
        {"agent": "reviewer", "profile": "read-only"},
    ]


@pytest.mark.req("KSI-3")
async def test_why_tells_what_a_parent_forbids(desk: Desk) -> None:
    await desk.crib.services.agents.add("lead", profile="developer")
    await desk.run("permission:deny", agent="lead", tools="files:write")
    await desk.crib.services.agents.add("helper", profile="developer", parent="lead")
    found = await desk.run("permission:why", agent="helper", tool="files:write")
    assert found["rule"] == "its parent lead: agent lead: deny files:write"
    assert [(row["agent"], row["rule"]) for row in found["rules"]] == [
        ("helper", "profile developer: allow *:*"),
        ("lead", "its parent lead: agent lead: deny files:write"),
        ("lead", "its parent lead: profile developer: allow *:*"),
    ]
    assert found["remedies"] == ["`toolcrib deny lead files:write --remove`"]


async def test_why_answers_for_a_tool_that_is_not_known_and_says_so(desk: Desk) -> None:
    found = await desk.run("permission:why", agent="reviewer", tool="files:wriet")
    assert (found["known"], found["verdict"], found["tool"]) == (False, "deny", "files:wriet")
    assert "files:write" in found["unknown"]
    elsewhere = await desk.run("permission:why", agent="client", tool="nowhere:tool")
    assert (elsewhere["known"], elsewhere["verdict"]) == (False, "allow")
    with pytest.raises(UnknownTool, match="wriet"):
        await desk.run("permission:why", agent="reviewer", tool="wriet")


@pytest.mark.parametrize(("agent", "verdict"), [("owner", "allow"), ("client", "deny")])
async def test_why_knows_the_owner_and_clients_without_a_name(desk: Desk, agent: str, verdict: str) -> None:
    assert await desk.verdict(agent, "crib:server_add") == verdict


async def test_a_server_is_believed_until_it_is_not(desk: Desk) -> None:
    (before,) = (await desk.run("server:list"))["servers"]
    assert before["trusted"] is False
    assert await desk.run("server:trust", name="files") == {
        "server": "files",
        "trusted": True,
        "changed": True,
        "tools": 3,
        "read_only": 2,
    }
    assert await desk.verdict("reviewer", "files:read") == "allow"
    assert await desk.verdict("reviewer", "files:write") == "deny"
    assert (await desk.run("permission:why", agent="reviewer", tool="files:read"))["trusted"] is True
    assert (await desk.run("server:trust", name="files"))["changed"] is False
    assert (await desk.run("server:list"))["servers"][0]["trusted"] is True
    assert (await desk.run("server:untrust", name="files"))["changed"] is True
    assert await desk.verdict("reviewer", "files:read") == "deny"
    assert (await desk.run("server:untrust", name="files"))["changed"] is False


@pytest.mark.parametrize("command", ["server:trust", "server:untrust", "server:remove"])
async def test_a_server_that_is_not_there_is_told(desk: Desk, command: str) -> None:
    with pytest.raises(UnknownServer) as caught:
        await desk.run(command, name="flies")
    assert caught.value.remedy == "Servers: files."


async def test_an_entry_that_is_not_in_force_can_be_removed(desk: Desk) -> None:
    file = desk.crib.environment.paths.user_config
    file.write_text(json.dumps({"servers": {"broken": {"comand": "x"}}}))
    assert (await desk.run("server:remove", name="broken"))["file"] == str(file)
    assert "broken" not in file.read_text()


async def changes(desk: Desk) -> list[tuple[str, str, dict[str, Any]]]:
    rows = (await desk.run("audit:query"))["entries"]
    return [
        (row["agent"], row["outcome"], row["detail"])
        for row in rows
        if row["kind"] == "change" and row["outcome"] != "agent added"
    ]


@pytest.mark.req("KSI-8")
async def test_the_audit_log_says_who_added_and_removed_which_server(desk: Desk) -> None:
    file = str(desk.crib.environment.paths.user_config)
    deputy = dataclasses.replace(OWNER, name="deputy")
    entry = {"command": "/none/such", "args": ["--token", "hunter2hunter2"], "env": {"KEY": "in-the-env"}}
    await desk.run("server:add", caller=deputy, via=Via.MCP, name="new", entry=entry)
    await desk.run("server:remove", name="new")
    assert await changes(desk) == [
        (
            "deputy",
            "server added",
            {"server": "new", "file": file, "runs": "/none/such --token ****", "via": "mcp"},
        ),
        ("owner", "server removed", {"server": "new", "file": file, "via": "socket"}),
    ]


@pytest.mark.req("KSI-8")
async def test_the_audit_log_says_what_a_trusted_file_and_an_edit_by_hand_brought(desk: Desk) -> None:
    shared = desk.crib.environment.root / ".mcp.json"
    shared.write_text(json.dumps({"mcpServers": {"far": {"url": "http://127.0.0.1:9/far"}}}))
    (waiting,) = (await desk.run("config:check"))["waiting"]
    by_hand = {"files": {"url": "http://127.0.0.1:9/other"}, "mine": {"url": "http://127.0.0.1:9/mine"}}
    desk.crib.environment.paths.user_config.write_text(json.dumps({"mcpServers": by_hand}))
    await desk.run("trust:add", file=waiting["file"], digest=waiting["digest"])
    desk.crib.environment.paths.user_config.write_text(json.dumps({"mcpServers": {"files": by_hand["files"]}}))
    await desk.run("trust:remove", file=waiting["file"])
    assert await changes(desk) == [
        ("owner", "file trusted", {"file": waiting["file"]}),
        ("owner", "servers changed in files", {"added": ["far", "mine"], "changed": ["files"]}),
        ("owner", "file no longer trusted", {"file": waiting["file"]}),
        ("owner", "servers changed in files", {"removed": ["far", "mine"]}),
    ]


@pytest.mark.req("BNS-10")
async def test_a_file_that_changes_between_the_look_and_the_yes_is_not_trusted(desk: Desk) -> None:
    shared = desk.crib.environment.root / ".mcp.json"
    shared.write_text(json.dumps({"mcpServers": {"far": {"url": "http://127.0.0.1:9/far"}}}))
    (waiting,) = (await desk.run("config:check"))["waiting"]
    shared.write_text(json.dumps({"mcpServers": {"far": {"command": "evil"}}}))
    with pytest.raises(ConfigError, match="has changed since you reviewed it"):
        await desk.run("trust:add", file=waiting["file"], digest=waiting["digest"])
    with pytest.raises(UsageError, match="digest"):
        await desk.run("trust:add", file=waiting["file"])
    assert (await desk.run("config:check"))["untrusted"] == [str(shared)]


@pytest.mark.req("KSI-8")
async def test_no_server_is_added_that_the_audit_log_cannot_tell_of(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(change: AuditedChange) -> None:
        raise StoreError("The disk is full.")

    before = desk.crib.environment.paths.user_config.read_bytes()
    monkeypatch.setattr(desk.crib, "_services", dataclasses.replace(desk.crib.services, record=full))
    with pytest.raises(StoreError, match=r"Nothing was changed.*The disk is full"):
        await desk.run("server:add", name="new", entry={"url": "http://127.0.0.1:9/new"})
    assert desk.crib.environment.paths.user_config.read_bytes() == before
    assert [row["name"] for row in (await desk.run("server:list"))["servers"]] == ["files"]


async def test_a_server_with_another_address_is_believed_no_longer(desk: Desk) -> None:
    await desk.run("server:trust", name="files")
    file = desk.crib.environment.paths.user_config.with_suffix(".json")
    file.write_text(json.dumps({"mcpServers": {"files": {"url": "http://127.0.0.1:9/other"}}}))
    await desk.crib.projects.reload()
    assert (await desk.run("server:list"))["servers"][0]["trusted"] is False


@pytest.fixture
async def storyteller(tmp_path: Path) -> AsyncIterator[tuple[Desk, Callable[..., Awaitable[None]]]]:
    """A real server that lists what its file says, and a way to start it again with another list."""
    root, listing = tmp_path / "project", tmp_path / "listing.json"
    root.mkdir()
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    paths = Paths.of_user(environ)
    paths.user_config.parent.mkdir(parents=True, exist_ok=True)
    command = {
        "command": sys.executable,
        "args": [str(fleet.SERVERS / "scripted_server.py"), "--listing", str(listing)],
    }
    paths.user_config.with_suffix(".json").write_text(json.dumps({"mcpServers": {"files": command}}))

    def write(*definitions: bytes) -> None:
        listing.write_text(json.dumps({"tools": [{**json.loads(one), "inputSchema": {}} for one in definitions]}))

    write()
    async with Crib(paths=paths, root=root, environ=environ) as crib:
        await crib.services.agents.add("reviewer", profile="read-only", workdir=root)
        desk = Desk(crib)

        async def lists(*definitions: bytes) -> None:
            write(*definitions)
            await desk.run("server:restart", name="files")

        yield desk, lists


WIPE = definition("wipe", readOnlyHint=True)


async def test_trust_covers_the_definitions_it_was_given_for_and_no_later_ones(
    storyteller: tuple[Desk, Callable[..., Awaitable[None]]],
) -> None:
    desk, lists = storyteller
    await lists(*FILES)
    await desk.run("server:trust", name="files")
    assert await desk.verdict("reviewer", "files:read") == "allow"
    await lists(definition("read", readOnlyHint=True, title="Reads more"), *FILES[1:], WIPE)
    (server,) = (await desk.run("server:list"))["servers"]
    assert (server["trusted"], server["new_or_changed"]) == (True, ["read", "wipe"])
    verdicts = {name: await desk.verdict("reviewer", f"files:{name}") for name in ("read", "write", "list", "wipe")}
    assert verdicts == {"read": "deny", "write": "deny", "list": "allow", "wipe": "deny"}
    told = await desk.run("permission:why", agent="reviewer", tool="files:wipe")
    assert (told["trusted"], told["new_or_changed"]) == (False, True)
    assert "`toolcrib trust --server files`: its server's annotations would count." in told["remedies"]
    assert (await desk.run("server:trust", name="files"))["changed"] is True
    assert await desk.verdict("reviewer", "files:wipe") == "allow"
    await lists(*FILES)
    assert await desk.verdict("reviewer", "files:read") == "allow", "it was trusted so before"
    await desk.run("server:untrust", name="files")
    await desk.run("server:trust", name="files")
    await lists(*FILES, WIPE)
    assert await desk.verdict("reviewer", "files:wipe") == "deny", "what was trusted before it was untrusted is not"


async def test_a_server_that_was_trusted_before_it_listed_anything_is_trusted_with_its_first_list(
    storyteller: tuple[Desk, Callable[..., Awaitable[None]]],
) -> None:
    desk, lists = storyteller
    await lists()
    with pytest.raises(UsageError, match="lists no tools"):
        await desk.run("server:trust", name="files")
    await desk.crib.trust.add_server(desk.crib.projects.home.config.servers["files"], ())
    await lists(*FILES)
    changed = asyncio.Event()
    desk.crib.projects.home.subscribe(changed.set)
    while await desk.verdict("reviewer", "files:read") != "allow":
        await asyncio.wait_for(changed.wait(), 60)
        changed.clear()
    await lists(*FILES, WIPE)
    assert await desk.verdict("reviewer", "files:wipe") == "deny"
    assert (await desk.run("server:list"))["servers"][0]["new_or_changed"] == ["wipe"]


async def test_of_two_lists_that_follow_each_other_only_the_first_is_covered(desk: Desk) -> None:
    files, trust = desk.crib.projects.home.config.servers["files"], desk.crib.trust
    await trust.remove_server(files)
    await trust.add_server(files, ())
    await asyncio.gather(trust.cover_first(files, FILES), trust.cover_first(files, [*FILES, WIPE]))
    assert len(trust.trusted(files) or ()) == len(FILES)
    await trust.remove_server(files)
    await trust.add_server(files, ())
    await asyncio.gather(trust.cover_first(files, FILES), trust.remove_server(files))
    assert trust.trusted(files) is None
    assert files.identity not in await desk.crib.services.store.read(trusted_servers)


RULES = [{"allow": "files:*", "when": {"path": {"under": "src"}}}, {"deny": "files:write"}]


async def test_a_profile_is_made_shown_changed_and_removed(desk: Desk) -> None:
    made = await desk.run("profile:put", name="mine", description="Reads.", rules=RULES)
    assert made == {
        "name": "mine",
        "description": "Reads.",
        "builtin": False,
        "own_tools": "none",
        "agents": [],
        "rules": 2,
        "changed": True,
    }
    assert (await desk.run("profile:put", name="mine", description="Reads.", rules=RULES))["changed"] is False
    shown = await desk.run("profile:show", name="mine")
    assert shown == {
        "name": "mine",
        "description": "Reads.",
        "builtin": False,
        "own_tools": "none",
        "agents": [],
        "rules": [{"allow": "files:*", "when": {"path": {"under": "src"}}}, {"deny": "files:write"}],
    }
    listed = {row["name"]: row for row in (await desk.run("profile:list"))["profiles"]}
    assert list(listed) == ["owner", "trusted", "developer", "read-only", "nothing", "mine"]
    assert listed["mine"]["rules"] == 2
    assert listed["read-only"]["agents"] == ["reviewer"]
    assert await desk.run("profile:remove", name="mine") == {"profile": "mine"}
    with pytest.raises(NotFound):
        await desk.run("profile:show", name="mine")


async def test_a_changed_profile_holds_for_its_agents_at_once(desk: Desk) -> None:
    await desk.run("profile:put", name="mine", rules=[{"allow": "files:*"}])
    await desk.crib.services.agents.add("worker", profile="mine")
    assert await desk.verdict("worker", "files:write") == "allow"
    assert (await desk.run("profile:put", name="mine", rules=[]))["agents"] == ["worker"]
    assert await desk.verdict("worker", "files:write") == "deny"


async def test_a_profile_in_use_is_not_removed(desk: Desk) -> None:
    await desk.run("profile:put", name="mine")
    await desk.crib.services.agents.add("worker", profile="mine")
    with pytest.raises(UsageError, match="worker"):
        await desk.run("profile:remove", name="mine")
    assert (await desk.run("profile:show", name="mine"))["agents"] == ["worker"]


@pytest.mark.parametrize("name", ["owner", "developer", "nothing"])
async def test_built_in_profiles_neither_change_nor_go(desk: Desk, name: str) -> None:
    with pytest.raises(ConfigError, match="built-in"):
        await desk.run("profile:put", name=name, rules=[{"allow": "*"}])
    with pytest.raises(UsageError, match="built in"):
        await desk.run("profile:remove", name=name)


@pytest.mark.req("KSI-6")
def test_what_changes_or_reveals_permissions_is_the_owners_alone() -> None:
    ours = [command for command in registry.all() if command.name.startswith(("permission:", "profile:"))]
    assert {command.name: command.effect for command in ours} == {
        "permission:allow": CommandEffect.CHANGES,
        "permission:deny": CommandEffect.CHANGES,
        "permission:why": CommandEffect.REVEALS,
        "profile:list": CommandEffect.REVEALS,
        "profile:show": CommandEffect.REVEALS,
        "profile:put": CommandEffect.CHANGES,
        "profile:remove": CommandEffect.CHANGES,
    }
    assert {command.availability for command in ours} == {Availability.EVERYWHERE}


@pytest.mark.req("KSI-6")
async def test_no_agent_sees_or_uses_the_commands_of_permissions(desk: Desk) -> None:
    await desk.crib.services.agents.add("builder", profile="trusted")
    await desk.run("permission:allow", agent="builder", tools="*")
    permission = desk.crib.services.agents.find("builder").permission
    owners = [
        tool
        for tool in desk.crib.projects.home.catalog.of_server("crib")
        if tool.name.startswith(("permission_", "profile_")) or tool.name in ("server_add", "server_remove")
    ]
    assert len(owners) == 9
    assert {permission.decide(tool, {}).verdict for tool in owners} == {Verdict.DENY}
    assert {permission.decide(tool, None).verdict for tool in owners} == {Verdict.DENY}


async def test_an_agent_was_added_also_where_its_time_is_over_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.run("agent:add", name="brief", expires="1h")
    add = desk.crib.services.agents.add

    async def add_and_let_time_pass(name: str, **more: Any) -> MintedAgent:
        minted = await add(name, **more)
        monkeypatch.setattr(Agent, "expired", lambda *_: True)
        return minted

    monkeypatch.setattr(desk.crib.services.agents, "add", add_and_let_time_pass)
    added = await desk.run("agent:add", name="kid", parent="brief")
    assert (added["agent"], added["parent"], added["limited_by"]) == ("kid", "brief", [])
