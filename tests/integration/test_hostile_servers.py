"""Servers that send what no server should: the call or the tool is told so, and every other server goes on."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Daemon, StartDaemon, nothing_left_behind, shared_daemon
from parts.raw_client import Endpoint, RawAnswer, SocketClient, legacy_request, request
from parts.server_process import stdio_command
from parts.waiting import wait_for

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.req("BNS-10", "ENG-9")

ERAS = ("modern", "legacy")
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,48}")


def stdio(name: str, *flags: str, **more: Any) -> dict[str, Any]:
    words = stdio_command(name, *flags)
    return {"command": words[0], "args": words[1:], **more}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {era: stdio("raw_server", "--era", era, call_timeout=30) for era in ERAS}
    servers |= {f"say-{era}": stdio("scripted_server", "--era", era) for era in ERAS}
    servers["healthy"] = stdio("raw_server", "--plain", "--tools", "3", "--task")
    with shared_daemon({"servers": servers}, ready=list(servers)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def door(shared: Daemon) -> Endpoint:
    return Endpoint(shared)


@pytest.fixture(autouse=True)
def the_healthy_one_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, the server beside the hostile one answers as ever."""
    yield
    if "door" in request.fixturenames:
        assert healthy(request.getfixturevalue("door"))


def healthy(door: Endpoint) -> bool:
    return bool(door.call("healthy_tool_00000").result["structuredContent"]["ok"])


def say(door: Endpoint, era: str, *lines: bytes) -> RawAnswer:
    """Has the server say these lines, `@ID@` being the id of the request."""
    return door.call(f"say-{era}_say", {"lines": [base64.b64encode(line).decode() for line in lines]})


def result(text: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":@ID@,"result":' + text + b"}"


FINE = result(b'{"resultType":"complete","content":[{"type":"text","text":"fine"}]}')


@pytest.mark.parametrize("era", ERAS)
def test_a_result_is_given_its_type_for_modern_clients_by_whichever_server(door: Endpoint, era: str) -> None:
    bare = {"name": f"{era}_echo_raw", "arguments": {"result": '{"content":[]}'}}
    assert door.modern("tools/call", bare).result == {"resultType": "complete", "content": []}
    assert door.legacy(door.begin(), "tools/call", bare).result == {"content": []}


def test_a_question_of_a_tool_reaches_modern_clients_alone_and_fails_the_call_of_others(door: Endpoint) -> None:
    question = {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}
    asked = {"name": "modern_echo_raw", "arguments": {"result": json.dumps(question)}}
    assert door.modern("tools/call", asked).result == question
    told = door.legacy(door.begin(), "tools/call", asked).result
    assert told["isError"] is True
    assert "asks for input" in told["content"][0]["text"]


def test_a_tool_that_runs_only_as_a_task_is_named_by_servers_and_not_listed(shared: Daemon, door: Endpoint) -> None:
    listed = [tool["name"] for tool in door.modern("tools/list").result["tools"]]
    assert "healthy_tool_00000" in listed
    assert "healthy_later" not in listed
    told = door.call("healthy_later").result
    assert told["isError"] is True
    assert "only as a task" in told["content"][0]["text"]
    rows = shared.command("server:list")["servers"]
    assert {row["name"]: row["tasks_only"] for row in rows if row["tasks_only"]} == {"healthy": ["later"]}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", ["garbage", "not_utf8", "wrong_id"])
def test_noise_around_the_answer_is_passed_over(door: Endpoint, era: str, tool: str) -> None:
    assert door.call(f"{era}_{tool}").result["structuredContent"]["ok"] is True


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"Server running on stdio",
        b"\xff\xfe\x00\x01",
        b"null",
        b"42",
        b"{}",
        b"[]",
        b"[[[[[",
        b"[" * 100_000,
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
    ],
    ids=lambda noise: noise[:40].decode("latin-1") or "nothing",
)
def test_a_line_that_is_no_answer_changes_nothing(door: Endpoint, era: str, noise: bytes) -> None:
    assert say(door, era, noise, FINE).result["content"] == [{"type": "text", "text": "fine"}]


@pytest.mark.parametrize("era", ERAS)
def test_the_first_of_two_answers_counts(door: Endpoint, era: str) -> None:
    second = result(b'{"resultType":"complete","content":[]}')
    assert say(door, era, FINE, second, second).result["content"][0]["text"] == "fine"
    assert say(door, era, FINE).result["content"][0]["text"] == "fine"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":@ID@}',
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[',
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"t":"\xe9"}}',
        result(b"null"),
        result(b"5"),
        result(b'"text"'),
        result(b"[]"),
        result(b'{"content":NaN}'),
        result(b'{"structuredContent":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        b'{"jsonrpc":"2.0","id":@ID@,"error":"text"}',
        b'{"jsonrpc":"2.0","id":@ID@,"error":null}',
    ],
    ids=lambda line: line[20:60].decode("latin-1"),
)
def test_an_answer_that_is_not_mcp_is_told_to_the_model(door: Endpoint, era: str, line: bytes) -> None:
    told = say(door, era, line).result
    assert told["isError"] is True
    assert "invalid MCP" in told["content"][0]["text"]
    assert f"say-{era}" in told["content"][0]["text"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "error",
    [
        b'{"code":-32000,"message":"no","data":{"deep":[1,null]}}',
        b'{"code":"high","message":"no"}',
        b'{"code":[1],"message":"no"}',
        b'{"message":"no code"}',
        b"{}",
        rb'{"code":1,"message":"\ud83d"}',
    ],
)
def test_an_error_of_any_shape_arrives(door: Endpoint, era: str, error: bytes) -> None:
    answer = say(door, era, b'{"jsonrpc":"2.0","id":@ID@,"error":' + error + b"}")
    assert answer.error == json.loads(error.replace(rb"\ud83d", rb"\ufffd"))


@pytest.mark.parametrize("era", ERAS)
def test_a_null_error_beside_a_result_is_no_error(door: Endpoint, era: str) -> None:
    line = FINE.replace(b'"result"', b'"error":null,"result"')
    assert say(door, era, line).result["content"][0]["text"] == "fine"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"cut \ud83d and on", "cut \ufffd and on"),
        (rb"\udc00 first", "\ufffd first"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"whole \ud83d\ude00, none \\ud83d", "whole \U0001f600, none \\ud83d"),
        (rb"\uD83D\n", "\ufffd\n"),
    ],
)
def test_half_an_emoji_does_not_cost_the_result(door: Endpoint, era: str, said: bytes, heard: str) -> None:
    """Programs in JavaScript cut texts between the halves of a pair, and send what is left as an escape."""
    line = result(b'{"resultType":"complete","content":[{"type":"text","text":"' + said + b'"}]}')
    answer = say(door, era, line)
    assert answer.result["content"][0]["text"] == heard
    answer.message.decode()


@pytest.mark.parametrize("era", ERAS)
def test_a_result_with_a_key_twice_arrives_as_it_came(door: Endpoint, era: str) -> None:
    answer = door.call(f"{era}_duplicate")
    assert b'"content":[],"content":[{"type":"text","text":"second"}]' in answer.message


@pytest.mark.parametrize("era", ERAS)
def test_a_result_of_honest_depth_arrives(door: Endpoint, era: str) -> None:
    told = door.call(f"{era}_deep", {"depth": 200}).result["structuredContent"]["a"]
    for _ in range(199):
        (told,) = told
    assert told == []


@pytest.mark.parametrize("tool", ["die", "half"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("ENG-10")
def test_a_server_that_dies_in_a_call_is_told_and_comes_back(door: Endpoint, era: str, tool: str) -> None:
    told = door.call(f"{era}_{tool}").result
    assert told["isError"] is True
    assert "may have run" in told["content"][0]["text"]
    names = [listed["name"] for listed in door.modern("tools/list").result["tools"]]
    assert f"{era}_ok" in names

    def answers() -> bool:
        again = door.call(f"{era}_ok").result
        return not again.get("isError")

    wait_for(answers, "the server to be back")


@pytest.mark.parametrize("era", ERAS)
def test_much_on_stderr_is_kept_and_harms_nothing(door: Endpoint, era: str) -> None:
    assert door.call(f"{era}_chatter", {"bytes": 3_000_000}).result["structuredContent"]["ok"] is True


@pytest.mark.parametrize("server", ERAS)
@pytest.mark.req("BNS-5")
def test_fifty_megabytes_arrive_at_the_endpoint_in_both_eras(door: Endpoint, server: str) -> None:
    size = 50_000_000
    arguments = {"name": f"{server}_huge", "arguments": {"bytes": size}}
    session = door.begin()
    for answer in (door.modern("tools/call", arguments), door.legacy(session, "tools/call", arguments)):
        message = answer.message
        assert len(message) > size
        assert message.count(b"x") >= size


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("BNS-5")
def test_fifty_megabytes_arrive_over_the_bridge(shared: Daemon, era: str) -> None:
    size = 50_000_000
    params = {"name": "modern_huge", "arguments": {"bytes": size}}
    with SocketClient(shared) as pipe:
        if era == "legacy":
            pipe.ask(legacy_request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}, id=0))
            pipe.send(legacy_request("tools/call", params, id=5))
        else:
            pipe.send(request("tools/call", params, id=5))
        line = pipe.line()
        while not line.startswith(b'{"jsonrpc":"2.0","id":5,"result"'):
            line = pipe.line()
        assert len(line) > size


def test_others_are_answered_while_a_huge_result_is_on_its_way(door: Endpoint) -> None:
    done = threading.Event()

    def fetch() -> None:
        door.call("modern_huge", {"bytes": 50_000_000})
        done.set()

    fetching = threading.Thread(target=fetch)
    fetching.start()
    answered_before = []
    while not done.is_set():
        assert healthy(door)
        answered_before.append(not done.is_set())
    fetching.join()
    assert any(answered_before)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("BNS-4")
def test_a_flood_of_list_changed_leads_to_few_listings(daemon: StartDaemon, tmp_path: Path, era: str) -> None:
    seen = tmp_path / "seen"
    flood = stdio("raw_server", "--era", era, "--seen", str(seen))
    started = daemon({"servers": {"flood": flood, "healthy": stdio("raw_server", "--plain", "--tools", "1")}})
    started.wait_until_ready()

    def listings() -> int:
        return sum(b'"tools/list"' in line for line in seen.read_bytes().splitlines())

    before = listings()
    door = Endpoint(started)
    assert door.call("flood_flood", {"n": 20_000}).result["structuredContent"]["ok"] is True
    assert healthy(door)
    wait_for(lambda: listings() > before, "the tools to be listed again")
    assert door.call("flood_ok").result["structuredContent"]["ok"] is True
    assert listings() - before <= 50


LISTINGS: dict[str, tuple[str, list[str]]] = {
    "tools that are no list": ('{"tools":{"a":1}}', []),
    "no tools at all": ("{}", []),
    "a null": ('{"tools":null}', []),
    "a list of nothing": ('{"tools":[]}', []),
    "what is no tool among tools": (
        '{"tools":[7,null,"x",[],{},{"name":""},{"name":5},@OWN@]}',
        ["say", "seen", "crowd"],
    ),
    "a tool without a schema": ('{"tools":[{"name":"bare"}]}', ["bare"]),
    "schemas that are none": (
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
def test_listings_of_every_wrong_shape_hide_nothing_but_themselves(daemon: StartDaemon, tmp_path: Path) -> None:
    servers: dict[str, Any] = {"healthy": stdio("raw_server", "--plain", "--tools", "1")}
    wanted = ["healthy:tool_00000"]
    for number, (text, names) in enumerate(LISTINGS.values()):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        servers[f"s{number}"] = stdio("scripted_server", "--listing", str(file))
        wanted += [f"s{number}:{name}" for name in names]
    long_name, odd_name = "n" * 200, "read a file/ü.☃"
    file = tmp_path / "odd.json"
    tools = [{"name": name, "description": "d" * 1_000_000} for name in (long_name, odd_name, "_", "-", "a b", "a_b")]
    file.write_text(json.dumps({"tools": tools}))
    servers["odd"] = stdio("scripted_server", "--listing", str(file))
    started = daemon({"servers": servers, "workspace": False})
    started.wait_until_ready("healthy", "odd")
    door = Endpoint(started)

    def listed() -> dict[str, Any] | None:
        tools = {tool["name"]: tool for tool in door.modern("tools/list").result["tools"]}
        return tools if len(tools) >= len(wanted) + 6 + crib else None

    crib = sum(name.startswith("crib_") for name in [t["name"] for t in door.modern("tools/list").result["tools"]])
    tools_now = wait_for(listed, "all tools to be listed")
    with SocketClient(started, bridge=False) as pipe:
        pipe.send(b'{"jsonrpc":"2.0","id":1,"method":"tool:list","params":{}}')
        shown = {tool["display"] for tool in pipe.message()["result"]["tools"] if tool["server"] != "crib"}
    assert shown == {*wanted, *(f"odd:{tool['name']}" for tool in tools)}
    assert all(LEGAL.fullmatch(name) for name in tools_now)
    assert len(tools_now) == len(shown) + crib
    assert sum(len(tool.get("description", "")) == 1_000_000 for tool in tools_now.values()) == 6
    assert door.call("healthy_tool_00000").result["structuredContent"]["ok"] is True
    for name in ("a", "b", "c", "d", "e", "f", "g"):
        number = list(LISTINGS).index("schemas that are none")
        told = door.call(f"s{number}_{name}", {"any": "thing"}).result
        assert told["structuredContent"]["told"]["tools/call"] >= 1


@pytest.mark.req("BNS-8")
def test_two_servers_with_the_same_tools_do_not_meet(daemon: StartDaemon) -> None:
    twin = stdio("raw_server", "--plain", "--tools", "20")
    started = daemon({"servers": {"one": twin, "two": twin, "One_": twin}})
    started.wait_until_ready()
    names = [tool["name"] for tool in Endpoint(started).modern("tools/list").result["tools"]]
    assert len({name.lower() for name in names}) == len(names)
    assert sum("tool_000" in name for name in names) == 60


@pytest.mark.req("BNS-10")
def test_servers_that_never_or_slowly_begin_delay_nobody(daemon: StartDaemon) -> None:
    servers = {
        "deaf": stdio("raw_server", "--deaf", connect_timeout=300),
        "mute": stdio("raw_server", "--deaf", connect_timeout=1),
        "slow": stdio("raw_server", "--slow-start", "1.0", "--plain", "--tools", "1"),
        "gone": stdio("raw_server", "--exit", "3"),
        "missing": {"command": "/no/such/program"},
        "healthy": stdio("raw_server", "--plain", "--tools", "1"),
    }
    started = daemon({"servers": servers})
    door = Endpoint(started)
    assert healthy(door)
    state = {row["name"]: row["state"] for row in started.status()["servers"]}
    assert state["deaf"] == "connecting", "nobody waited for it"
    assert door.call("slow_tool_00000").result["structuredContent"]["ok"] is True

    def reasons() -> dict[str, str] | None:
        rows = {row["name"]: row for row in started.status()["servers"]}
        away = {name: rows[name]["last_error"] for name in ("mute", "gone", "missing")}
        return away if all(away.values()) else None

    told = wait_for(reasons, "each server's error to be known")
    assert "1 s" in told["mute"]
    assert "code 3" in told["gone"]
    assert "ending at once" in told["gone"]
    assert "does not exist" in told["missing"]


@pytest.mark.req("BNS-5")
def test_a_call_that_takes_too_long_is_ended_and_the_next_one_answered(daemon: StartDaemon) -> None:
    started = daemon({"servers": {"slow": stdio("raw_server", call_timeout=0.3)}})
    started.wait_until_ready("slow")
    door = Endpoint(started)
    told = door.call("slow_never").result
    assert told["isError"] is True
    assert "0.3 s" in told["content"][0]["text"]
    assert door.call("slow_ok").result["structuredContent"]["ok"] is True
