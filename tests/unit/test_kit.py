"""A kit connects the servers that a program names, lists the missing ones with a reason, and leaves no process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from parts import leftovers
from parts.recording_server import Notes
from parts.sizes import some
from toolcrib.config.from_code import HttpServer, StdioServer
from toolcrib.core.kit import Client, Kit
from toolcrib.core.provider import run_to_completion
from toolcrib.errors import CallTimeout, InvalidArguments, ServerUnavailable, UnknownServer, UnknownTool, UsageError
from toolcrib.events import CallFailed, CallFinished, CallIntended, CatalogChanged, Event, ServerStateChanged
from toolcrib.servers.model import ServerState, ToolCall

ODD = Path(__file__).parents[1] / "parts" / "servers" / "odd_stdio.py"
LIMIT = 60.0


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """Part of the command line of every process that a test starts."""
    return str(tmp_path / "mark")


@pytest.fixture
def odd(mark: str) -> Callable[..., StdioServer]:
    def make(name: str = "odd", odd: str = "", **more: Any) -> StdioServer:
        more = {"args": ["-I", "-S", str(ODD), mark], "env": {"ODD": odd}, "connect_timeout": LIMIT, **more}
        return StdioServer(name, command=sys.executable, **more)

    return make


def processes(mark: str) -> list[int]:
    return [process.pid for process in leftovers.living() if mark in process.words and not process.is_guard]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def test_all_servers_connect_and_their_tools_have_plain_names(odd, tmp_path):
    notes = Notes(tmp_path / "seen")
    entry = notes.server("note")
    witness = StdioServer("w", command=entry["command"], args=entry["args"], connect_timeout=LIMIT)
    async with Kit([odd(), witness], connect_limit=LIMIT) as kit:
        assert kit.connected == ("odd", "w")
        assert kit.missing == {}
        assert set(kit.tools().names) == {"echo", "fail", "note", "release"}
        assert {offer.name: offer.server for offer in kit.tools()}["note"] == "w"
        for name in ("note", "w:note", "w_note", "mcp_w_note"):
            assert not (await kit.call(name, {"nonce": name})).is_error
        await kit.tools().call("note", {"nonce": "by the offer"})
    assert notes.nonces() == ["note", "w:note", "w_note", "mcp_w_note", "by the offer"]


async def test_two_tools_of_one_name_get_their_servers_as_a_prefix(odd):
    async with Kit([odd("a"), odd("b")], connect_limit=LIMIT) as kit:
        assert sorted(kit.tools().names) == ["a_echo", "a_fail", "b_echo", "b_fail"]
        with pytest.raises(UnknownTool, match="no tool"):
            await kit.call("echo")
        assert (await kit.call("b:echo")).text


def test_two_servers_of_one_name_are_refused(odd):
    for other in ("odd", "ODD"):
        with pytest.raises(UsageError, match="odd"):
            Kit([odd(), odd(other)])


async def test_a_failing_server_is_missing_with_a_reason_and_the_others_connect(odd, mark, tmp_path):
    gone = StdioServer("gone", command=str(tmp_path / "no-such-program"))
    async with Kit(
        [odd("dies", "exits"), gone, odd(), HttpServer("nobody", url="http://127.0.0.1:9/mcp")], connect_limit=LIMIT
    ) as kit:
        assert kit.connected == ("odd",)
        assert set(kit.missing) == {"dies", "gone", "nobody"}
        assert "no-such-program" in kit.missing["gone"]
        assert all(kit.missing.values())
        status = kit.status()
        assert status["odd"].state is ServerState.READY
        assert status["odd"].server_info["name"] == "odd"
        assert status["dies"].state is ServerState.FAILED
        assert status["dies"].last_error == kit.missing["dies"]
        with pytest.raises(ServerUnavailable, match="could not be reached"):
            await kit.call("gone:anything")
        with pytest.raises(UnknownServer, match="never"):
            kit.server_info("never")
        assert (await kit.call("echo")).text
        assert len(processes(mark)) == 1
    assert processes(mark) == []


async def test_a_server_that_does_not_connect_in_time_is_ended(odd, mark):
    async with Kit([odd("mute", "mute"), odd()], connect_limit=4.0) as kit:
        assert kit.connected == ("odd",)
        assert "4 s" in kit.missing["mute"]
        # It never comes later: its process goes while the kit is used.
        await until(lambda: len(processes(mark)) == 1)
    assert processes(mark) == []


async def test_servers_connect_at_the_same_time(odd, mark):
    kit = Kit([odd(f"m{number}", "mute") for number in range(4)], connect_limit=6.0)
    opening = asyncio.ensure_future(kit.__aenter__())
    await until(lambda: len(processes(mark)) == 4)
    await opening
    assert len(kit.missing) == 4
    await kit.__aexit__(None, None, None)


async def test_a_disabled_server_is_not_started(odd, mark):
    config = odd().config()
    async with Kit([type(config)(**{**vars(config), "enabled": False})]) as kit:
        assert kit.missing == {"odd": "It is disabled."}
        assert processes(mark) == []


@pytest.mark.parametrize("how", ["left", "raised", "cancelled"])
async def test_leaving_a_kit_in_any_way_ends_all_processes(odd, mark, how):
    inside = asyncio.Event()

    async def use() -> None:
        async with Kit([odd(), odd("stubborn", "stubborn")], connect_limit=LIMIT):
            assert len(processes(mark)) == 2
            inside.set()
            if how == "raised":
                raise LookupError
            if how == "cancelled":
                await asyncio.sleep(LIMIT)

    task = asyncio.create_task(use())
    async with asyncio.timeout(LIMIT):
        await inside.wait()
        if how == "cancelled":
            task.cancel()
        with contextlib.suppress(LookupError, asyncio.CancelledError):
            await task
    assert task.cancelled() is (how == "cancelled")
    assert processes(mark) == []


@pytest.mark.parametrize(("other", "times"), [("", 1), ("stubborn", 3)])
async def test_repeated_cancellation_while_connecting_still_ends_all_processes(odd, mark, other, times):
    entering = asyncio.create_task(Kit([odd("mute", "mute"), odd("other", other)]).__aenter__())
    await until(lambda: len(processes(mark)) == 2)
    for _ in range(times):
        entering.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({entering}, timeout=LIMIT)
    assert entering.cancelled()
    assert processes(mark) == []


@pytest.mark.parametrize("steps", some((0, 1, 2, 5, 20), range(3, 60)))
async def test_a_cancellation_at_any_step_leaves_nothing_behind(odd, mark, steps):
    tasks = asyncio.all_tasks()
    entering = asyncio.create_task(Kit([odd()]).__aenter__())
    for _ in range(steps):
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait({entering}, timeout=LIMIT)
    assert entering.cancelled()
    assert processes(mark) == []
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("raises", [False, True])
async def test_work_runs_to_completion_and_its_error_or_the_cancellation_is_raised(raises):
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append("whole")
        if raises:
            raise LookupError

    task = asyncio.create_task(run_to_completion(work()))
    await asyncio.sleep(0)
    if not raises:
        task.cancel()
    await asyncio.wait({task}, timeout=LIMIT)
    assert (task.cancelled(), done) == (not raises, ["whole"])
    assert not raises or isinstance(task.exception(), LookupError)


async def test_changed_tools_are_listed_and_published(odd):
    seen: list[Event] = []
    async with Kit([odd()], connect_limit=LIMIT) as kit:
        unsubscribe = kit.subscribe(seen.append, CatalogChanged)
        before = kit.tools()
        await _storm(kit)
        await until(lambda: "extra1" in kit.tools())
        assert "extra1" not in before
        assert len(seen) == 1
        unsubscribe()
        await _storm(kit)
        await until(lambda: "extra2" in kit.tools())
        assert len(seen) == 1


async def _storm(kit: Kit) -> None:
    """Calls an unlisted tool of the odd server, which adds a tool and sends a notification."""
    await kit._servers["odd"].call(ToolCall(name="storm", params={"arguments": Raw(b'{"times":3}')}))


async def test_calls_and_states_are_published(odd):
    seen: list[Event] = []
    kit = Kit([odd()], connect_limit=LIMIT)
    kit.subscribe(seen.append)
    async with kit:
        await kit.call("echo", {"a": 1})
        with pytest.raises(UnknownTool):
            await kit.call("nothing")
    kinds = [type(event) for event in seen]
    assert [kind for kind in kinds if kind is not ServerStateChanged] == [CallIntended, CallFinished, CallFailed]
    states = [event.state for event in seen if isinstance(event, ServerStateChanged)]
    assert states == ["connecting", "ready", "stopped"]
    intended = next(event for event in seen if isinstance(event, CallIntended))
    assert (intended.tool, intended.server, intended.arguments) == ("odd:echo", "odd", b'{"a":1}')


async def test_a_kit_without_servers_is_empty(mark):
    async with Kit([]) as kit:
        assert (kit.connected, kit.missing, list(kit.tools())) == ((), {}, [])
        with pytest.raises(UnknownTool):
            await kit.call("read_file")
        with pytest.raises(UsageError, match="once"):
            await kit.__aenter__()


async def _refused_outside(kit: Kit) -> None:
    for use in (kit.tools, kit.status, lambda: kit.catalog, lambda: kit.server_info("odd")):
        with pytest.raises(UsageError, match="A Kit must be used inside its `async with`"):
            use()
    for wait in (kit.call("echo"), kit.refresh("odd")):
        with pytest.raises(UsageError, match="A Kit must be used inside its `async with`"):
            await wait


async def test_a_kit_or_client_outside_its_async_with_raises_an_error(odd):
    kit = Kit([odd()], connect_limit=LIMIT)
    await _refused_outside(kit)
    async with kit:
        assert len(kit.tools()) == 2
        with pytest.raises(UnknownServer, match="nobody"):
            await kit.refresh("nobody")
    await _refused_outside(kit)
    client = Client(odd())
    with pytest.raises(UsageError, match="A Client must be used inside"):
        client.list_tools()
    with pytest.raises(UsageError, match="A Client must be used inside"):
        await client.call_tool("echo")


async def test_arguments_names_and_timeouts_of_the_wrong_type_are_refused(odd):
    async with Kit([odd()], connect_limit=LIMIT) as kit:
        for ask in (kit.call, kit.tools().call):
            with pytest.raises(InvalidArguments, match=r"arguments for echo must be a mapping, not list"):
                await ask("echo", ["UTC"])
            with pytest.raises(InvalidArguments, match="echo"):
                await ask("echo", {"a": object()})
            for timeout in ("4", 0, -1.0, float("nan"), float("inf")):
                with pytest.raises(UsageError, match="timeout: found"):
                    await ask("echo", {}, timeout=timeout)
        with pytest.raises(UsageError, match="name is a string"):
            await kit.call(4)


async def test_the_remedy_of_a_timeout_is_the_callers_own_limit(tmp_path):
    entry = Notes(tmp_path / "seen").server("note")
    async with Kit(
        [StdioServer("w", command=entry["command"], args=entry["args"], connect_timeout=LIMIT)], connect_limit=LIMIT
    ) as kit:
        with pytest.raises(CallTimeout) as caught:
            await kit.call("note", {"nonce": "x", "hold": True}, timeout=0.05)
        assert "timeout=" in caught.value.remedy
        assert "call_timeout" not in caught.value.remedy


async def test_a_missing_server_has_a_remedy():
    async with Kit([StdioServer("gone", command="no-such-program")]) as kit:
        with pytest.raises(ServerUnavailable) as caught:
            await kit.call("gone:x")
        assert caught.value.remedy
    with pytest.raises(ServerUnavailable) as caught:
        await Client(StdioServer("gone", command="no-such-program")).connect()
    assert "connect again" in caught.value.remedy


@pytest.mark.parametrize(
    "servers", [[{}], [{"command": "x"}], ["x"], {"a": {}}, "x", None, StdioServer("a", command="x")]
)
def test_values_that_are_not_servers_are_refused(servers):
    with pytest.raises(UsageError, match=r"cannot be a .*StdioServer.*server_config"):
        Kit(servers)


async def test_invalid_subscriptions_are_refused():
    kit = Kit([])
    with pytest.raises(UsageError, match="function with one parameter"):
        kit.subscribe("x")
    for kind in ("call_finished", Event, int):
        with pytest.raises(UsageError, match="CallFinished"):
            kit.subscribe(print, kind)


async def test_a_client_connects_to_one_server_with_one_process(odd, mark):
    client = Client(odd())
    await asyncio.gather(client.connect(), client.connect())
    assert len(processes(mark)) == 1
    await asyncio.gather(client.disconnect(), client.disconnect())
    assert processes(mark) == []
    async with client:
        assert [tool.name for tool in client.list_tools()] == ["echo", "fail"]
        await client.connect()
        assert len(processes(mark)) == 1
    assert processes(mark) == []
