"""The tools that a program offers, as one thing."""

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


class Server:
    """Stands in for all servers: notes what reaches it."""

    def __init__(self) -> None:
        self.saw: list[tuple[str, dict[str, Any]]] = []

    async def call(self, tool: Tool, arguments: dict[str, Any], *, timeout: float | None = None) -> str:
        self.saw.append((tool.display, arguments))
        return f"{tool.name} ran"


def catalog(**servers: Sequence[str]) -> Catalog:
    listings = {
        server: tuple(
            msgspec.json.encode({"name": name, "description": f"Does {name}.", "inputSchema": REPO}) for name in names
        )
        for server, names in servers.items()
    }
    return Catalog.build(listings, version=1)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def tools(server: Server) -> Tools:
    made = catalog(git=["git_status", "git_push", "log"], svn=["log"])
    return Tools(map(OfferedTool.of, made.tools), call=server.call)


@pytest.mark.req("ENG-10")
def test_it_is_a_sequence_of_offers_that_know_their_servers(tools: Tools) -> None:
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
async def test_a_tool_is_a_definition_and_a_call_both_by_one_name(tools: Tools, server: Server) -> None:
    definition = tools.of("git")[:1].to_openai()[0]["function"]
    assert definition["name"] == "git_status"
    assert definition["parameters"]["required"] == ["repo_path"]
    assert await tools.call(definition["name"], {"repo_path": "."}) == "git_status ran"
    assert server.saw == [("git:git_status", {"repo_path": "."})]


@pytest.mark.req("ENG-6")
async def test_a_call_undoes_the_rename_and_reaches_the_tool_itself(tools: Tools, server: Server) -> None:
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
    assert server.saw == [("git:log", {"repo_path": "here"})]
    assert tools.names[0] == "git_status", "the tools that these were made of stay as they were"


@pytest.mark.req("ENG-7")
def test_options_reach_the_definition(tools: Tools) -> None:
    cached = tools.transformed(
        transform=ProviderOptions(anthropic={"cache_control": {"type": "ephemeral"}})
    ).to_anthropic()
    assert cached
    assert all(one["cache_control"] == {"type": "ephemeral"} for one in cached)


def test_a_provider_that_is_not_known_is_refused(tools: Tools) -> None:
    assert tools.adaptations("anthropic") == ()
    with pytest.raises(UsageError, match="no provider 'mistral'"):
        tools.adaptations("mistral")  # type: ignore[arg-type]


async def test_a_name_that_is_not_there_is_answered_with_the_nearest(tools: Tools, server: Server) -> None:
    with pytest.raises(UnknownTool, match='no tool "git_statu"') as raised:
        await tools.call("git_statu")
    assert raised.value.remedy.startswith("Did you mean git_status")
    with pytest.raises(UnknownTool) as raised:
        tools.of("svn")["xyz"]
    assert raised.value.remedy == "There are: svn_log."
    assert server.saw == []


async def test_a_tool_that_was_dropped_cannot_be_called(tools: Tools, server: Server) -> None:
    for name in ("git_push", "git:git_push"):
        with pytest.raises(UnknownTool):
            await tools.transformed(drop="git_push").call(name, {"repo_path": "."})
    assert server.saw == []


async def test_wrong_arguments_are_told_in_the_words_that_the_model_was_shown(tools: Tools, server: Server) -> None:
    shaped = tools.transformed(transform=RenameArguments({"repo_path": "folder"}))
    with pytest.raises(InvalidArguments, match='needs the property "folder"') as raised:
        await shaped.call("git_status", {"repo_path": "."})
    assert raised.value.data["schema"]["required"] == ["folder"]
    assert server.saw == []


async def test_what_the_program_fixed_the_model_cannot_change(tools: Tools, server: Server) -> None:
    await tools.transformed(transform=FixArguments({"repo_path": "/srv"})).call("git_status", {"repo_path": "/etc"})
    assert server.saw == [("git:git_status", {"repo_path": "/srv"})]


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


@pytest.mark.parametrize("name", ["", "with blank", "dotted.name", "größe", "a/b"])
def test_a_name_that_providers_do_not_take_is_refused(tools: Tools, name: str) -> None:
    with pytest.raises(UsageError, match="git:git_status cannot be offered as"):
        tools.transformed(transform=RenameTools({"git_status": name}))


@pytest.mark.req("ENG-6")
async def test_a_name_that_gets_too_long_ends_in_a_hash_and_still_calls_its_tool(tools: Tools, server: Server) -> None:
    long = tools.transformed(transform=[PrefixTools("p" * 60)])
    assert all(re.fullmatch(r"p{55}_[0-9a-f]{8}", name) for name in long.names)
    assert len(set(long.names)) == 4
    await long.call(long.names[1], {"repo_path": "."})
    assert server.saw == [("git:git_push", {"repo_path": "."})]


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
        shaped = Tools(map(OfferedTool.of, made.tools), call=Server().call).transformed(transform=chain)
    except UsageError as error:
        assert error.remedy
        return
    assert [offer.tool for offer in shaped] == list(made.tools)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in shaped.names)
    assert len({name.lower() for name in shaped.names}) == len(made.tools)
    assert all(shaped[name].tool is tool for name, tool in zip(shaped.names, made.tools, strict=True))


STRICT = ProviderOptions(openai={"strict": True})


def of_schema(server: Server, schema: dict[str, Any], *names: str) -> Tools:
    listed = tuple(msgspec.json.encode({"name": name, "inputSchema": schema}) for name in names or ("t",))
    return Tools(map(OfferedTool.of, Catalog.build({"s": listed}, version=1).tools), call=server.call)


@pytest.mark.req("ENG-8")
async def test_whose_model_it_was_decides_what_a_value_means(server: Server) -> None:
    tools = of_schema(server, {"type": "object", "properties": {"d": {}}}).transformed(transform=STRICT)
    for provider in ("openai", "anthropic", "google"):
        await tools.call("t", {"d": None}, provider=provider)  # type: ignore[arg-type]
    assert [arguments for _, arguments in server.saw] == [{}, {"d": None}, {"d": None}]
    with pytest.raises(UsageError, match="no provider 'mistral'"):
        await tools.call("t", {}, provider="mistral")  # type: ignore[arg-type]


async def test_where_nobody_says_whose_model_it_was_only_a_whole_form_is_taken_back(server: Server) -> None:
    schema = {"type": "object", "properties": {"d": {}, "e": {"type": "string"}}}
    tools = of_schema(server, schema).transformed(transform=STRICT)
    await tools.call("t", {"d": None})
    await tools.call("t", {"d": None, "e": None})
    assert [arguments for _, arguments in server.saw] == [{"d": None}, {}]


async def test_a_definition_is_made_once_for_all_calls(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for provider in ("openai", "anthropic", "google"):
        real = undo._FORMATS[provider]
        monkeypatch.setitem(undo._FORMATS, provider, lambda offer, p=provider, real=real: made.append(p) or real(offer))
    tools = of_schema(server, REPO)
    for _ in range(3):
        await tools.call("t", {"repo_path": "."}, provider="google")
    assert made == ["google"]
    for _ in range(3):
        await tools.call("t", {"repo_path": "."})
    assert sorted(made) == ["anthropic", "google", "openai"]


async def test_who_wants_to_see_before_sees_the_arguments_of_the_call(tools: Tools, server: Server) -> None:
    shaped = tools.transformed(
        transform=[RenameArguments({"repo_path": "folder"}), FixArguments({"folder": "/srv"}, tools="git_push")]
    )
    given = {"folder": "/tmp"}
    real = shaped.real_arguments("git_status", given, provider="anthropic")
    assert (real, given) == ({"repo_path": "/tmp"}, {"folder": "/tmp"})
    assert shaped.real_arguments("git_push", {}) == {"repo_path": "/srv"}
    await shaped.call_real("git_status", real)
    assert server.saw == [("git:git_status", {"repo_path": "/tmp"})]


async def test_arguments_that_lie_too_deep_in_each_other_are_refused(server: Server) -> None:
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "e": {"enum": [{"a": 1}]}}}
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": node}}
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"n": deep}
    with pytest.raises(InvalidArguments, match="nested too deep"):
        await of_schema(server, schema).transformed(transform=STRICT).call("t", deep)
    assert server.saw == []


@pytest.mark.req("ENG-8")
async def test_each_tool_has_a_name_of_its_own_at_google_and_is_called_by_it(server: Server) -> None:
    tools = of_schema(server, REPO, "1x", "_1X", "__1x", "2x", "-3")
    wired = [one["name"] for one in tools.to_google()]
    assert wired == ["___1x", "_1X", "__1x", "_2x", "_-3"]
    offers = {offer.name: offer for offer in tools}
    assert [one.name for one in write_definitions(ToolFormat.GOOGLE, offers).by_name.values()] == wired
    for name in wired:
        await tools.call(name, {"repo_path": "."}, provider="google")
    assert [display for display, _ in server.saw] == ["s:1x", "s:_1X", "s:__1x", "s:2x", "s:-3"]


def test_tools_that_a_transform_does_not_fit_can_be_left_out_and_told(tools: Tools) -> None:
    told: list[tuple[str, str]] = []

    def odd(offer: OfferedTool) -> OfferedTool:
        if offer.server == "svn":
            raise UsageError("not this one")
        return offer

    left = tools.transformed(
        transform=[odd, RenameTools({"git_push": "git_status", "log": "with blank"})],
        on_skipped=lambda offer, error: told.append((offer.tool.display, error.message)),
    )
    assert left.names == ("git_status",)
    assert left["git_status"].tool.name == "git_status"
    assert [display for display, _ in told] == ["svn:log", "git:git_push", "git:log"]
