"""Cached results through the whole gateway, with a real server that records every call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parts.agent_clients import AgentClient, Owner
from parts.daemon import Daemon, Home, StartDaemon
from parts.raw_client import Endpoint
from parts.recording_server import Notes

pytestmark = pytest.mark.req("KSI-10")


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def configure(home: Home, notes: Notes, **more: object) -> None:
    entry = {**notes.server("write", reads="look,other"), **more}
    (home.toolcrib / "config.yml").write_text(json.dumps({"servers": {"w": entry}}))


def log_of(daemon: Daemon) -> str:
    return (daemon.home.toolcrib / "state" / "toolcrib.log").read_text()


@pytest.mark.req("KSI-9")
def test_a_trusted_tools_result_is_cached_for_equal_permissions_until_something_changes(
    daemon: StartDaemon, toolcrib_home: Home, notes: Notes
) -> None:
    configure(toolcrib_home, notes, cache={"look": 3600})
    started = daemon()
    started.wait_until_ready("w")
    owner, mcp = Owner(started), Endpoint(started)
    for _ in range(2):
        mcp.call("w_look", {"nonce": "untrusted"})
    assert notes.nonces() == ["untrusted", "untrusted"]
    assert "w: `cache` has no effect on 'look'" in log_of(started)

    owner.say("server:trust", name="w")
    clients = {name: AgentClient(started, name, owner.add(name, "w:*"), "legacy") for name in ("one", "two")}
    first = clients["one"].call("w_look", nonce="a").result
    for client in clients.values():
        cached = client.call("w_look", nonce="a").result
        assert cached["structuredContent"] == first["structuredContent"]
        assert cached["_meta"]["toolcrib/cached"]["age_seconds"] >= 0
        assert "_meta" not in client.call("w_other", nonce="b").result
    assert notes.nonces()[2:] == ["a", "b", "b"]
    rows = [row for row in owner.audit(agent="two") if row["tool"] == "w:look"]
    assert [(row["kind"], row["outcome"]) for row in rows] == [("outcome", "ok")]
    assert "; cached answer, " in rows[0]["rule"]

    owner.deny("two", "w:look")
    assert clients["two"].call("w_look", nonce="a").result["isError"] is True
    clients["one"].call("w_write", nonce="changed")
    assert "_meta" not in clients["one"].call("w_look", nonce="a").result
    assert "_meta" in clients["one"].call("w_look", nonce="a").result

    configure(toolcrib_home, notes)
    started.command("config:reload")
    assert "_meta" not in clients["one"].call("w_look", nonce="a").result
    assert notes.nonces()[5:] == ["changed", "a", "a"]
    for client in clients.values():
        client.close()
