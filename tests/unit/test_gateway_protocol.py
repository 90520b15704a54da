"""The era of a request follows from its body, and a modern one must say the same in body and headers."""

import json

import pytest

from toolcrib.errors import HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_VERSION
from toolcrib.gateway import protocol
from toolcrib.gateway.messages import Rejected, read_message
from toolcrib.servers.model import MODERN_VERSION, Era

META = {protocol.VERSION_KEY: MODERN_VERSION, protocol.CAPABILITIES_KEY: {}}


def message(method="tools/call", meta=META, **params):
    if meta is not None:
        params["_meta"] = meta
    return read_message(json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode())


def headers(method="tools/call", version=MODERN_VERSION, name="a_b"):
    said = {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": name}
    return {key: value for key, value in said.items() if value is not None}


@pytest.mark.parametrize(
    ("said", "header", "era"),
    [
        (message(), None, Era.MODERN),
        (message(), "2025-06-18", Era.MODERN),
        (message(meta=None), None, Era.LEGACY),
        (message(meta={"progressToken": 1}), "2025-06-18", Era.LEGACY),
        (message(meta=None), MODERN_VERSION, Era.MODERN),
        (message(meta=None), "2099-01-01", Era.MODERN),
        (message("initialize", meta=None), MODERN_VERSION, Era.LEGACY),
        (message("initialize"), MODERN_VERSION, Era.MODERN),
    ],
)
def test_the_body_decides_the_era_and_the_header_where_the_body_is_silent(said, header, era):
    assert protocol.era_of(said, header) is era


def test_a_coherent_modern_request_passes():
    protocol.check_modern(message(name="a_b"), headers())
    protocol.check_modern(message("tools/list"), headers("tools/list", name=None))
    protocol.check_modern(message(name="grüße"), headers(name="=?base64?Z3LDvMOfZQ==?="))


@pytest.mark.parametrize(
    ("said", "sent", "code"),
    [
        (message(meta=None, name="a_b"), headers(), INVALID_PARAMS),
        (message(meta={protocol.VERSION_KEY: MODERN_VERSION}, name="a_b"), headers(), INVALID_PARAMS),
        (message(name="a_b"), headers(version="2025-06-18"), HEADER_MISMATCH),
        (message(name="a_b"), headers(version=None), HEADER_MISMATCH),
        (message(name="a_b"), headers("tools/list"), HEADER_MISMATCH),
        (message(name="a_b"), headers(name="a_c"), HEADER_MISMATCH),
        (message(name="a_b"), headers(name=None), HEADER_MISMATCH),
        (message(name="a_b"), headers(name="=?base64?!!?="), HEADER_MISMATCH),
        (message(meta={**META, protocol.VERSION_KEY: "2099-01-01"}, name="a_b"), headers(version="2099-01-01"), -32022),
        (message(meta={**META, protocol.VERSION_KEY: 3}, name="a_b"), None, INVALID_PARAMS),
    ],
)
def test_the_first_rung_that_fails_is_the_answer(said, sent, code):
    with pytest.raises(Rejected) as caught:
        protocol.check_modern(said, sent)
    assert caught.value.code == code
    if code == UNSUPPORTED_VERSION:
        assert caught.value.data == {"supported": [MODERN_VERSION], "requested": "2099-01-01"}


def test_what_belongs_to_the_connection_is_not_passed_on():
    meta = {**META, "progressToken": 5, "claudecode/toolUseId": "x"}
    assert protocol.forwarded_meta(meta) == {"claudecode/toolUseId": "x"}


@pytest.mark.req("ENG-9")
@pytest.mark.parametrize(
    "result",
    [
        *(b'{"content":[],"x":null}', b' {\n "content" : [ ] }', b"{}", b"{ }"),
        *(b'{"content":[],"resultType":null}', b'{"resultType":3,"a":"\\u00e9"}'),
        b'{"content":[{"type":"text","text":"\\"resultType\\":\\"x\\""}],"structuredContent":{"resultType":"x"}}',
    ],
)
def test_a_result_without_its_type_is_given_one_for_a_modern_client_and_otherwise_untouched(result):
    assert protocol.tool_result(result, client=Era.LEGACY) == result
    given = protocol.tool_result(result, client=Era.MODERN)
    # No key twice.
    assert json.loads(given, object_pairs_hook=list).count(("resultType", "complete")) == 1
    assert json.loads(given) == {**json.loads(result), "resultType": "complete"}


@pytest.mark.parametrize("result", [b'{"resultType":"complete"}', b'{ "content":[], "resultType" : "input_required" }'])
def test_a_result_that_has_its_type_keeps_its_bytes(result):
    assert protocol.tool_result(result, client=Era.MODERN) is result
