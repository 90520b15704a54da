"""The daemon's own state as resources, and the notices of its changes: servers, approvals, jobs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from integration.test_offers_limits import listening, next_update
from parts.agent_clients import ERAS, AgentClient, Owner
from parts.daemon import Daemon, StartDaemon
from parts.raw_client import RawConnection
from parts.server_process import stdio_entry
from toolcrib.testing import Say, scripted

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-6")]

KEY = "sk-test-0123456789abcdef"
ALL = ("*:*", "resource:crib:**")


def read(client: AgentClient, uri: str) -> Any:
    return json.loads(client.ask("resources/read", {"uri": uri}).result["contents"][0]["text"])


@pytest.fixture(scope="module")
def running(start_shared_daemon: StartDaemon) -> Iterator[tuple[Daemon, threading.Event]]:
    go_on = threading.Event()
    with scripted("openai", [Say("The answer is 42.", first=lambda: go_on.wait(60))]) as model:
        jobs = {"model": "openai:worker", "base_urls": {"openai": model.url}, "api_keys": {"openai": "${JOBS_KEY}"}}
        servers = {"odd": stdio_entry("offers_server")}
        daemon = start_shared_daemon({"jobs": jobs, "servers": servers}, env={"JOBS_KEY": KEY})
        daemon.wait_until_ready()
        yield daemon, go_on


@contextlib.contextmanager
def client_of(daemon: Daemon, name: str, era: str, *rules: str) -> Iterator[AgentClient]:
    token = Owner(daemon).add(name, *rules, workdir=str(daemon.home.project))
    with AgentClient(daemon, name, token, era) as client:
        yield client


@contextlib.contextmanager
def stream_of(client: AgentClient, *uris: str) -> Iterator[RawConnection]:
    stream = listening(client, *uris)
    yield stream
    stream.close()


def test_a_job_reports_its_end_to_its_submitter_only(running: tuple[Daemon, threading.Event]) -> None:
    daemon, go_on = running
    with (
        client_of(daemon, "submitter", "legacy", *ALL) as submitter,
        client_of(daemon, "other", "legacy", *ALL) as other,
        stream_of(submitter) as told,
        stream_of(other, "crib://servers") as untold,
    ):
        job = submitter.call("crib_job_submit", prompt="What is the answer?").result["structuredContent"]["job"]
        uri = f"crib://jobs/{job}"
        modern = AgentClient(daemon, "submitter", submitter.token, "modern")
        with stream_of(modern, uri) as named:
            assert read(submitter, uri)["status"] in ("queued", "running")
            go_on.set()
            assert next_update(told) == uri
            assert next_update(named) == uri
            ended = read(submitter, uri)
            assert (ended["status"], ended["text"]) == ("done", "The answer is 42."), ended
        modern.close()
        refused = other.ask("resources/read", {"uri": uri})
        assert "42" not in refused.body.decode()
        Owner(daemon).say("server:restart", name="odd")
        assert next_update(untold) == "crib://servers", "the first notice is not about another agent's job"


@pytest.mark.parametrize("era", ERAS)
def test_the_servers_and_their_changes_are_a_resource(running: tuple[Daemon, threading.Event], era: str) -> None:
    daemon, _ = running
    with (
        client_of(daemon, f"watcher-{era}", era, *ALL) as client,
        stream_of(client, "crib://servers") as stream,
    ):
        assert "odd" in {one["name"] for one in read(client, "crib://servers")["servers"]}
        Owner(daemon).say("server:restart", name="odd")
        assert next_update(stream) == "crib://servers"


def test_only_the_owner_sees_approvals(running: tuple[Daemon, threading.Event]) -> None:
    daemon, _ = running
    owner = Owner(daemon)
    owner.put_profile("asking", {"ask": "odd:*"})
    token = owner.add("asker", profile="asking")
    mine = AgentClient(daemon, "owner", daemon.token, "modern")
    with (
        client_of(daemon, "curious", "modern", *ALL) as curious,
        AgentClient(daemon, "asker", token, "modern") as asker,
        stream_of(mine, "crib://approvals") as stream,
    ):
        listed = {one["uri"] for one in curious.ask("resources/list").result["resources"]}
        assert "crib://servers" in listed
        assert "crib://approvals" not in listed
        assert "error" in curious.ask("resources/read", {"uri": "crib://approvals"}).json
        asker.send_call("odd_ok")
        assert next_update(stream) == "crib://approvals"
        (waiting,) = read(mine, "crib://approvals")["approvals"]
        assert waiting["agent"] == "asker"
        owner.say("approval:answer", id=waiting["id"], approved=True)
        assert next_update(stream) == "crib://approvals"
        assert asker.answer().result
    mine.close()
