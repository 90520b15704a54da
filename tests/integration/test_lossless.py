"""Bytes in are bytes out: what a server says of its tools and as a result reaches the client as the server wrote it."""

from __future__ import annotations

import base64
import contextlib
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
from parts.server_process import stdio_command
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

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=25,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server of each era on each transport, all alike."""
    folder = tmp_path_factory.mktemp("listings")
    servers: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        start = stack.enter_context(server_process.starting())
        for era in ERAS:
            hints = '"resultType":"complete","ttlMs":0,"cacheScope":"private",' if era == "modern" else ""
            listing = folder / f"{era}.json"
            listing.write_text(f'{{{hints}"tools":[@OWN@, {DEFINITION} ]}}')
            flags = ["--era", era, "--listing", str(listing)]
            words = stdio_command("scripted_server", *flags)
            servers[f"stdio-{era}"] = {"command": words[0], "args": words[1:]}
            for name, transport, more in (
                ("http", "http", []),
                ("stream", "http", ["--streamed"]),
                ("ws", "ws", []),
                ("sse", "sse", []),
            ):
                if era == "modern" and name in ("ws", "sse"):
                    continue
                running = start([*words, "--transport", transport, *more])
                servers[f"{name}-{era}"] = {"url": running.url(transport), "transport": _spelled(transport)}
        yield stack.enter_context(shared_daemon({"servers": servers}, ready=list(servers)))


def _spelled(transport: str) -> str:
    return {"ws": "websocket"}.get(transport, transport)


SERVERS = [f"{name}-{era}" for era in ERAS for name in ("stdio", "http", "stream")] + ["ws-legacy", "sse-legacy"]


@pytest.fixture(scope="module")
def door(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


def spoken(text: str) -> dict[str, Any]:
    """The arguments that have a server say this text as its result."""
    return {"lines": [base64.b64encode(f'{{"jsonrpc":"2.0","id":@ID@,"result":{text}}}'.encode()).decode()]}


def expected(text: str, *, client: str) -> bytes:
    """A modern client gets the result's type also where the server does not give it."""
    if client == "legacy" or '"resultType"' in text:
        return text.encode()
    inside = text.strip().removeprefix("{").lstrip()
    return ('{"resultType":"complete"' + ("" if inside == "}" else ",") + inside).encode()


def result_of(message: bytes) -> bytes:
    """The bytes of the member `result`, which is the last one."""
    head, _, rest = message.partition(b'"result":')
    assert head in (b'{"jsonrpc":"2.0","id":1,', b'{"jsonrpc":"2.0","id":5,')
    return rest.rstrip(b"\n")[:-1]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_arrives_byte_for_byte(door: Endpoint, server: str, name: str) -> None:
    text = RESULTS[name]
    params = {"name": f"{server}_say", "arguments": spoken(text)}
    assert result_of(door.modern("tools/call", params).message) == expected(text, client="modern")
    session = door.begin()
    assert result_of(door.legacy(session, "tools/call", params).message) == text.encode()


@pytest.mark.parametrize("server", SERVERS)
def test_a_result_arrives_byte_for_byte_over_the_bridge(shared: Daemon, server: str) -> None:
    with SocketClient(shared) as pipe:
        for name, text in RESULTS.items():
            pipe.send(request("tools/call", {"name": f"{server}_say", "arguments": spoken(text)}, id=5))
            line = pipe.line()
            while b'"id":5' not in line[:30]:
                line = pipe.line()
            assert result_of(line) == expected(text, client="modern"), name


@pytest.mark.parametrize("server", ["http-legacy", "stream-modern"])
def test_a_pretty_printed_result_arrives_with_all_it_says(door: Endpoint, server: str) -> None:
    value = {"content": [{"type": "text", "text": "a\nb"}], "structuredContent": {"x": [1, 2]}}
    text = json.dumps(value, indent=2)
    if server == "stream-modern":
        text = text.replace("\n", "\r\ndata: ")
    told = door.call(f"{server}_say", spoken(text)).result
    assert {key: told[key] for key in value} == value


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.req("ENG-3", "BNS-4")
def test_a_definition_arrives_byte_for_byte_but_for_its_name(door: Endpoint, server: str) -> None:
    wanted = DEFINITION.replace('{"name":"odd", ', f'{{"name":"{server}_odd",').encode()
    session = door.begin()
    for answer in (door.modern("tools/list"), door.legacy(session, "tools/list")):
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
def test_any_result_arrives_byte_for_byte(door: Endpoint, server: str, value: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    answer = door.modern("tools/call", {"name": f"{server}_say", "arguments": spoken(text)})
    assert result_of(answer.message) == expected(text, client="modern")


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    arguments=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), json_values, max_size=5)
)
def test_any_arguments_arrive_at_the_server(raw_door: Endpoint, arguments: dict[str, Any]) -> None:
    told = raw_door.call("raw_ok", arguments).result["structuredContent"]["arguments"]
    assert json.dumps(told) == json.dumps(arguments)


@pytest.fixture(scope="module")
def raw_door() -> Iterator[Endpoint]:
    words = stdio_command("raw_server")
    with shared_daemon({"servers": {"raw": {"command": words[0], "args": words[1:]}}}, ready=["raw"]) as daemon:
        yield Endpoint(daemon)


def test_the_params_of_a_call_reach_the_server_as_they_were_written(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    words = stdio_command("raw_server", "--seen", str(seen))
    arguments = r'{"n":1.0,"big":123456789012345678901234567890,"e":1E+2,"t":"\u00e9\/","a": [ null ],"":{}}'
    with shared_daemon({"servers": {"raw": {"command": words[0], "args": words[1:]}}}, ready=["raw"]) as daemon:
        door = Endpoint(daemon)
        body = request("tools/call", {"name": "raw_ok", "arguments": 0, "future": {"k": 1}})
        body = body.replace(b'"arguments": 0', b'"arguments": ' + arguments.encode())
        answer = door.ask(door.usual(body, *door.modern_headers("tools/call", "raw_ok")), body)
        assert answer.status == 200
    (line,) = [line for line in seen.read_bytes().splitlines() if b'"tools/call"' in line]
    assert arguments.encode() in line
    assert b'"future":{"k": 1}' in line
