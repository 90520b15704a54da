"""Arguments that a client adds for itself do not reach the server."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from toolcrib.calls.door import without_client_arguments
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool

pytestmark = pytest.mark.req("FRG-5")


def tool(**properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    raw = msgspec.json.encode({"name": "write", "inputSchema": schema})
    return Catalog.build({"files": (raw,)}, version=1).tools[0]


PLAIN, WAITING = tool(path={"type": "string"}), tool(wait_for_previous={"type": "boolean"})


def test_an_argument_that_gemini_adds_is_removed_and_other_bytes_stay():
    params = {"arguments": Raw(b'{"size": 1.00, "wait_for_previous": true, "path": "a"}'), "task": Raw(b"{}")}
    expected = {"arguments": Raw(b'{"size":1.00,"path":"a"}'), "task": Raw(b"{}")}
    assert without_client_arguments(PLAIN, params) == expected


def test_a_tool_with_such_a_parameter_gets_it():
    params = {"arguments": Raw(b'{"wait_for_previous": true}')}
    assert without_client_arguments(WAITING, params) is params


@given(st.one_of(st.none(), st.binary(), st.just(b'["wait_for_previous"]'), st.just(b'{"text": "wait_for_previous"}')))
def test_all_other_arguments_are_passed_unchanged(arguments):
    params = {} if arguments is None else {"arguments": Raw(arguments)}
    passed = without_client_arguments(PLAIN, params)
    if passed is not params:
        assert msgspec.json.decode(passed["arguments"]) == {"text": "wait_for_previous"}
