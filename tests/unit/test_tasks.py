"""The gateway's list of tasks, and what is read from servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import InvalidHandle, NotFound, ProtocolViolation
from toolcrib.events import AgentEnded, Bus, TaskSeen
from toolcrib.identity import tasks as registry
from toolcrib.identity.handles import Handles
from toolcrib.identity.tasks import MAX_PER_AGENT, TaskRegistry
from toolcrib.servers.model import Era, ServerAnswer
from toolcrib.servers.tasks import (
    LONGEST_TTL,
    OpenTasks,
    TaskProgress,
    created_task,
    needs_extension,
    read_task,
    without_related_task,
)

pytestmark = pytest.mark.req("KSI-9")


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def known(bus: Bus, tmp_path: Path) -> TaskRegistry:
    return TaskRegistry(bus, Handles(tmp_path / "key"))


def seen(task: str, agent: str = "ann", **more: Any) -> TaskSeen:
    fields: dict[str, Any] = {"server": "lab", "tool": "mix", "modern": True, "status": "working", "message": ""}
    fields |= {"created_at": "2026-11-19T10:00:00Z", "updated_at": "2026-11-19T10:00:00Z", "ttl": None, "poll": None}
    return TaskSeen(agent=agent, task=task, **(fields | more))


def task(**more: Any) -> bytes:
    return json.dumps({"taskId": "t1", "status": "working", "createdAt": "x", "lastUpdatedAt": "y", **more}).encode()


def test_a_task_keeps_its_handle_which_only_its_agent_can_open(bus, known):
    bus.publish(seen("t1"))
    one = known.created("ann", "lab", "t1")
    assert known.created("ann", "lab", "t1").handle == one.handle
    assert known.opened("ann", one.handle) is one
    assert "t1" not in one.id
    with pytest.raises(InvalidHandle):
        known.opened("bob", one.handle)


def test_a_handle_outlives_the_list(bus, known, tmp_path):
    bus.publish(seen("t1"))
    handle = known.created("ann", "lab", "t1").handle
    again = TaskRegistry(Bus(), Handles(tmp_path / "key")).opened("ann", handle)
    assert (again.server, again.tool, again.task, again.modern) == ("lab", "mix", "t1", True)


def test_a_result_that_the_gateway_kept_is_lost_with_the_list(known, tmp_path):
    own = known.add_finished("ann", "lab", "mix", ServerAnswer(result=b"{}"))
    assert known.opened("ann", own.handle) is own
    with pytest.raises(InvalidHandle):
        TaskRegistry(Bus(), Handles(tmp_path / "key")).opened("ann", own.handle)


def test_tasks_of_an_agent_end_with_it(bus, known):
    bus.publish(seen("t1"))
    bus.publish(seen("t2", "bob"))
    bus.publish(AgentEnded(agent="ann"))
    assert [one.agent for one in known.all()] == ["bob"]


def test_an_agent_can_have_so_many_unfinished_tasks(bus, known):
    for number in range(MAX_PER_AGENT):
        assert not known.is_full("ann")
        bus.publish(seen(f"t{number}"))
    assert known.is_full("ann")
    assert not known.is_full("bob")
    bus.publish(seen("t0", status="completed"))
    assert not known.is_full("ann")


def test_tasks_are_forgotten_after_their_time(bus, known, monkeypatch):
    now = registry.time.monotonic()
    bus.publish(seen("short", ttl=1000.0))
    bus.publish(seen("endless", ttl=1e15))
    bus.publish(seen("unsaid"))
    for later, left in ((0.5, 3), (2.0, 2), (registry.KEPT + 1, 1), (LONGEST_TTL + 1, 0)):
        monkeypatch.setattr(registry.time, "monotonic", lambda later=later: now + later)
        assert len(known.all()) == left
    with pytest.raises(NotFound):
        known.find("nothing")


def test_the_list_is_bounded(bus, known):
    for number in range(3 * MAX_PER_AGENT):
        bus.publish(seen(f"t{number}", status="completed" if number % 2 else "working"))
    assert len(known.all()) == 2 * MAX_PER_AGENT


@pytest.mark.parametrize(
    "broken",
    [
        b"[]",
        b"{}",
        b"not json",
        task(taskId=""),
        task(taskId="x" * 2000),
        task(status="lost"),
        task(taskId=7),
        task(ttl="1"),
    ],
)
def test_an_invalid_task_is_refused(broken):
    with pytest.raises(ProtocolViolation, match="invalid task"):
        read_task("lab", broken, Era.LEGACY)


def test_only_a_created_task_is_taken_for_one():
    def read(result: Any) -> Any:
        return created_task("lab", ServerAnswer(result=json.dumps(result).encode()))

    plain = json.loads(task())
    assert read({"task": plain}).era is Era.LEGACY
    assert read({**plain, "resultType": "task"}).era is Era.MODERN
    for other in (
        {"content": []},
        {"content": [], "task": plain},
        {**plain, "resultType": "complete"},
        {"task": 1, "content": []},
    ):
        assert read(other) is None
    with pytest.raises(ProtocolViolation):
        read({"task": 1})
    assert created_task("lab", ServerAnswer(error=b"{}")) is None


def test_a_server_that_needs_a_task_is_recognized():
    extension = {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
    for code, data, needed in ((-32021, extension, True), (-32021, {}, False), (-32602, extension, False)):
        error = json.dumps({"code": code, "message": "x", "data": data}).encode()
        assert needs_extension(ServerAnswer(error=error)) is needed
    assert not needs_extension(ServerAnswer(result=b"{}"))


def test_the_servers_id_is_replaced_in_a_result():
    key = "io.modelcontextprotocol/related-task"
    result = b'{"content":[],"big":1e400,"_meta":{"' + key.encode() + b'":{"taskId":"secret"},"n":1.50}}'
    assert without_related_task(result) == b'{"content":[],"big":1e400,"_meta":{"n":1.50}}'
    named = without_related_task(result, "mine")
    assert b"secret" not in named
    assert b'{"taskId":"mine"}' in named
    assert without_related_task(b'{"content":[]}') == b'{"content":[]}'


def test_progress_never_goes_back():
    told: list[Any] = []
    progress = TaskProgress(told.append)
    for message in ("one", "one", "", "two"):
        progress.say(message)
    progress({"progress": 1, "total": 9})
    progress({"progress": "much"})
    progress({"progress": 5, "total": 9})
    progress.say("three")
    assert told == [{"progress": 1, "message": "one"}, {"progress": 2, "message": "two"}, {"progress": 5, "total": 9}]


def test_a_server_with_unfinished_tasks_is_not_idle():
    held = OpenTasks()
    assert not held
    held.note(read_task("lab", task(ttl=60_000), Era.LEGACY))
    assert held
    held.note(read_task("lab", task(status="failed"), Era.LEGACY))
    assert not held
    held.note(read_task("lab", task(ttl=0), Era.LEGACY))
    assert not held
