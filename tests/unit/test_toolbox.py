"""`Tools`: the tools that a program offers to its model."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.agent_loop.models.definitions import write_definitions
from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import (
    DescribeTools,
    FixArguments,
    PrefixTools,
    ProviderOptions,
    RenameArguments,
    RenameTools,
    Transform,
)
from toolcrib.core.toolbox import Tools
from toolcrib.errors import InvalidArguments, UnknownTool, UsageError
from toolcrib.formats import undo

REPO = {"type": "object", "properties": {"repo_path": {"type": "string"}}, "required": ["repo_path"]}


class RecordingServers:
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def call(self, tool: Tool, arguments: dict[str, Any], *, timeout: float | None = None) -> str:
        self.calls.append((tool.display, arguments))
        return f"{tool.name} ran"


def catalog(**servers: Sequence[str]) -> Catalog:
    def listed(name: str) -> bytes:
        return msgspec.json.encode({"name": name, "description": f"Does {name}.", "inputSchema": REPO})

    return Catalog.build({server: tuple(map(listed, names)) for server, names in servers.items()}, version=1)


@pytest.fixture
def servers() -> RecordingServers:
    return RecordingServers()


@pytest.fixture
def tools(servers: RecordingServers) -> Tools:
    made = catalog(git=["git_status", "git_push", "log"], svn=["log"])
    return Tools(map(OfferedTool.of, made.tools), call=servers.call)


@pytest.mark.req("ENG-10")
def test_tools_are_a_sequence_of_offers_with_their_servers(tools: Tools) -> None:
    assert tools.names == ("git_status", "git_push", "git_log", "svn_log")
    assert [offer.server for offer in tools] == ["git", "git", "git", "svn"]
    assert len(tools) == 4
    assert tools[0] is tools["git_status"] is tools["git:git_status"]
    assert tools[1:3].names == ("git_push", "git_log")
    assert tools.of("svn").names == ("svn_log",)
    assert tools.of("cvs").names == ()
    assert "git_push" in tools
    assert "push" not in tools
    assert tools[1] in tools


@pytest.mark.req("ENG-3")
async def test_a_tool_is_called_by_the_name_in_its_definition(tools: Tools, servers: RecordingServers) -> None:
    definition = tools.of("git")[:1].to_openai()[0]["function"]
    assert definition["name"] == "git_status"
    assert definition["parameters"]["required"] == ["repo_path"]
    assert await tools.call(definition["name"], {"repo_path": "."}) == "git_status ran"
    assert servers.calls == [("git:git_status", {"repo_path": "."})]


@pytest.mark.req("ENG-6")
async def test_a_call_undoes_the_rename_and_reaches_the_tool_itself(tools: Tools, servers: RecordingServers) -> None:
    shaped = tools.transformed(
        keep="git:*",
        drop="*_push",
        transform=[
            RenameTools({"git_status": "state", "git:log": "history"}),
            PrefixTools("mcp"),
            RenameArguments({"repo_path": "folder"}),
            DescribeTools("[{server}] {description} ({name})"),
        ],
    )
    assert shaped.names == ("mcp_state", "mcp_history")
    assert shaped["mcp_state"].description == "[git] Does git_status. (mcp_state)"
    assert shaped.to_anthropic()[1]["name"] == "mcp_history"
    await shaped.call("mcp_history", {"folder": "here"})
    assert servers.calls == [("git:log", {"repo_path": "here"})]
    assert tools.names[0] == "git_status", "the tools that these were made of stay as they were"


@pytest.mark.req("ENG-7")
def test_provider_options_are_in_the_definition(tools: Tools) -> None:
    options = {"cache_control": {"type": "ephemeral"}}
    cached = tools.transformed(transform=ProviderOptions(anthropic=options)).to_anthropic()
    assert [one["cache_control"] for one in cached] == [{"type": "ephemeral"}] * 4


async def test_an_unknown_name_is_refused_with_the_nearest_one(tools: Tools, servers: RecordingServers) -> None:
    with pytest.raises(UnknownTool, match='no tool "git_statu"') as raised:
        await tools.call("git_statu")
    assert raised.value.remedy.startswith("Did you mean git_status")
    with pytest.raises(UnknownTool) as raised:
        tools.of("svn")["xyz"]
    assert raised.value.remedy == "Available: svn_log."
    for name in ("git_push", "git:git_push"):
        with pytest.raises(UnknownTool):
            await tools.transformed(drop="git_push").call(name, {"repo_path": "."})
    assert servers.calls == []


async def test_errors_use_the_argument_names_that_the_model_knows(tools: Tools, servers: RecordingServers) -> None:
    shaped = tools.transformed(transform=RenameArguments({"repo_path": "folder"}))
    with pytest.raises(InvalidArguments, match='must have "folder"') as raised:
        await shaped.call("git_status", {"repo_path": "."})
    assert raised.value.data["schema"]["required"] == ["folder"]
    assert servers.calls == []


async def test_the_model_cannot_change_fixed_arguments(tools: Tools, servers: RecordingServers) -> None:
    await tools.transformed(transform=FixArguments({"repo_path": "/srv"})).call("git_status", {"repo_path": "/etc"})
    assert servers.calls == [("git:git_status", {"repo_path": "/srv"})]


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize(
    "transform",
    [
        RenameTools({"git_status": "x", "git_push": "x"}),
        RenameTools({"git_status": "GIT_push"}),
        RenameTools(lambda offer: "same"),
        RenameTools({"log": "history"}),
    ],
)
def test_two_tools_of_one_name_are_refused_and_both_are_named(tools: Tools, transform: Transform) -> None:
    with pytest.raises(UsageError, match=r"Two tools would be offered as '\w+': \w+:\w+ and \w+:\w+") as raised:
        tools.transformed(transform=transform)
    assert raised.value.remedy == "Rename or drop one of them."


def test_names_that_providers_do_not_accept_are_refused(tools: Tools) -> None:
    for name in ("", "with blank", "dotted.name", "größe", "a/b"):
        with pytest.raises(UsageError, match="git:git_status cannot be offered as"):
            tools.transformed(transform=RenameTools({"git_status": name}))


@pytest.mark.req("ENG-6")
async def test_a_long_name_ends_with_a_hash_and_still_calls_its_tool(tools: Tools, servers: RecordingServers) -> None:
    long = tools.transformed(transform=[PrefixTools("p" * 60)])
    assert all(re.fullmatch(r"p{55}_[0-9a-f]{8}", name) for name in long.names)
    assert len(set(long.names)) == 4
    await long.call(long.names[1], {"repo_path": "."})
    assert servers.calls == [("git:git_push", {"repo_path": "."})]


names = st.text(st.sampled_from("abz_-9. Ä"), max_size=80) | st.sampled_from(["git_push", "log", "x" * 64, "x" * 70])
renames = st.builds(
    RenameTools, st.dictionaries(st.sampled_from(["git_status", "git:log", "*", "log", "svn:*"]), names)
)
prefixes = st.builds(PrefixTools, st.text(st.sampled_from("ab_"), min_size=1, max_size=70))


@pytest.mark.req("ENG-6")
@given(st.lists(renames | prefixes, max_size=4))
def test_names_are_unique_and_legal_or_nothing_is_offered(chain: list[Transform]) -> None:
    made = catalog(git=["git_status", "git_push", "log"], svn=["log"])
    try:
        shaped = Tools(map(OfferedTool.of, made.tools), call=RecordingServers().call).transformed(transform=chain)
    except UsageError as error:
        assert error.remedy
        return
    assert [offer.tool for offer in shaped] == list(made.tools)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in shaped.names)
    assert len({name.lower() for name in shaped.names}) == len(made.tools)
    assert all(shaped[name].tool is tool for name, tool in zip(shaped.names, made.tools, strict=True))


STRICT = ProviderOptions(openai={"strict": True})


def of_schema(servers: RecordingServers, schema: dict[str, Any], *names: str) -> Tools:
    listed = tuple(msgspec.json.encode({"name": name, "inputSchema": schema}) for name in names or ("t",))
    return Tools(map(OfferedTool.of, Catalog.build({"s": listed}, version=1).tools), call=servers.call)


@pytest.mark.req("ENG-8")
async def test_the_models_provider_decides_how_a_value_is_decoded(servers: RecordingServers) -> None:
    tools = of_schema(servers, {"type": "object", "properties": {"d": {}}}).transformed(transform=STRICT)
    for provider in ("openai", "anthropic", "google"):
        await tools.call("t", {"d": None}, provider=provider)  # type: ignore[arg-type]
    assert [arguments for _, arguments in servers.calls] == [{}, {"d": None}, {"d": None}]
    assert tools.adaptations("anthropic") == ()
    with pytest.raises(UsageError, match="no provider 'mistral'"):
        await tools.call("t", {}, provider="mistral")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no provider 'mistral'"):
        tools.adaptations("mistral")  # type: ignore[arg-type]


async def test_without_a_provider_only_a_complete_strict_form_is_decoded(servers: RecordingServers) -> None:
    schema = {"type": "object", "properties": {"d": {}, "e": {"type": "string"}}}
    tools = of_schema(servers, schema).transformed(transform=STRICT)
    await tools.call("t", {"d": None})
    await tools.call("t", {"d": None, "e": None})
    assert [arguments for _, arguments in servers.calls] == [{"d": None}, {}]


async def test_a_definition_is_built_once_for_all_calls(
    servers: RecordingServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    for provider in ("openai", "anthropic", "google"):
        real = undo._FORMATS[provider]
        monkeypatch.setitem(undo._FORMATS, provider, lambda offer, p=provider, real=real: made.append(p) or real(offer))
    tools = of_schema(servers, REPO)
    for _ in range(3):
        await tools.call("t", {"repo_path": "."}, provider="google")
    assert made == ["google"]
    for _ in range(3):
        await tools.call("t", {"repo_path": "."})
    assert sorted(made) == ["anthropic", "google", "openai"]


async def test_the_real_arguments_are_available_before_the_call(tools: Tools, servers: RecordingServers) -> None:
    shaped = tools.transformed(
        transform=[RenameArguments({"repo_path": "folder"}), FixArguments({"folder": "/srv"}, tools="git_push")]
    )
    given = {"folder": "/tmp"}
    real = shaped.real_arguments("git_status", given, provider="anthropic")
    assert (real, given) == ({"repo_path": "/tmp"}, {"folder": "/tmp"})
    assert shaped.real_arguments("git_push", {}) == {"repo_path": "/srv"}
    await shaped.call_real("git_status", real)
    assert servers.calls == [("git:git_status", {"repo_path": "/tmp"})]


async def test_arguments_that_are_nested_too_deeply_are_refused(servers: RecordingServers) -> None:
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "e": {"enum": [{"a": 1}]}}}
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": node}}
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"n": deep}
    with pytest.raises(InvalidArguments, match="nested too deep"):
        await of_schema(servers, schema).transformed(transform=STRICT).call("t", deep)
    assert servers.calls == []


@pytest.mark.req("ENG-8")
async def test_each_tool_has_a_unique_name_for_google_and_is_called_by_it(servers: RecordingServers) -> None:
    tools = of_schema(servers, REPO, "1x", "_1X", "__1x", "2x", "-3")
    wired = [one["name"] for one in tools.to_google()]
    assert wired == ["___1x", "_1X", "__1x", "_2x", "_-3"]
    offers = {offer.name: offer for offer in tools}
    assert [one.name for one in write_definitions(ToolFormat.GOOGLE, offers).by_name.values()] == wired
    for name in wired:
        await tools.call(name, {"repo_path": "."}, provider="google")
    assert [display for display, _ in servers.calls] == ["s:1x", "s:_1X", "s:__1x", "s:2x", "s:-3"]


def test_tools_that_do_not_fit_a_transform_can_be_skipped_and_reported(tools: Tools) -> None:
    skipped: list[str] = []

    def odd(offer: OfferedTool) -> OfferedTool:
        if offer.server == "svn":
            raise UsageError("not this one")
        return offer

    left = tools.transformed(
        transform=[odd, RenameTools({"git_push": "git_status", "log": "with blank"})],
        on_skipped=lambda offer, _: skipped.append(offer.tool.display),
    )
    assert left.names == ("git_status",)
    assert left["git_status"].tool.name == "git_status"
    assert skipped == ["svn:log", "git:git_push", "git:log"]
