"""Arguments that the program fixed: the model neither gives nor sees them, whatever the server's schema is."""

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


FIX = FixArguments({"path": "/safe"})


class FakeServer:
    def __init__(self, refuses: str = "") -> None:
        self.calls: list[dict[str, Any]] = []
        self._refuses = refuses

    async def call(self, tool: Tool, arguments: dict[str, Any], *, timeout: float | None = None) -> Any:
        if self._refuses:
            raise InvalidArguments(f"arguments.{self._refuses} must not be {arguments[self._refuses]!r}")
        self.calls.append(arguments)


def tools(server: FakeServer, **schemas: dict[str, Any]) -> Tools:
    definitions = [{"name": name, "inputSchema": {"type": "object", **one}} for name, one in schemas.items()]
    catalog = Catalog.build({"s": tuple(map(msgspec.json.encode, definitions))}, version=1)
    return Tools(map(OfferedTool.of, catalog.tools), call=server.call)


def assert_hidden(raised: pytest.ExceptionInfo[InvalidArguments]) -> None:
    assert SECRET not in repr((raised.value.text(), raised.value.data))


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("where", HIDING)
async def test_a_fixed_argument_is_set_however_the_schema_refers_to_it(where: str) -> None:
    server = FakeServer()
    shaped = tools(server, t=HIDING[where]).transformed(transform=FIX)
    await shaped.call("t", {"path": "/etc"})
    await shaped.call("t", {})
    assert server.calls == [{"path": "/safe"}, {"path": "/safe"}]


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("schema", [*SILENT.values(), OTHER])
async def test_a_tool_without_the_argument_gets_no_value_for_it(schema: dict[str, Any]) -> None:
    server = FakeServer()
    shaped = tools(server, plain=NAMED, t=schema).transformed(transform=FIX)
    await shaped.call("t", {"path": "/etc", "q": "x"})
    assert server.calls == [{"q": "x"}], "the value is meant for other tools"


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("schema", [*SILENT.values(), OTHER])
@pytest.mark.parametrize("fix", [FixArguments({"path": "/safe"}, tools=["t", "plain"]), ForTools(["s:t"], FIX)])
async def test_a_tool_selected_by_name_gets_the_argument_whatever_its_schema(
    schema: dict[str, Any], fix: Transform
) -> None:
    server = FakeServer()
    shaped = tools(server, plain=NAMED, t=schema).transformed(transform=fix)
    await shaped.call("t", {"path": "/etc"})
    await shaped.call("t", {"q": "x"})
    assert [one["path"] for one in server.calls] == ["/safe", "/safe"]


async def test_a_tool_selected_by_a_pattern_gets_the_argument_if_its_schema_has_or_allows_it() -> None:
    server = FakeServer()
    shaped = tools(server, t_named=NAMED, t_silent={}, t_other=OTHER, t_closed=CLOSED).transformed(
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
        tools(FakeServer(), t=schema, plain=NAMED).transformed(transform=fix)


def test_a_fixed_value_is_checked_against_patterns_too() -> None:
    schema = {"properties": {"token": {"type": "string"}}, "patternProperties": {"^to": {"maxLength": 3}}}
    with pytest.raises(UsageError, match="'token'") as raised:
        tools(FakeServer(), t=schema).transformed(transform=FixArguments({"token": SECRET}))
    assert SECRET not in raised.value.text()


TWO: dict[str, Any] = {"properties": {"token": {"type": "string"}, "q": {"type": "string"}}}


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize(
    ("more", "given", "error"),
    [
        ({"allOf": [{"patternProperties": {"^to": {"maxLength": 3}}}]}, {"word": "x"}, "conflict with fixed arguments"),
        ({"not": {"required": ["token", "q"]}}, {"word": "x"}, "conflict with fixed arguments"),
        ({"allOf": [{"patternProperties": {"^q": {"maxLength": 3}}}]}, {"word": "long"}, 'arguments.word .*: "long"'),
        ({"dependentRequired": {"token": ["else"]}}, {"word": "x"}, 'needs the property "else"'),
    ],
)
async def test_an_error_shows_only_the_models_own_arguments(
    more: dict[str, Any], given: dict[str, Any], error: str
) -> None:
    server = FakeServer()
    # Without a schema, the error appears only in the call.
    open_schema = ChangeSchema(lambda _: {"type": "object"}, lambda given: given)
    chain = [RenameArguments({"q": "word"}), open_schema, FixArguments({"token": SECRET}, tools="t")]
    shaped = tools(server, t={**TWO, **more}).transformed(transform=chain)
    with pytest.raises(InvalidArguments, match=error) as raised:
        await shaped.call("t", given)
    assert_hidden(raised)
    assert raised.value.data["schema"] == {"type": "object"}
    assert server.calls == []


async def test_a_servers_error_about_fixed_arguments_is_hidden() -> None:
    shaped = tools(FakeServer(refuses="token"), t=TWO).transformed(transform=FixArguments({"token": SECRET}))
    with pytest.raises(InvalidArguments, match="t does not take these arguments") as raised:
        await shaped.call("t", {"q": "x"})
    assert_hidden(raised)
    with pytest.raises(InvalidArguments, match="mine"):
        await tools(FakeServer(refuses="token"), t=TWO).call("t", {"token": "mine"})


async def test_values_that_an_undo_function_adds_are_hidden_too() -> None:
    def undo(given: dict[str, Any]) -> dict[str, Any]:
        given["q"]["key"] = SECRET
        return given

    schema = {"properties": {"q": {"type": "object", "properties": {"key": {"type": "integer"}}}}}
    shaped = tools(FakeServer(), t=schema).transformed(transform=ChangeSchema(lambda _: {"type": "object"}, undo))
    with pytest.raises(InvalidArguments) as raised:
        await shaped.call("t", {"q": {"a": 1}})
    assert_hidden(raised)
