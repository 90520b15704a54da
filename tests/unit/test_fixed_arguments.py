"""Arguments that the program fixed: the model neither gives them nor hears of them, whatever a server's schema says."""

from typing import Any

import msgspec
import pytest

from toolcrib.catalog import Catalog
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.tool import Tool
from toolcrib.catalog.transforms import ChangeSchema, FixArguments, ForTools, RenameArguments, Transform
from toolcrib.core.toolbox import Tools
from toolcrib.errors import InvalidArguments, UsageError

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


class Server:
    def __init__(self, refuses: str = "") -> None:
        self.saw: list[dict[str, Any]] = []
        self._refuses = refuses

    async def call(self, tool: Tool, arguments: dict[str, Any], *, timeout: float | None = None) -> Any:
        if self._refuses:
            raise InvalidArguments(f"arguments.{self._refuses} must not be {arguments[self._refuses]!r}")
        self.saw.append(arguments)


def tools(server: Server, **schemas: dict[str, Any]) -> Tools:
    listed = [
        msgspec.json.encode({"name": name, "inputSchema": {"type": "object", **one}}) for name, one in schemas.items()
    ]
    return Tools(map(OfferedTool.of, Catalog.build({"s": tuple(listed)}, version=1).tools), call=server.call)


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("where", HIDING)
async def test_a_fixed_argument_is_set_however_the_schema_refers_to_it(where: str) -> None:
    server = Server()
    shaped = tools(server, t=HIDING[where]).transformed(transform=FixArguments({"path": "/safe"}))
    await shaped.call("t", {"path": "/etc"})
    await shaped.call("t", {})
    assert server.saw == [{"path": "/safe"}, {"path": "/safe"}]


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("schema", [*SILENT.values(), OTHER])
async def test_a_tool_that_does_not_name_it_gets_neither_the_models_value_nor_the_programs(
    schema: dict[str, Any],
) -> None:
    server = Server()
    shaped = tools(server, plain=NAMED, t=schema).transformed(transform=FixArguments({"path": "/safe"}))
    await shaped.call("t", {"path": "/etc", "q": "x"})
    assert server.saw == [{"q": "x"}], "what is meant for other tools is not this server's to know"


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("schema", [*SILENT.values(), OTHER])
@pytest.mark.parametrize(
    "fix", [FixArguments({"path": "/safe"}, tools=["t", "plain"]), ForTools(["s:t"], FixArguments({"path": "/safe"}))]
)
async def test_a_tool_that_is_named_gets_it_whatever_its_schema_says(schema: dict[str, Any], fix: Transform) -> None:
    server = Server()
    shaped = tools(server, plain=NAMED, t=schema).transformed(transform=fix)
    await shaped.call("t", {"path": "/etc"})
    await shaped.call("t", {"q": "x"})
    assert [one["path"] for one in server.saw] == ["/safe", "/safe"]


async def test_of_those_meant_by_a_pattern_it_goes_to_who_names_it_or_does_not_say_what_it_takes() -> None:
    server = Server()
    shaped = tools(server, t_named=NAMED, t_silent={}, t_other=OTHER, t_closed=CLOSED).transformed(
        transform=FixArguments({"path": "/safe"}, tools="t_*")
    )
    for name in shaped.names[:3]:
        await shaped.call(name, {"path": "/etc"})
    assert server.saw == [{"path": "/safe"}, {"path": "/safe"}, {}]
    await shaped.call("t_closed", {"q": "x"})
    assert server.saw[-1] == {"q": "x"}


@pytest.mark.parametrize("schema", [CLOSED, {**OTHER, "unevaluatedProperties": False}])
def test_a_named_tool_that_cannot_take_it_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="s:t does not accept the value given for its argument 'path'"):
        tools(Server(), t=schema, plain=NAMED).transformed(
            transform=FixArguments({"path": "/safe"}, tools=["t", "plain"])
        )


def test_a_value_is_held_against_all_that_the_root_says_of_it() -> None:
    schema = {"properties": {"token": {"type": "string"}}, "patternProperties": {"^to": {"maxLength": 3}}}
    with pytest.raises(UsageError, match="'token'") as raised:
        tools(Server(), t=schema).transformed(transform=FixArguments({"token": SECRET}))
    assert SECRET not in raised.value.text()


TWO: dict[str, Any] = {"properties": {"token": {"type": "string"}, "q": {"type": "string"}}}


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize(
    ("more", "given", "told"),
    [
        ({"allOf": [{"patternProperties": {"^to": {"maxLength": 3}}}]}, {"word": "x"}, "conflict with fixed arguments"),
        ({"not": {"required": ["token", "q"]}}, {"word": "x"}, "conflict with fixed arguments"),
        ({"allOf": [{"patternProperties": {"^q": {"maxLength": 3}}}]}, {"word": "long"}, 'arguments.word .*: "long"'),
        ({"dependentRequired": {"token": ["else"]}}, {"word": "x"}, 'needs the property "else"'),
    ],
)
async def test_an_error_tells_the_models_own_arguments_by_its_own_names_and_nothing_of_the_others(
    more: dict[str, Any], given: dict[str, Any], told: str
) -> None:
    server = Server()
    # A schema that cannot say before what will be wrong, as where a program changes it by itself.
    silenced = ChangeSchema(lambda _: {"type": "object"}, lambda given: given)
    shaped = tools(server, t={**TWO, **more}).transformed(
        transform=[RenameArguments({"q": "word"}), silenced, FixArguments({"token": SECRET}, tools="t")]
    )
    with pytest.raises(InvalidArguments, match=told) as raised:
        await shaped.call("t", given)
    assert SECRET not in repr((raised.value.text(), raised.value.data))
    assert raised.value.data["schema"] == {"type": "object"}
    assert server.saw == []


async def test_what_the_far_side_says_of_arguments_that_the_model_did_not_give_is_not_passed_on() -> None:
    shaped = tools(Server(refuses="token"), t=TWO).transformed(transform=FixArguments({"token": SECRET}))
    with pytest.raises(InvalidArguments, match="t does not take these arguments") as raised:
        await shaped.call("t", {"q": "x"})
    assert SECRET not in repr((raised.value.text(), raised.value.data))
    with pytest.raises(InvalidArguments, match="mine"):
        await tools(Server(refuses="token"), t=TWO).call("t", {"token": "mine"})


async def test_a_way_back_that_changes_what_it_gets_hides_its_values_too() -> None:
    def undo(given: dict[str, Any]) -> dict[str, Any]:
        given["q"]["key"] = SECRET
        return given

    schema = {"properties": {"q": {"type": "object", "properties": {"key": {"type": "integer"}}}}}
    shaped = tools(Server(), t=schema).transformed(transform=ChangeSchema(lambda _: {"type": "object"}, undo))
    with pytest.raises(InvalidArguments) as raised:
        await shaped.call("t", {"q": {"a": 1}})
    assert SECRET not in repr((raised.value.text(), raised.value.data))
