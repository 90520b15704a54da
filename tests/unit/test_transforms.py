"""Filters choose tools, transforms change what is offered, and a call reverts the changes."""

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from toolcrib.catalog import Catalog, offered_tool
from toolcrib.catalog.offered_tool import Filter, OfferedTool, annotated, destructive, matches, not_
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import (
    ChangeSchema,
    DefaultArguments,
    DescribeTools,
    DropTools,
    FixArguments,
    ForTools,
    KeepTools,
    PrefixTools,
    ProviderOptions,
    RenameArguments,
    RenameTools,
    Transform,
    UnmatchedNames,
    apply_transforms,
    common_errors,
)
from toolcrib.core.provider import ToolProvider
from toolcrib.core.results import Result
from toolcrib.core.toolbox import Tools
from toolcrib.errors import InvalidArguments, UsageError
from toolcrib.events import Bus
from toolcrib.servers.model import ServerState, ServerStatus

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "repo_path": {"type": "string", "description": "Where."},
        "depth": {"type": "integer", "minimum": 1},
        "author": {"$ref": "#/$defs/person"},
    },
    "required": ["repo_path", "author"],
    "additionalProperties": False,
    "$defs": {"person": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}


def offer(schema: dict[str, Any] = SCHEMA, name: str = "git_log", **fields: Any) -> OfferedTool:
    definition = {"name": name, "description": "Shows the log.", "inputSchema": schema, **fields}
    return OfferedTool.of(catalog(git=[definition]).tools[0])


def catalog(**servers: Iterable[dict[str, Any]]) -> Catalog:
    return Catalog.build(
        {server: tuple(map(msgspec.json.encode, tools)) for server, tools in servers.items()}, version=1
    )


def through(chain: list[Transform] | Transform, made: OfferedTool | None = None) -> OfferedTool:
    return apply_transforms([made or offer()], chain)[0]


def fits(schema: Any, arguments: Any) -> bool:
    return bool(validator_for(dict(schema)).is_valid(arguments))


LISTED = {"git": ("git_status", "git_push", "log"), "files": ("read_file", "write_file", "log"), "odd[1]": ("a.b",)}
ANNOTATIONS: dict[str, dict[str, Any]] = {
    "git_status": {"readOnlyHint": True, "openWorldHint": False},
    "git_push": {"destructiveHint": True, "idempotentHint": True},
    "write_file": {"readOnlyHint": False, "destructiveHint": False},
    "read_file": {"readOnlyHint": "yes", "destructiveHint": None},
}
DEFINITIONS = {
    server: [{"name": name, "annotations": ANNOTATIONS.get(name, {})} for name in names]
    for server, names in LISTED.items()
}
OFFERS = list(map(OfferedTool.of, catalog(**DEFINITIONS).tools))
ALL = {offer.tool.display for offer in OFFERS}


def chosen(wanted: Filter, among: Iterable[OfferedTool] = OFFERS) -> set[str]:
    return {offer.tool.display for offer in among if matches(wanted, offer)}


@pytest.mark.req("ENG-5")
@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("read_file", {"files:read_file"}),
        ("READ_FILE", set()),
        ("*_file", {"files:read_file", "files:write_file"}),
        ("git:*", {"git:git_status", "git:git_push", "git:log"}),
        ("git:git_?tatus", {"git:git_status"}),
        ("git_[ps]*", {"git:git_status", "git:git_push"}),
        ("*:log", {"git:log", "files:log"}),
        ("log", {"git:log", "files:log"}),
        ("git_log", {"git:log"}),
        ("odd[1]:a.b", {"odd[1]:a.b"}),
        ("nothing:*", set()),
        (["git:log", "read_*"], {"git:log", "files:read_file"}),
        (("git:log", ["read_*", lambda offer: offer.server == "odd[1]"]), {"git:log", "files:read_file", "odd[1]:a.b"}),
        ((), set()),
        (lambda offer: "push" in offer.name, {"git:git_push"}),
        (not_(["git:*", "odd*:*"]), {"files:read_file", "files:write_file", "files:log"}),
        (offered_tool.read_only, {"git:git_status"}),
        (destructive, {"git:git_push", "files:read_file", "git:log", "files:log", "odd[1]:a.b"}),
        (offered_tool.idempotent, {"git:git_status", "git:git_push"}),
        (offered_tool.open_world, ALL - {"git:git_status"}),
    ],
)
def test_names_globs_predicates_and_annotations_choose_tools(wanted: Filter, meant: set[str]) -> None:
    assert chosen(wanted) == meant
    if (name := getattr(wanted, "__name__", "<lambda>")) in ("read_only", "destructive", "idempotent", "open_world"):
        assert chosen(annotated(name)) == meant


def test_a_renamed_tool_matches_its_new_name_and_its_servers_name() -> None:
    renamed = apply_transforms(OFFERS, RenameTools({"git_push": "publish"}))
    assert chosen("git_push", renamed) == set()
    assert chosen("publish", renamed) == chosen("git:git_push", renamed) == {"git:git_push"}


@pytest.mark.req("ENG-5")
def test_keep_and_drop_divide_the_tools_between_them() -> None:
    kept = apply_transforms(OFFERS, KeepTools(iter(["git:*", "read_file"])))
    dropped = apply_transforms(OFFERS, DropTools(iter(["git:*", "read_file"])))
    assert [offer.tool.display for offer in kept] == ["files:read_file", "git:git_status", "git:git_push", "git:log"]
    assert sorted(offer.tool.display for offer in (*kept, *dropped)) == sorted(ALL)


@given(st.text(max_size=30))
def test_no_text_breaks_a_filter(text: str) -> None:
    assert chosen(text) | chosen(not_(text)) == ALL


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        (RenameTools({"git_log": "log", "other": "x"}), "log"),
        (RenameTools({"git:git_log": "log"}), "log"),
        (RenameTools({"svn:git_log": "log"}), "git_log"),
        (RenameTools(lambda it: it.name.removeprefix(f"{it.server}_")), "log"),
        ([PrefixTools("mcp"), PrefixTools("a")], "a_mcp_git_log"),
    ],
)
def test_a_name_comes_from_a_table_a_function_or_a_prefix(chain: Any, name: str) -> None:
    assert through(chain).name == name


def test_a_description_comes_from_a_function_or_a_template_filled_once() -> None:
    tricky = offer(description="{server} {name} {unknown}")
    assert through(DescribeTools("[{server}] {name}: {description} {}"), tricky).description == (
        "[git] git_log: {server} {name} {unknown} {}"
    )
    assert through(DescribeTools(lambda it: it.description.upper())).description == "SHOWS THE LOG."
    with pytest.raises(UsageError, match=r"placeholder in a description: \{tool\}") as raised:
        DescribeTools("{tool}")
    assert raised.value.remedy == "Use {server}, {name}, {description}."


@pytest.mark.req("ENG-6")
def test_a_fixed_argument_is_missing_from_the_schema_and_set_in_every_call() -> None:
    fixed = through(FixArguments({"repo_path": "/srv", "nowhere": 1}))
    assert fixed.schema == {
        **{key: value for key, value in SCHEMA.items() if key != "required"},
        "properties": {name: one for name, one in SCHEMA["properties"].items() if name != "repo_path"},
        "required": ["author"],
    }
    assert fixed.arguments({"depth": 2}) == {"repo_path": "/srv", "depth": 2}
    assert fixed.arguments({"repo_path": "/etc"}) == {"repo_path": "/srv"}


@pytest.mark.parametrize("kind", [FixArguments, DefaultArguments])
def test_a_value_that_the_tool_does_not_accept_is_refused_at_once(kind: type[FixArguments | DefaultArguments]) -> None:
    with pytest.raises(UsageError, match="git:git_log does not accept the value given for its argument 'depth'"):
        through(kind({"depth": 0}))
    with pytest.raises(UsageError, match="'author'"):
        through(kind({"author": {"name": 3}}))
    through(kind({"author": {"name": "Ada"}}))


def test_a_fixed_value_is_a_copy_and_only_for_the_chosen_tools() -> None:
    given_value = {"name": "Ada"}
    fixed = through(FixArguments({"author": given_value}))
    given_value["name"] = "Eve"
    fixed.arguments({})["author"]["name"] = "Mallory"
    assert fixed.arguments({}) == {"author": {"name": "Ada"}}
    untouched = through(FixArguments({"repo_path": "."}, tools=["svn:*", "x"]))
    assert untouched.undo == ()
    assert "repo_path" in untouched.schema["properties"]
    assert through(FixArguments({"nowhere": 1})).arguments({"depth": 1}) == {"depth": 1}


def test_an_argument_with_a_default_is_optional() -> None:
    made = through(DefaultArguments({"repo_path": "."}))
    assert made.schema["required"] == ["author"]
    assert made.schema["properties"]["repo_path"] == {"type": "string", "description": "Where.", "default": "."}
    assert made.arguments({}) == {"repo_path": "."}
    assert made.arguments({"repo_path": "x"}) == {"repo_path": "x"}


def test_renamed_arguments_keep_their_order() -> None:
    made = through(RenameArguments({"repo_path": "folder", "depth": "repo_path"}))
    assert list(made.schema["properties"]) == ["folder", "repo_path", "author"]
    assert made.schema["required"] == ["folder", "author"]
    assert made.arguments({"folder": ".", "repo_path": 3}) == {"repo_path": ".", "depth": 3}
    assert through(RenameArguments({"depth": "levels"})).arguments({"depth": 1, "levels": 2}) == {"depth": 2}
    with pytest.raises(UsageError, match="two arguments named 'depth'"):
        through(RenameArguments({"repo_path": "depth"}))


@pytest.mark.req("ENG-6")
def test_a_chain_is_undone_from_its_end() -> None:
    renames: list[Transform] = [RenameArguments({"repo_path": "a"}), RenameArguments({"a": "b"})]
    made = through([*renames, FixArguments({"depth": 3}), DefaultArguments({"b": "."})])
    assert set(made.schema["properties"]) == {"b", "author"}
    assert made.arguments({}) == {"repo_path": ".", "depth": 3}
    assert made.arguments({"b": "x", "depth": 9}) == {"repo_path": "x", "depth": 3}


def test_a_function_can_change_the_schema_and_another_reverts_it() -> None:
    def flat(schema: dict[str, Any]) -> dict[str, Any]:
        del schema["properties"]["author"]
        schema["properties"]["author_name"] = {"type": "string"}
        schema["required"] = ["repo_path", "author_name"]
        return schema

    before = copy.deepcopy(SCHEMA)
    made = through(ChangeSchema(flat, lambda given: {"author": {"name": given.pop("author_name")}, **given}))
    assert made.tool.input_schema == before
    assert fits(made.schema, {"repo_path": ".", "author_name": "Ada"})
    assert made.arguments({"repo_path": ".", "author_name": "Ada"}) == {"repo_path": ".", "author": {"name": "Ada"}}


def test_options_add_up_by_provider() -> None:
    made = through(
        [ProviderOptions(openai={"strict": True}), ProviderOptions(openai={"x": 1}, google={"behavior": "BLOCKING"})]
    )
    assert made.options == {"openai": {"strict": True, "x": 1}, "google": {"behavior": "BLOCKING"}}


@pytest.mark.req("ENG-6")
def test_some_tools_can_be_kept_dropped_and_changed() -> None:
    tools = [offer(name="a"), offer(name="b", annotations={"readOnlyHint": True}), offer(name="c")]
    made = apply_transforms(
        tools, [ForTools("a", PrefixTools("x")), ForTools("c", DropTools(destructive)), KeepTools(["x_a", "b", "c"])]
    )
    assert [one.name for one in made] == ["x_a", "b"]


@pytest.mark.req("ENG-6")
def test_a_function_is_a_transform() -> None:
    def shout(it: OfferedTool) -> OfferedTool | None:
        if it.server != "git":
            return None
        return replace(it, description=it.description.upper())

    assert through([shout, PrefixTools("mcp")]).description == "SHOWS THE LOG."
    assert through(shout).name == "git_log"


def test_an_argument_is_changed_in_all_subschemas_for_the_same_object() -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["file", "text"]}, "path": {}, "text": {}, "mode": {}},
        "oneOf": [
            {"properties": {"kind": {"const": "file"}}, "required": ["kind", "path"]},
            {"properties": {"kind": {"const": "text"}}, "required": ["kind", "text"]},
        ],
        "dependentRequired": {"kind": ["mode"], "path": ["kind"]},
    }
    made = through(FixArguments({"kind": "file"}), offer(schema))
    assert fits(made.schema, {"path": "x", "mode": 1})
    assert not fits(made.schema, {"text": "x", "mode": 1})
    assert not fits(made.schema, {"path": "x"})
    renamed = through(RenameArguments({"path": "file"}), offer(schema))
    assert fits(renamed.schema, {"kind": "file", "file": "x", "mode": 1})
    assert not fits(renamed.schema, {"kind": "file", "path": "x", "mode": 1})


def test_a_root_reference_is_expanded_and_the_definitions_stay() -> None:
    schema = {"$ref": "#/$defs/args", "$defs": {"args": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}}
    made = through(RenameArguments({"a": "b"}), offer(schema))
    assert made.schema == {"type": "object", "properties": {"b": {}}, "required": ["b"], "$defs": schema["$defs"]}
    recursive = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"x": {}}}}}
    assert "y" in through(RenameArguments({"x": "y"}), offer(recursive)).schema["properties"]


def test_exponential_references_are_cut_off() -> None:
    branches = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 30, "required": ["a"]} for at in range(30)}
    made = through(
        [FixArguments({"a": 1}), RenameArguments({"b": "c"})], offer({"$ref": "#/$defs/d0", "$defs": branches})
    )
    assert made.arguments({}) == {"a": 1}
    assert len(msgspec.json.encode(made.schema)) < 5_000_000


words = st.sampled_from(["a", "b", "$ref", "#/$defs/a", "properties", "required", "allOf", "not", "if", "$defs"])
words |= st.sampled_from(["dependencies", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties"])
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(words, junk))
@example({"properties": {"a": None}, "dependencies": {"b": [[]]}})
def test_no_schema_breaks_a_transform_or_is_changed_by_it(schema: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    for step in (FixArguments({"a": 1}), DefaultArguments({"b": 1}), RenameArguments({"a": "z", "b": "a"})):
        try:
            msgspec.json.encode(through(step, replace(offer(), schema=schema)).schema)
        except UsageError:
            continue
    assert schema == before


REPO = {"type": "object", "properties": {"repo_path": {"type": "string"}, "depth": {"type": "integer"}}}


def tools(**servers: list[str]) -> Tools:
    async def call(*_: Any, timeout: float | None) -> Result:
        raise AssertionError(timeout)

    made = catalog(**{key: [{"name": name, "inputSchema": REPO} for name in names] for key, names in servers.items()})
    return Tools(map(OfferedTool.of, made.tools), call=call)


@pytest.mark.parametrize(
    ("transform", "message", "meant"),
    [
        (FixArguments({"repo_pth": "."}), "no tool has an argument 'repo_pth'.", "repo_path"),
        (FixArguments({"repo_path": ".", "dept": 1}), "no tool has an argument 'dept'.", "depth"),
        (FixArguments({"depth": 1}, tools="gti:*"), "no tool matches 'gti:*'.", "Available: git_status, git:git_st"),
        (FixArguments({"depth": 1}, tools=iter(["git_statu"])), "no tool matches 'git_statu'.", "git_status"),
        (DefaultArguments({"dpth": 1}), "no tool has an argument 'dpth'.", "depth"),
        (RenameArguments({"repopath": "folder"}), "no tool has an argument 'repopath'.", "repo_path"),
        (RenameTools({"git_statsu": "s"}), "no tool matches 'git_statsu'.", "git_status"),
        (RenameTools({"git_push": "p", "git:git_psh": "s"}), "no tool matches 'git:git_psh'.", "git:git_push"),
    ],
)
def test_a_name_that_no_tool_has_is_refused_with_the_nearest(transform: Transform, message: str, meant: str) -> None:
    with pytest.raises(UsageError) as raised:
        tools(git=["git_status", "git_push"]).transformed(transform=transform)
    assert raised.value.message == f"{type(transform).__name__}: {message}"
    assert meant in raised.value.remedy


@pytest.mark.parametrize(
    "transform",
    [
        KeepTools("gti:*"),
        DropTools("nothing"),
        ForTools("nothing", FixArguments({"repo_pth": "."})),
        RenameTools(lambda offer: f"{offer.name}2"),
        FixArguments({"repo_path": "."}, tools=lambda offer: offer.server == "svn"),
    ],
)
def test_filters_and_functions_may_choose_nothing(transform: Transform) -> None:
    assert tools(git=["git_status"]).transformed(transform=transform).unmatched == ()


def test_names_are_matched_against_the_result_of_the_transforms_before() -> None:
    both = tools(git=["git_status"], svn=["svn_log"])
    chain: list[Transform] = [RenameArguments({"repo_path": "folder"}), FixArguments({"folder": "."})]
    assert both.transformed(transform=chain).unmatched == ()
    prefixed = both.transformed(transform=[PrefixTools("x"), RenameTools({"x_git_status": "state"})])
    assert prefixed.names == ("state", "x_svn_log")
    assert prefixed["git:state"] is prefixed["git:git_status"] is prefixed["state"]
    with pytest.raises(UsageError, match="svn_log"):
        both.transformed(drop="svn:*", transform=RenameTools({"svn_log": "log"}))
    assert both.transformed(drop="*", transform=FixArguments({"anything": 1})).names == ()
    with pytest.raises(UsageError, match="empty"):
        PrefixTools("")


def test_only_names_that_match_nowhere_are_common_errors() -> None:
    typo, for_git = FixArguments({"repo_pth": "."}), RenameTools({"git_status": "state"})
    taken = [
        one.transformed(transform=[typo, for_git], unmatched=UnmatchedNames.TAKEN)
        for one in (tools(git=["git_status"]), tools(svn=["svn_log"]))
    ]
    assert [len(one.unmatched) for one in taken] == [1, 2]
    assert [one.data for one in common_errors(one.unmatched for one in taken)] == [{"argument": "repo_pth"}]
    assert common_errors([]) == []


class Provider(ToolProvider):
    """One server with one tool, in some state."""

    catalog = catalog(git=[{"name": "git_status", "inputSchema": REPO}])

    def __init__(self, state: ServerState) -> None:
        self.bus = Bus()
        self.state = state

    def status(self) -> dict[str, ServerStatus]:
        return {"git": ServerStatus(name="git", state=self.state, transport="stdio")}

    async def call(self, name: str, arguments: Any = None, *, timeout: float | None = None) -> Result:
        return Result.failed(f"{name} {arguments} {timeout}")


async def test_an_unknown_name_is_only_a_warning_while_a_server_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ready, typo = Provider(ServerState.READY), FixArguments({"repo_pth": "."})
    with pytest.raises(UsageError, match="repo_pth"):
        ready.tools(transform=typo)
    with caplog.at_level(logging.WARNING):
        assert Provider(ServerState.FAILED).tools(transform=typo).names == ("git_status",)
    assert "'repo_pth'. Did you mean repo_path" in caplog.text
    result = await ready.tools().call("git_status", {"depth": 1}, timeout=4.5)
    assert result.text == "git:git_status {'depth': 1} 4.5"


KINDS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "text": ({"type": "string", "maxLength": 3}, ["x", "yz", "long"]),
    "number": ({"type": "integer", "minimum": 1}, [1, 2, 0]),
    "colour": ({"enum": ["red", "green", None]}, ["red", None, "blue"]),
    "person": ({"$ref": "#/$defs/person"}, [{"name": "Ada"}, {"name": "x", "y": 1}, {"name": 1}]),
    "many": ({"type": "array", "items": {"$ref": "#/$defs/person"}}, [[], [{"name": "Ada"}], [1]]),
    "either": ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, [True, None, "x"]),
}
DEFS = SCHEMA["$defs"]
NAMES = ["a", "b", "c", "d"]


@st.composite
def forms(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    some = st.lists(st.sampled_from(names), unique=True, max_size=2)
    made: dict[str, Any] = {}
    if required := draw(some):
        made["required"] = required
    if draw(st.booleans()):
        made["dependentRequired"] = draw(st.dictionaries(st.sampled_from(names), some, max_size=2))
    return made


@st.composite
def schemas(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema, and the kind of each argument."""
    kinds = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(KINDS)), min_size=1))
    names = sorted(kinds)
    root: dict[str, Any] = {"type": "object", "properties": {name: KINDS[kind][0] for name, kind in kinds.items()}}
    root |= draw(forms(names))
    if draw(st.booleans()):
        root["additionalProperties"] = draw(st.booleans())
    if keyword := draw(st.sampled_from(["", "", "anyOf", "oneOf", "allOf"])):
        root[keyword] = draw(st.lists(forms(names), min_size=1, max_size=2))
        if draw(st.booleans()):
            name = draw(st.sampled_from(names))
            root[keyword][0] |= {"properties": {name: {"const": KINDS[kinds[name]][1][0]}}}
    if draw(st.booleans()):
        return {"$ref": "#/$defs/root", "$defs": {**DEFS, "root": root}}, kinds
    return {**root, "$defs": DEFS}, kinds


@st.composite
def arguments(draw: st.DrawFn, kinds: dict[str, str]) -> dict[str, Any]:
    """Mostly valid ones."""
    left_out = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=1))
    odd = draw(st.sampled_from([0, 0, 0, 2]))
    values = {name: KINDS[kind][1] for name, kind in kinds.items() if name not in left_out}
    return {name: draw(st.sampled_from(some[odd : odd + 2])) for name, some in values.items()}


@dataclass(frozen=True)
class TransformStep:
    transform: Transform
    forward: Callable[[dict[str, Any]], dict[str, Any] | None]
    """Converts arguments as the transform should; None if no arguments correspond."""


@st.composite
def steps(draw: st.DrawFn, kinds: dict[str, str]) -> TransformStep:
    """A step that does not fit the chain is refused or does nothing."""
    name = draw(st.sampled_from(sorted(kinds)))
    value = draw(st.sampled_from(KINDS[kinds[name]][1][:2]))
    new = draw(st.sampled_from(["p", "q", "a", "b"]))
    match draw(st.sampled_from(["fix", "default", "rename", "words"])):
        case "fix":
            return TransformStep(
                FixArguments({name: value}),
                lambda given: {k: given[k] for k in given if k != name} if given.get(name, value) == value else None,
            )
        case "default":
            return TransformStep(DefaultArguments({name: value}), dict)
        case "rename":
            return TransformStep(
                RenameArguments({name: new}), lambda given: {new if k == name else k: v for k, v in given.items()}
            )
        case _:
            return TransformStep(ForTools("*", DescribeTools("{name}")), dict)


@pytest.mark.req("ENG-6")
@given(st.data(), schemas())
def test_arguments_that_fit_the_offered_schema_fit_the_tools_after_any_chain(
    data: st.DataObject, schema_and_kinds: tuple[dict[str, Any], dict[str, str]]
) -> None:
    schema, kinds = schema_and_kinds
    before = copy.deepcopy(schema)
    made = replace(offer(), schema=schema)
    chain = data.draw(st.lists(steps(kinds), max_size=4))
    try:
        made = through([step.transform for step in chain], made)
    except UsageError:
        assume(False)
    assert schema == before
    guess: dict[str, Any] | None = data.draw(arguments(kinds))
    for step in chain:
        guess = None if guess is None else step.forward(guess)
    anything = st.dictionaries(
        st.sampled_from([*NAMES, "p", "q"]), st.sampled_from([v for _, values in KINDS.values() for v in values])
    )
    for shown in (guess or {}, data.draw(anything), {}):
        if fits(made.schema, shown):
            assert fits(schema, made.arguments(shown)), (made.schema, made.arguments(shown))


@pytest.mark.req("ENG-6")
@given(st.data(), schemas())
def test_arguments_that_fit_the_tool_still_fit_the_offered_schema(
    data: st.DataObject, schema_and_kinds: tuple[dict[str, Any], dict[str, str]]
) -> None:
    schema, kinds = schema_and_kinds
    own = data.draw(arguments(kinds))
    assume(own and fits(schema, own))
    fixed = data.draw(st.sampled_from(sorted(own)))
    made = through(
        [FixArguments({fixed: own[fixed]}), RenameArguments({"a": "p", "b": "q"})], replace(offer(), schema=schema)
    )
    shown = {{"a": "p", "b": "q"}.get(name, name): value for name, value in own.items() if name != fixed}
    assert fits(made.schema, shown)
    assert made.arguments(shown) == own


# Fixed arguments: the model neither gives nor sees them, whatever the server's schema is.

SECRET = "FIXED-SECRET-99"
NAMED: dict[str, Any] = {"properties": {"path": {"type": "string"}}}
HIDING: dict[str, dict[str, Any]] = {
    "anchor": {"$ref": "#here", "$defs": {"a": {"$anchor": "here", **NAMED}}},
    "dynamic": {"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here", **NAMED}}},
    "identifier": {"$ref": "urn:x", "$defs": {"a": {"$id": "urn:x", **NAMED}}},
    "deep": {"$ref": "#/$defs/a/x", "$defs": {"a": {"x": NAMED}}},
    "beside": {"$ref": "#/properties/q", "properties": {"q": NAMED}},
    "escaped": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": NAMED}},
    "percent": {"$ref": "#/$defs/a%20b", "$defs": {"a b": NAMED}},
    "late": {"allOf": [NAMED, *({"title": str(number)} for number in range(2_500))]},
}
SILENT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "anything": {"additionalProperties": {"type": "string"}},
    "pattern": {"patternProperties": {"^pa": {"type": "string"}}},
}
OTHER: dict[str, Any] = {"properties": {"q": {"type": "string"}}}
CLOSED: dict[str, Any] = {**OTHER, "additionalProperties": False}


FIX = FixArguments({"path": "/safe"})


class FakeServer:
    def __init__(self, refuses: str = "") -> None:
        self.calls: list[dict[str, Any]] = []
        self._refuses = refuses

    async def call(self, tool: Tool, arguments: dict[str, Any], *, timeout: float | None = None) -> Any:
        if self._refuses:
            raise InvalidArguments(f"arguments.{self._refuses} must not be {arguments[self._refuses]!r}")
        self.calls.append(arguments)


def tools_of(server: FakeServer, **schemas: dict[str, Any]) -> Tools:
    definitions = [{"name": name, "inputSchema": {"type": "object", **one}} for name, one in schemas.items()]
    return Tools(map(OfferedTool.of, catalog(s=definitions).tools), call=server.call)


def assert_hidden(raised: pytest.ExceptionInfo[InvalidArguments]) -> None:
    assert SECRET not in repr((raised.value.text(), raised.value.data))


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("where", HIDING)
async def test_a_fixed_argument_is_set_however_the_schema_refers_to_it(where: str) -> None:
    server = FakeServer()
    shaped = tools_of(server, t=HIDING[where]).transformed(transform=FIX)
    await shaped.call("t", {"path": "/etc"})
    await shaped.call("t", {})
    assert server.calls == [{"path": "/safe"}, {"path": "/safe"}]


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("schema", [*SILENT.values(), OTHER])
async def test_a_tool_without_the_argument_gets_no_value_for_it(schema: dict[str, Any]) -> None:
    server = FakeServer()
    shaped = tools_of(server, plain=NAMED, t=schema).transformed(transform=FIX)
    await shaped.call("t", {"path": "/etc", "q": "x"})
    assert server.calls == [{"q": "x"}], "the value is meant for other tools"


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("schema", [*SILENT.values(), OTHER])
@pytest.mark.parametrize("fix", [FixArguments({"path": "/safe"}, tools=["t", "plain"]), ForTools(["s:t"], FIX)])
async def test_a_tool_selected_by_name_gets_the_argument_whatever_its_schema(
    schema: dict[str, Any], fix: Transform
) -> None:
    server = FakeServer()
    shaped = tools_of(server, plain=NAMED, t=schema).transformed(transform=fix)
    await shaped.call("t", {"path": "/etc"})
    await shaped.call("t", {"q": "x"})
    assert [one["path"] for one in server.calls] == ["/safe", "/safe"]


async def test_a_tool_selected_by_a_pattern_gets_the_argument_if_its_schema_has_or_allows_it() -> None:
    server = FakeServer()
    shaped = tools_of(server, t_named=NAMED, t_silent={}, t_other=OTHER, t_closed=CLOSED).transformed(
        transform=FixArguments({"path": "/safe"}, tools="t_*")
    )
    for name in shaped.names[:3]:
        await shaped.call(name, {"path": "/etc"})
    assert server.calls == [{"path": "/safe"}, {"path": "/safe"}, {}]
    await shaped.call("t_closed", {"q": "x"})
    assert server.calls[-1] == {"q": "x"}


@pytest.mark.parametrize("schema", [CLOSED, {**OTHER, "unevaluatedProperties": False}])
def test_fixing_an_argument_of_a_closed_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="s:t does not accept the value given for its argument 'path'"):
        fix = FixArguments({"path": "/safe"}, tools=["t", "plain"])
        tools_of(FakeServer(), t=schema, plain=NAMED).transformed(transform=fix)


def test_a_fixed_value_is_checked_against_patterns_too() -> None:
    schema = {"properties": {"token": {"type": "string"}}, "patternProperties": {"^to": {"maxLength": 3}}}
    with pytest.raises(UsageError, match="'token'") as raised:
        tools_of(FakeServer(), t=schema).transformed(transform=FixArguments({"token": SECRET}))
    assert SECRET not in raised.value.text()


TWO: dict[str, Any] = {"properties": {"token": {"type": "string"}, "q": {"type": "string"}}}


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize(
    ("more", "given", "error"),
    [
        ({"allOf": [{"patternProperties": {"^to": {"maxLength": 3}}}]}, {"word": "x"}, "conflict with fixed arguments"),
        ({"not": {"required": ["token", "q"]}}, {"word": "x"}, "conflict with fixed arguments"),
        ({"allOf": [{"patternProperties": {"^q": {"maxLength": 3}}}]}, {"word": "long"}, 'arguments.word .*: "long"'),
        ({"dependentRequired": {"token": ["else"]}}, {"word": "x"}, 'must have "else"'),
    ],
)
async def test_an_error_shows_only_the_models_own_arguments(
    more: dict[str, Any], given: dict[str, Any], error: str
) -> None:
    server = FakeServer()
    # Without a schema, the error appears only in the call.
    open_schema = ChangeSchema(lambda _: {"type": "object"}, lambda given: given)
    chain = [RenameArguments({"q": "word"}), open_schema, FixArguments({"token": SECRET}, tools="t")]
    shaped = tools_of(server, t={**TWO, **more}).transformed(transform=chain)
    with pytest.raises(InvalidArguments, match=error) as raised:
        await shaped.call("t", given)
    assert_hidden(raised)
    assert raised.value.data["schema"] == {"type": "object"}
    assert server.calls == []


async def test_a_servers_error_about_fixed_arguments_is_hidden() -> None:
    shaped = tools_of(FakeServer(refuses="token"), t=TWO).transformed(transform=FixArguments({"token": SECRET}))
    with pytest.raises(InvalidArguments, match="t rejects these arguments") as raised:
        await shaped.call("t", {"q": "x"})
    assert_hidden(raised)
    with pytest.raises(InvalidArguments, match="mine"):
        await tools_of(FakeServer(refuses="token"), t=TWO).call("t", {"token": "mine"})


async def test_values_that_an_undo_function_adds_are_hidden_too() -> None:
    def undo(given: dict[str, Any]) -> dict[str, Any]:
        given["q"]["key"] = SECRET
        return given

    schema = {"properties": {"q": {"type": "object", "properties": {"key": {"type": "integer"}}}}}
    shaped = tools_of(FakeServer(), t=schema).transformed(transform=ChangeSchema(lambda _: {"type": "object"}, undo))
    with pytest.raises(InvalidArguments) as raised:
        await shaped.call("t", {"q": {"a": 1}})
    assert_hidden(raised)
