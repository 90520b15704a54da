"""What transforms make of an offer, and how a call finds back."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import OfferedTool, destructive
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
    apply_transforms,
)
from toolcrib.errors import UsageError

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
    return OfferedTool.of(Catalog.build({"git": (msgspec.json.encode(definition),)}, version=1).tools[0])


def through(chain: list[Transform] | Transform, made: OfferedTool | None = None) -> OfferedTool:
    return apply_transforms([made or offer()], chain)[0]


def fits(schema: Any, arguments: Any) -> bool:
    return bool(validator_for(dict(schema)).is_valid(arguments))


def test_a_name_by_a_table_or_a_function_and_a_prefix() -> None:
    assert through(RenameTools({"git_log": "log", "other": "x"})).name == "log"
    assert through(RenameTools({"git:git_log": "log"})).name == "log"
    assert through(RenameTools({"svn:git_log": "log"})).name == "git_log"
    assert through(RenameTools(lambda it: it.name.removeprefix(f"{it.server}_"))).name == "log"
    assert through([PrefixTools("mcp"), PrefixTools("a")]).name == "a_mcp_git_log"


def test_words_by_a_function_or_a_text_whose_places_are_filled_once() -> None:
    tricky = offer(description="{server} {name} {unknown}")
    assert through(DescribeTools("[{server}] {name}: {description} {}"), tricky).description == (
        "[git] git_log: {server} {name} {unknown} {}"
    )
    assert through(DescribeTools(lambda it: it.description.upper())).description == "SHOWS THE LOG."
    with pytest.raises(UsageError, match=r"no \{tool\}") as raised:
        DescribeTools("{tool}")
    assert raised.value.remedy == "It may hold {server}, {name}, {description}."


@pytest.mark.req("ENG-6")
def test_a_fixed_argument_is_out_of_the_schema_and_in_every_call() -> None:
    fixed = through(FixArguments({"repo_path": "/srv", "nowhere": 1}))
    assert fixed.schema == {
        **{key: value for key, value in SCHEMA.items() if key != "required"},
        "properties": {name: one for name, one in SCHEMA["properties"].items() if name != "repo_path"},
        "required": ["author"],
    }
    assert fixed.arguments({"depth": 2}) == {"repo_path": "/srv", "depth": 2}
    assert fixed.arguments({"repo_path": "/etc"}) == {"repo_path": "/srv"}


def test_arguments_are_fixed_only_where_they_are_meant() -> None:
    untouched = through(FixArguments({"repo_path": "."}, tools=["svn:*", "x"]))
    assert untouched.undo == ()
    assert "repo_path" in untouched.schema["properties"]
    assert through(FixArguments({"nowhere": 1})).arguments({"depth": 1}) == {"depth": 1}


@pytest.mark.parametrize("kind", [FixArguments, DefaultArguments])
def test_a_value_that_the_tool_does_not_take_is_refused_at_once(kind: type[FixArguments | DefaultArguments]) -> None:
    with pytest.raises(UsageError, match="git:git_log does not take what is given here as its argument 'depth'"):
        through(kind({"depth": 0}))
    with pytest.raises(UsageError, match="'author'"):
        through(kind({"author": {"name": 3}}))
    through(kind({"author": {"name": "Ada"}}))


def test_a_fixed_value_is_the_programs_own_whatever_becomes_of_a_calls_arguments() -> None:
    given_value = {"name": "Ada"}
    fixed = through(FixArguments({"author": given_value}))
    given_value["name"] = "Eve"
    fixed.arguments({})["author"]["name"] = "Mallory"
    assert fixed.arguments({}) == {"author": {"name": "Ada"}}


def test_a_default_need_not_be_given_and_gives_way_to_what_is() -> None:
    made = through(DefaultArguments({"repo_path": "."}))
    assert made.schema["required"] == ["author"]
    assert made.schema["properties"]["repo_path"] == {"type": "string", "description": "Where.", "default": "."}
    assert made.arguments({}) == {"repo_path": "."}
    assert made.arguments({"repo_path": "x"}) == {"repo_path": "x"}


def test_arguments_under_other_names_keep_their_places() -> None:
    made = through(RenameArguments({"repo_path": "folder", "depth": "repo_path"}))
    assert list(made.schema["properties"]) == ["folder", "repo_path", "author"]
    assert made.schema["required"] == ["folder", "author"]
    assert made.arguments({"folder": ".", "repo_path": 3}) == {"repo_path": ".", "depth": 3}
    assert through(RenameArguments({"depth": "levels"})).arguments({"depth": 1, "levels": 2}) == {"depth": 2}
    with pytest.raises(UsageError, match="two arguments 'depth'"):
        through(RenameArguments({"repo_path": "depth"}))


@pytest.mark.req("ENG-6")
def test_a_chain_is_undone_from_its_end() -> None:
    made = through(
        [
            RenameArguments({"repo_path": "a"}),
            RenameArguments({"a": "b"}),
            FixArguments({"depth": 3}),
            DefaultArguments({"b": "."}),
        ]
    )
    assert set(made.schema["properties"]) == {"b", "author"}
    assert made.arguments({}) == {"repo_path": ".", "depth": 3}
    assert made.arguments({"b": "x", "depth": 9}) == {"repo_path": "x", "depth": 3}


def test_a_schema_can_be_changed_by_hand_with_a_way_back() -> None:
    def flat(schema: dict[str, Any]) -> dict[str, Any]:
        del schema["properties"]["author"]
        schema["properties"]["author_name"] = {"type": "string"}
        schema["required"] = ["repo_path", "author_name"]
        return schema

    before = copy.deepcopy(SCHEMA)
    made = through(ChangeSchema(flat, lambda given: {"author": {"name": given.pop("author_name")}, **given}))
    assert made.tool.input_schema == before, "the function had a copy"
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
def test_a_transform_of_ones_own_takes_five_lines() -> None:
    def shout(it: OfferedTool) -> OfferedTool | None:
        if it.server != "git":
            return None
        words = it.description.upper()
        return replace(it, description=words)

    assert through([shout, PrefixTools("mcp")]).description == "SHOWS THE LOG."
    assert through(shout).name == "git_log"


def test_what_is_said_of_an_argument_elsewhere_in_the_schema_is_changed_too() -> None:
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
    assert not fits(made.schema, {"path": "x"}), "what must come with the fixed one must come"
    renamed = through(RenameArguments({"path": "file"}), offer(schema))
    assert fits(renamed.schema, {"kind": "file", "file": "x", "mode": 1})
    assert not fits(renamed.schema, {"kind": "file", "path": "x", "mode": 1})


def test_a_root_that_only_refers_to_a_definition_is_unfolded_and_the_definitions_stay() -> None:
    schema = {"$ref": "#/$defs/args", "$defs": {"args": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}}
    made = through(RenameArguments({"a": "b"}), offer(schema))
    assert made.schema == {
        "type": "object",
        "properties": {"b": {}},
        "required": ["b"],
        "$defs": schema["$defs"],
    }
    recursive = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"x": {}}}}}
    assert "y" in through(RenameArguments({"x": "y"}), offer(recursive)).schema["properties"]


def test_a_schema_made_of_ever_more_references_takes_no_longer_than_any_other() -> None:
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
def test_no_schema_breaks_a_transform_or_is_changed_by_it(schema: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    for step in (FixArguments({"a": 1}), DefaultArguments({"b": 1}), RenameArguments({"a": "z", "b": "a"})):
        try:
            msgspec.json.encode(through(step, replace(offer(), schema=schema)).schema)
        except UsageError:
            continue
    assert schema == before


# Any chain: what fits the schema that is shown reaches the tool as what fits its own.

KINDS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "text": ({"type": "string", "maxLength": 3}, ["x", "yz", "long"]),
    "number": ({"type": "integer", "minimum": 1}, [1, 2, 0]),
    "colour": ({"enum": ["red", "green", None]}, ["red", None, "blue"]),
    "person": ({"$ref": "#/$defs/person"}, [{"name": "Ada"}, {"name": "x", "y": 1}, {"name": 1}]),
    "many": ({"type": "array", "items": {"$ref": "#/$defs/person"}}, [[], [{"name": "Ada"}], [1]]),
    "either": ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, [True, None, "x"]),
}
DEFS = {"person": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
NAMES = ["a", "b", "c", "d"]


@st.composite
def forms(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """What may stand at the root, or in a branch of it."""
    some = st.lists(st.sampled_from(names), unique=True, max_size=2)
    made: dict[str, Any] = {}
    if required := draw(some):
        made["required"] = required
    if draw(st.booleans()):
        made["dependentRequired"] = draw(st.dictionaries(st.sampled_from(names), some, max_size=2))
    return made


@st.composite
def schemas(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema, and what kind of value each of its arguments is."""
    kinds = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(KINDS)), min_size=1))
    names = sorted(kinds)
    root: dict[str, Any] = {"type": "object", "properties": {name: KINDS[kind][0] for name, kind in kinds.items()}}
    root |= draw(forms(names))
    if draw(st.booleans()):
        root["additionalProperties"] = draw(st.booleans())
    if word := draw(st.sampled_from(["", "", "anyOf", "oneOf", "allOf"])):
        root[word] = draw(st.lists(forms(names), min_size=1, max_size=2))
        if draw(st.booleans()):
            name = draw(st.sampled_from(names))
            root[word][0] |= {"properties": {name: {"const": KINDS[kinds[name]][1][0]}}}
    if draw(st.booleans()):
        return {"$ref": "#/$defs/root", "$defs": {**DEFS, "root": root}}, kinds
    return {**root, "$defs": DEFS}, kinds


@st.composite
def arguments(draw: st.DrawFn, kinds: dict[str, str]) -> dict[str, Any]:
    """Mostly such as the tool takes."""
    left_out = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=1))
    odd = draw(st.sampled_from([0, 0, 0, 2]))
    values = {name: KINDS[kind][1] for name, kind in kinds.items() if name not in left_out}
    return {name: draw(st.sampled_from(some[odd : odd + 2])) for name, some in values.items()}


@dataclass(frozen=True)
class Step:
    transform: Transform
    forward: Callable[[dict[str, Any]], dict[str, Any] | None]
    """From arguments before it to those after it; None where there are none such."""


@st.composite
def steps(draw: st.DrawFn, kinds: dict[str, str]) -> Step:
    """A step that does not fit what came before is refused, or does nothing."""
    name = draw(st.sampled_from(sorted(kinds)))
    value = draw(st.sampled_from(KINDS[kinds[name]][1][:2]))
    new = draw(st.sampled_from(["p", "q", "a", "b"]))
    match draw(st.sampled_from(["fix", "default", "rename", "words"])):
        case "fix":
            return Step(
                FixArguments({name: value}),
                lambda given: (
                    {k: v for k, v in given.items() if k != name} if given.get(name, value) == value else None
                ),
            )
        case "default":
            return Step(DefaultArguments({name: value}), dict)
        case "rename":
            return Step(
                RenameArguments({name: new}), lambda given: {new if k == name else k: v for k, v in given.items()}
            )
        case _:
            return Step(ForTools("*", DescribeTools("{name}")), dict)


@pytest.mark.req("ENG-6")
@given(st.data(), schemas())
def test_what_fits_what_is_shown_reaches_the_tool_as_what_fits_its_own_schema(
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
def test_what_the_tool_takes_can_still_be_said_in_the_words_that_are_shown(
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
