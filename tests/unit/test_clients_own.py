"""What a client adds to a call for itself does not reach the server."""

from __future__ import annotations

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


def test_what_gemini_adds_is_taken_out_and_every_other_value_keeps_its_bytes() -> None:
    params = {"arguments": Raw(b'{"size": 1.00, "wait_for_previous": true, "path": "a"}'), "task": Raw(b"{}")}
    assert without_client_arguments(PLAIN, params) == {
        "arguments": Raw(b'{"size":1.00,"path":"a"}'),
        "task": Raw(b"{}"),
    }


def test_a_tool_that_has_such_a_parameter_gets_it() -> None:
    params = {"arguments": Raw(b'{"wait_for_previous": true}')}
    assert without_client_arguments(WAITING, params) is params


@given(st.one_of(st.none(), st.binary(), st.just(b'["wait_for_previous"]'), st.just(b'{"text": "wait_for_previous"}')))
def test_whatever_else_comes_passes_as_it_is(arguments: bytes | None) -> None:
    params = {} if arguments is None else {"arguments": Raw(arguments)}
    passed = without_client_arguments(PLAIN, params)
    if passed is not params:
        assert msgspec.json.decode(passed["arguments"]) == {"text": "wait_for_previous"}
