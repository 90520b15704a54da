"""Bytes in are bytes out: tool definitions and results reach the client as the server wrote them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts import server_process
from parts.daemon import Daemon, nothing_left_behind, shared_daemon
from parts.raw_client import Endpoint, SocketClient, request
from parts.server_process import stdio_command, stdio_entry
from parts.sizes import FULL

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("ENG-9", "BNS-5")

EXAMPLES = 400 if FULL else 40
ERAS = ("modern", "legacy")
PNG = base64.b64encode(bytes(range(256))).decode()

DEFINITION = (
    r'{"name":"odd", "title":null,"description":"caf\u00e9 \ud83d\ude00 \/ \"q\" ☃\t","inputSchema":{"type":"object",'
    r'"properties":{"n":{"type":"integer","default":1.0,"maximum":1E+3},"big":{"const":123456789012345678901234567890}},'
    r'"x-vendor":[ null , {"deep":[[]]} ],"$defs":{"a/b":{}}} ,"outputSchema":{"type":"object"},"annotations":'
    r'{"readOnlyHint":true,"x":-0.0},"_meta":{"vendor.example/k":{"z":1,"a":2}},"icons":[{"src":"data:image/png;base64,'
    rf'{PNG[:40]}"}}],"execution":{{"taskSupport":"forbidden"}},"unknownField":[1e300,-1E-7,0.10,1.0]}}'
)
RESULTS = {
    "unknown fields": r'{"content":[],"unknown":{"a":[null,true]},"x-y":""}',
    "meta": r'{"content":[],"_meta":{"vendor.example/x":{"b":1,"a":[]},"progressToken":5}}',
    "an image": rf'{{"content":[{{"type":"image","data":"{PNG}","mimeType":"image/png","annotations":{{"p":1.0}}}}]}}',
    "audio": rf'{{"content":[{{"type":"audio","data":"{PNG}","mimeType":"audio/wav"}}]}}',
    "a resource link": r'{"content":[{"type":"resource_link","uri":"f:\/\/a%20b","name":"a","size":9007199254740993}]}',
    "a text resource": r'{"content":[{"type":"resource","resource":{"uri":"x:y","text":"a\r\nb\u0000","x":null}}]}',
    "a blob": rf'{{"content":[{{"type":"resource","resource":{{"uri":"x:y","blob":"{PNG}","_meta":{{}}}}}}]}}',
    "a kind from the future": r'{"content":[{"type":"hologram","data":{"x":[1,2,{"y":null}]}}]}',
    "structured content": r'{"structuredContent":{"rows":[{"a":null},{"a":1.0}],"": {}} ,"content":[]}',
    "a structured list": r'{"structuredContent":[1,[2,[3]]],"content":[]}',
    "numbers": r'{"n":[0,-0,1.0,1e300,1E-300,-0.0,1.10,123456789012345678901234567890,0.100000000000000005551115]}',
    "texts": r'{"t":["\u00e9","é","\/","\ud83d\ude00","😀","\u2028","\u007f","\b\f\n\r\t\"\\","\u0000"]}',
    "white space": '{ "content" :\t[ ] , "a":[ 1 ,2 ] }',
    "an error of the tool": r'{"isError":true,"content":[{"type":"text","text":"no"}]}',
    "nothing": "{}",
    "blanks": "{  }",
    "its own result type": r'{"resultType":"complete","content":[]}',
}

letters = st.characters(exclude_categories=["Cs"])
numbers = st.integers(min_value=-(10**40), max_value=10**40) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(letters, max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(letters, max_size=8), inner, max_size=4),
    max_leaves=25,
)
WAYS = {"http": ("http", []), "stream": ("http", ["--streamed"]), "ws": ("ws", []), "sse": ("sse", [])}
SERVERS = [f"{name}-{era}" for era in ERAS for name in ("stdio", "http", "stream")] + ["ws-legacy", "sse-legacy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Daemon]:
    """A server of each era on each transport, all alike, and `raw`, which records its messages."""
    servers: dict[str, Any] = {"raw": stdio_entry("raw_server", "--seen", str(folder / "seen"))}
    with server_process.starting() as start:
        for name in SERVERS:
            way, _, era = name.partition("-")
            hints = '"resultType":"complete","ttlMs":0,"cacheScope":"private",' if era == "modern" else ""
            listing = folder / f"{era}.json"
            listing.write_text(f'{{{hints}"tools":[@OWN@, {DEFINITION} ]}}')
            flags = ["--era", era, "--listing", str(listing)]
            if way == "stdio":
                servers[name] = stdio_entry("scripted_server", *flags)
            else:
                transport, more = WAYS[way]
                running = start(stdio_command("scripted_server", *flags, "--transport", transport, *more))
                spelled = {"ws": "websocket"}.get(transport, transport)
                servers[name] = {"url": running.url(transport), "transport": spelled}
        with shared_daemon({"servers": servers}, ready=list(servers)) as daemon:
            yield daemon


@pytest.fixture(scope="module")
def mcp(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


def spoken(text: str) -> dict[str, Any]:
    """The arguments that make a server send this text as its result."""
    return {"lines": [base64.b64encode(f'{{"jsonrpc":"2.0","id":@ID@,"result":{text}}}'.encode()).decode()]}


def expected(text: str) -> bytes:
    """A modern client gets the result's type even if the server omits it."""
    if '"resultType"' in text:
        return text.encode()
    inside = text.strip().removeprefix("{").lstrip()
    return ('{"resultType":"complete"' + ("" if inside == "}" else ",") + inside).encode()


def result_of(message: bytes) -> bytes:
    """The bytes of the member `result`, which is the last one."""
    head, _, rest = message.partition(b'"result":')
    assert head in (b'{"jsonrpc":"2.0","id":1,', b'{"jsonrpc":"2.0","id":5,')
    return rest.rstrip(b"\n")[:-1]


@pytest.mark.parametrize("server", SERVERS)
def test_a_result_arrives_byte_for_byte(mcp: Endpoint, shared: Daemon, server: str) -> None:
    session = mcp.begin()
    with SocketClient(shared) as bridge:
        for name, text in RESULTS.items():
            params = {"name": f"{server}_say", "arguments": spoken(text)}
            assert result_of(mcp.modern("tools/call", params).message) == expected(text), name
            assert result_of(mcp.legacy(session, "tools/call", params).message) == text.encode(), name
            bridge.send(request("tools/call", params, id=5))
            while b'"id":5' not in (line := bridge.line())[:30]:
                pass
            assert result_of(line) == expected(text), name


@pytest.mark.parametrize("server", ["http-legacy", "stream-modern"])
def test_a_pretty_printed_result_arrives_whole(mcp: Endpoint, server: str) -> None:
    value = {"content": [{"type": "text", "text": "a\nb"}], "structuredContent": {"x": [1, 2]}}
    text = json.dumps(value, indent=2)
    if server == "stream-modern":
        text = text.replace("\n", "\r\ndata: ")
    result = mcp.call(f"{server}_say", spoken(text)).result
    assert {key: result[key] for key in value} == value


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.req("ENG-3", "BNS-4")
def test_a_definition_arrives_byte_for_byte_but_for_its_name(mcp: Endpoint, server: str) -> None:
    wanted = DEFINITION.replace('{"name":"odd", ', f'{{"name":"{server}_odd",').encode()
    session = mcp.begin()
    for answer in (mcp.modern("tools/list"), mcp.legacy(session, "tools/list")):
        definitions = _definitions(answer.message)
        (found,) = [text for text in definitions if f'"{server}_odd"'.encode() in text]
        assert _members(found) == _members(wanted)


class _Listed(msgspec.Struct):
    tools: list[msgspec.Raw]


def _definitions(message: bytes) -> list[bytes]:
    tools = msgspec.json.decode(message, type=dict[str, msgspec.Raw])["result"]
    return [bytes(raw) for raw in msgspec.json.decode(tools, type=_Listed).tools]


def _members(definition: bytes) -> list[tuple[str, bytes]]:
    """Names and raw values, in their order."""
    return [(key, bytes(raw)) for key, raw in msgspec.json.decode(definition, type=dict[str, msgspec.Raw]).items()]


@pytest.mark.parametrize("server", ["stdio-legacy", "stream-modern"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    value=st.dictionaries(st.sampled_from(["content", "structuredContent", "_meta", "x"]), json_values),
    ascii=st.booleans(),
)
def test_any_result_arrives_byte_for_byte(mcp: Endpoint, server: str, value: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    answer = mcp.modern("tools/call", {"name": f"{server}_say", "arguments": spoken(text)})
    assert result_of(answer.message) == expected(text)


@settings(max_examples=EXAMPLES, deadline=None)
@given(arguments=st.dictionaries(st.text(letters, max_size=8), json_values, max_size=5))
def test_any_arguments_arrive_at_the_server(mcp: Endpoint, arguments: dict[str, Any]) -> None:
    received = mcp.call("raw_ok", arguments).result["structuredContent"]["arguments"]
    assert json.dumps(received) == json.dumps(arguments)


def test_the_params_of_a_call_reach_the_server_as_they_were_written(mcp: Endpoint, folder: Path) -> None:
    arguments = r'{"n":1.0,"big":123456789012345678901234567890,"e":1E+2,"t":"\u00e9\/","a": [ null ],"":{}}'
    body = request("tools/call", {"name": "raw_ok", "arguments": 0, "future": {"k": 1}})
    body = body.replace(b'"arguments": 0', b'"arguments": ' + arguments.encode())
    answer = mcp.ask(mcp.usual(body, *mcp.modern_headers("tools/call", "raw_ok")), body)
    assert answer.status == 200
    (line,) = [line for line in (folder / "seen").read_bytes().splitlines() if b'"future"' in line]
    assert arguments.encode() in line
    assert b'"future":{"k": 1}' in line
