"""Servers that send what no server should: only the call or the tool fails, and every other server continues."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Daemon, StartDaemon, nothing_left_behind, shared_daemon
from parts.raw_client import INITIALIZE, Endpoint, RawAnswer, SocketClient, legacy_request
from parts.server_process import stdio_entry
from parts.waiting import wait_for

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("BNS-10", "ENG-9")

ERAS = ("modern", "legacy")
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,48}")
TWINS = {name: stdio_entry("raw_server", "--plain", "--tools", "20") for name in ("one", "two", "One_")}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers `modern` and `legacy` record their messages."""
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="module")
def shared(seen: Path) -> Iterator[Daemon]:
    servers = {era: stdio_entry("raw_server", "--era", era, "--seen", str(seen / era), call_timeout=30) for era in ERAS}
    servers |= {f"say-{era}": stdio_entry("scripted_server", "--era", era) for era in ERAS}
    servers["healthy"] = stdio_entry("raw_server", "--plain", "--tools", "3", "--task")
    with shared_daemon({"servers": servers, "result_tokens": "off"}, ready=list(servers)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def mcp(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


@pytest.fixture(autouse=True)
def the_healthy_server_still_answers(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "mcp" in request.fixturenames:
        assert healthy(request.getfixturevalue("mcp"))


def healthy(mcp: Endpoint) -> bool:
    return bool(mcp.call("healthy_tool_00000").result["structuredContent"]["ok"])


def say(mcp: Endpoint, era: str, *lines: bytes) -> RawAnswer:
    """Makes the server send these lines; `@ID@` becomes the id of the request."""
    return mcp.call(f"say-{era}_say", {"lines": [base64.b64encode(line).decode() for line in lines]})


def result(text: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":@ID@,"result":' + text + b"}"


FINE = result(b'{"resultType":"complete","content":[{"type":"text","text":"fine"}]}')


def test_modern_clients_get_a_result_type_and_nobody_gets_a_servers_question_unchecked(mcp: Endpoint) -> None:
    session = mcp.begin()
    for era in ERAS:
        bare = {"name": f"{era}_echo_raw", "arguments": {"result": '{"content":[]}'}}
        assert mcp.modern("tools/call", bare).result == {"resultType": "complete", "content": []}, era
        assert mcp.legacy(session, "tools/call", bare).result == {"content": []}, era
    question = {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}
    asked = {"name": "modern_echo_raw", "arguments": {"result": json.dumps(question)}}
    for result in (mcp.modern("tools/call", asked).result, mcp.legacy(session, "tools/call", asked).result):
        assert result["isError"] is True
        assert "asked for roots, which it does not get" in result["content"][0]["text"]


def test_a_tool_that_demands_a_task_of_a_server_without_tasks_is_called_as_usual(mcp: Endpoint) -> None:
    listed = {tool["name"]: tool for tool in mcp.modern("tools/list").result["tools"]}
    assert listed["healthy_later"]["execution"] == {"taskSupport": "optional"}
    assert mcp.call("healthy_later").result["structuredContent"]["ok"] is True


NOISE = [
    *(b"", b"Server running on stdio", b"\xff\xfe\x00\x01", b"null", b"42", b"{}", b"[]", b"[[[[[", b"[" * 100_000),
    b'{"jsonrpc":"2.0","id":"nobody","result":{}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}',
    b'{"jsonrpc":"2.0","id":"tc-999999","result":{}}',
    b'{"jsonrpc":"2.0","id":[1],"result":{}}',
    b'{"jsonrpc":"2.0","method":5}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":[1]}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{"a":1},"progress":"x"}}',
    b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
    b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"roots/list"}',
    b'{"jsonrpc":"2.0","id":8,"method":"no/such/method"}',
    rb'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\ud83d"}}',
]


@pytest.mark.parametrize("era", ERAS)
def test_lines_that_are_no_answer_and_second_answers_are_ignored(mcp: Endpoint, era: str) -> None:
    for tool in ("garbage", "not_utf8", "wrong_id"):
        assert mcp.call(f"{era}_{tool}").result["structuredContent"]["ok"] is True
    for line in NOISE:
        assert say(mcp, era, line, FINE).result["content"] == [{"type": "text", "text": "fine"}], line[:60]
    second = result(b'{"resultType":"complete","content":[]}')
    assert say(mcp, era, FINE, second, second).result["content"][0]["text"] == "fine"
    assert say(mcp, era, FINE).result["content"][0]["text"] == "fine"
    null_error = FINE.replace(b'"result"', b'"error":null,"result"')
    assert say(mcp, era, null_error).result["content"][0]["text"] == "fine"


INVALID = [
    b'{"jsonrpc":"2.0","id":@ID@}',
    b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[',
    b'{"jsonrpc":"2.0","id":@ID@,"result":{"t":"\xe9"}}',
    *map(result, (b"null", b"5", b'"text"', b"[]", b'{"content":NaN}')),
    result(b'{"structuredContent":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    b'{"jsonrpc":"2.0","id":@ID@,"error":"text"}',
    b'{"jsonrpc":"2.0","id":@ID@,"error":null}',
]
RPC_ERRORS = [
    b'{"code":-32000,"message":"no","data":{"deep":[1,null]}}',
    b'{"code":"high","message":"no"}',
    b'{"code":[1],"message":"no"}',
    b'{"message":"no code"}',
    b"{}",
    rb'{"code":1,"message":"\ud83d"}',
]


@pytest.mark.parametrize("era", ERAS)
def test_an_invalid_answer_is_an_error_for_the_model_and_any_json_rpc_error_arrives(mcp: Endpoint, era: str) -> None:
    for line in INVALID:
        answer = say(mcp, era, line).result
        assert answer["isError"] is True
        assert "invalid MCP" in answer["content"][0]["text"], line[:60]
        assert f"say-{era}" in answer["content"][0]["text"]
    for error in RPC_ERRORS:
        answered = say(mcp, era, b'{"jsonrpc":"2.0","id":@ID@,"error":' + error + b"}")
        assert answered.error == json.loads(error.replace(rb"\ud83d", rb"\ufffd"))


SURROGATES = {
    rb"cut \ud83d": "cut \ufffd",
    rb"cut \ud83d and on": "cut \ufffd and on",
    rb"\udc00 first": "\ufffd first",
    rb"\ud83d\ud83d\ude00": "\ufffd\U0001f600",
    rb"whole \ud83d\ude00, none \\ud83d": "whole \U0001f600, none \\ud83d",
    rb"\uD83D\n": "\ufffd\n",
}


@pytest.mark.parametrize("era", ERAS)
def test_results_with_lone_surrogates_duplicate_keys_and_depth_arrive(mcp: Endpoint, era: str) -> None:
    """Programs in JavaScript cut texts between the halves of a pair, and send the rest as an escape."""
    for sent, received in SURROGATES.items():
        line = result(b'{"resultType":"complete","content":[{"type":"text","text":"' + sent + b'"}]}')
        answer = say(mcp, era, line)
        assert answer.result["content"][0]["text"] == received
        answer.message.decode()
    assert b'"content":[],"content":[{"type":"text","text":"second"}]' in mcp.call(f"{era}_duplicate").message
    nested = mcp.call(f"{era}_deep", {"depth": 200}).result["structuredContent"]["a"]
    for _ in range(199):
        (nested,) = nested
    assert nested == []
    assert mcp.call(f"{era}_chatter", {"bytes": 3_000_000}).result["structuredContent"]["ok"] is True


@pytest.mark.parametrize("tool", ["die", "half"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("ENG-10")
def test_a_server_that_dies_in_a_call_fails_it_and_reconnects(mcp: Endpoint, era: str, tool: str) -> None:
    answer = mcp.call(f"{era}_{tool}").result
    assert answer["isError"] is True
    assert "may have run" in answer["content"][0]["text"]
    assert f"{era}_ok" in [listed["name"] for listed in mcp.modern("tools/list").result["tools"]]
    wait_for(lambda: not mcp.call(f"{era}_ok").result.get("isError"), "the server to reconnect")


@pytest.mark.req("BNS-5")
def test_fifty_megabytes_arrive_over_http_and_the_bridge_while_others_are_answered(
    mcp: Endpoint, shared: Daemon
) -> None:
    size, session = 50_000_000, mcp.begin()
    params = {era: {"name": f"{era}_huge", "arguments": {"bytes": size}} for era in ERAS}
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(mcp.modern, "tools/call", params["legacy"])
        answered_before = []
        while not fetching.done():
            assert healthy(mcp)
            answered_before.append(not fetching.done())
        assert any(answered_before)
        for answer in (fetching.result(), mcp.legacy(session, "tools/call", params["modern"])):
            assert answer.message.count(b"x") >= size
    with SocketClient(shared) as bridge:
        bridge.ask(INITIALIZE)
        bridge.send(legacy_request("tools/call", params["modern"], id=5))
        while not (line := bridge.line()).startswith(b'{"jsonrpc":"2.0","id":5,"result"'):
            pass
        assert len(line) > size


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("BNS-4")
def test_many_list_changed_notifications_cause_few_listings(mcp: Endpoint, seen: Path, era: str) -> None:
    def listings() -> int:
        return sum(b'"tools/list"' in line for line in (seen / era).read_bytes().splitlines())

    before = listings()
    assert mcp.call(f"{era}_flood", {"n": 20_000}).result["structuredContent"]["ok"] is True
    wait_for(lambda: listings() > before, "the tools to be listed again")
    assert mcp.call(f"{era}_ok").result["structuredContent"]["ok"] is True
    assert listings() - before <= 50


LISTINGS: dict[str, tuple[str, list[str]]] = {
    "tools that are no list": ('{"tools":{"a":1}}', []),
    "no tools at all": ("{}", []),
    "a null": ('{"tools":null}', []),
    "a list of nothing": ('{"tools":[]}', []),
    "invalid tools among valid ones": (
        '{"tools":[7,null,"x",[],{},{"name":""},{"name":5},@OWN@]}',
        ["say", "seen", "crowd"],
    ),
    "a tool without a schema": ('{"tools":[{"name":"bare"}]}', ["bare"]),
    "invalid schemas": (
        '{"tools":[{"name":"a","inputSchema":null},{"name":"b","inputSchema":[]},{"name":"c","inputSchema":"x"},'
        '{"name":"d","inputSchema":{"type":"nonsense"}},{"name":"e","inputSchema":{"$ref":"http://evil.example/x"}},'
        '{"name":"f","inputSchema":{"properties":{"p":{"pattern":"("}}}},{"name":"g","inputSchema":false}]}',
        ["a", "b", "c", "d", "e", "f", "g"],
    ),
    "a name twice": ('{"tools":[{"name":"a","title":"1"},{"name":"a","title":"2"}]}', ["a"]),
    "a cursor that leads back": ('{"tools":[{"name":"a"}],"nextCursor":"again"}', ["a"]),
    "a cursor that is a number": ('{"tools":[{"name":"a"}],"nextCursor":5}', []),
    "half an emoji in a description": (r'{"tools":[{"name":"a","description":"\ud83d"}]}', ["a"]),
}


@pytest.mark.req("ENG-3", "BNS-8")
def test_an_invalid_listing_hides_no_tool_of_another_server(daemon: StartDaemon, tmp_path: Path) -> None:
    servers: dict[str, Any] = {"healthy": stdio_entry("raw_server", "--plain", "--tools", "1")}
    wanted = ["healthy:tool_00000"]
    for number, (text, names) in enumerate(LISTINGS.values()):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        servers[f"s{number}"] = stdio_entry("scripted_server", "--listing", str(file))
        wanted += [f"s{number}:{name}" for name in names]
    names_of_odd = ("n" * 200, "read a file/ü.☃", "_", "-", "a b", "a_b")
    file = tmp_path / "odd.json"
    tools = [{"name": name, "description": "d" * 1_000_000} for name in names_of_odd]
    file.write_text(json.dumps({"tools": tools}))
    servers["odd"] = stdio_entry("scripted_server", "--listing", str(file))
    started = daemon({"servers": servers, "workspace": False})
    started.wait_until_ready("healthy", "odd")
    mcp = Endpoint(started)

    def listed() -> dict[str, Any] | None:
        tools = {tool["name"]: tool for tool in mcp.modern("tools/list").result["tools"]}
        return tools if len(tools) >= len(wanted) + 6 + crib else None

    crib = sum(tool["name"].startswith("crib_") for tool in mcp.modern("tools/list").result["tools"])
    tools_now = wait_for(listed, "all tools to be listed")
    shown = {tool["display"] for tool in started.command("tool:list")["tools"] if tool["server"] != "crib"}
    assert shown == {*wanted, *(f"odd:{tool['name']}" for tool in tools)}
    assert all(LEGAL.fullmatch(name) for name in tools_now)
    assert len(tools_now) == len(shown) + crib
    assert sum(len(tool.get("description", "")) == 1_000_000 for tool in tools_now.values()) == 6
    assert healthy(mcp)
    number = list(LISTINGS).index("invalid schemas")
    for name in "abcdefg":
        answer = mcp.call(f"s{number}_{name}", {"any": "thing"}).result
        assert answer["structuredContent"]["told"]["tools/call"] >= 1


@pytest.mark.req("BNS-5", "BNS-8", "BNS-10")
def test_slow_and_broken_servers_delay_no_other_and_equal_tools_get_different_names(daemon: StartDaemon) -> None:
    one_tool = ("--plain", "--tools", "1")
    servers = {
        "deaf": stdio_entry("raw_server", "--deaf", connect_timeout=300),
        "mute": stdio_entry("raw_server", "--deaf", connect_timeout=1),
        "slow": stdio_entry("raw_server", "--slow-start", "1.0", *one_tool),
        "gone": stdio_entry("raw_server", "--exit", "3"),
        "missing": {"command": "/no/such/program"},
        "healthy": stdio_entry("raw_server", *one_tool),
        "limited": stdio_entry("raw_server", call_timeout=0.3),
        **TWINS,
    }
    started = daemon({"servers": servers})
    mcp = Endpoint(started)
    assert healthy(mcp)
    state = {row["name"]: row["state"] for row in started.status()["servers"]}
    assert state["deaf"] == "connecting", "no other server waited for it"
    assert mcp.call("slow_tool_00000").result["structuredContent"]["ok"] is True

    def reasons() -> dict[str, str] | None:
        rows = {row["name"]: row for row in started.status()["servers"]}
        errors = {name: rows[name]["last_error"] for name in ("mute", "gone", "missing")}
        return errors if all(errors.values()) else None

    errors = wait_for(reasons, "each server's error")
    for name, text in (("mute", "1 s"), ("gone", "code 3"), ("gone", "ending at once"), ("missing", "does not exist")):
        assert text in errors[name]

    answer = mcp.call("limited_never").result
    assert answer["isError"] is True
    assert "0.3 s" in answer["content"][0]["text"]
    assert mcp.call("limited_ok").result["structuredContent"]["ok"] is True

    started.wait_until_ready(*TWINS)
    names = [tool["name"].lower() for tool in mcp.modern("tools/list").result["tools"]]
    assert len(set(names)) == len(names)
    assert sum("tool_000" in name for name in names) == 60 + 2
