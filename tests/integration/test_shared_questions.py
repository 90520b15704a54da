"""Questions on a stream that all callers of a server share: one process for each agent, and one call at a time."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from parts import fleet
from parts.server_process import StartServer, stdio_command
from parts.waiting import until
from toolcrib.calls import CallRequest
from toolcrib.commands.all import registry
from toolcrib.commands.registry import CommandContext, CommandHost, Via
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.core.results import read_answer
from toolcrib.errors import CallTimeout
from toolcrib.events import AgentEnded, TaskSeen
from toolcrib.identity.principal import CLIENT, OWNER, Principal, RequestContext
from toolcrib.servers import questions
from toolcrib.servers.model import ServerAnswer
from toolcrib.servers.questions import Asker, Question
from toolcrib.servers.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-8")]

ANN, BEN, CEC = (Principal.fixed(name, CLIENT.permission()) for name in ("ann", "ben", "cec"))
CANCELLED = {"action": "cancel"}
Json = dict[str, Any]
ATTEMPTS = 1000


class Person:
    """Answers with its own name, when it is let."""

    def __init__(self, name: str, *, waits: bool = False) -> None:
        self.capabilities: Mapping[str, Any] = {"elicitation": {"form": {}}, "roots": {}}
        self.answer = {"action": "accept", "content": {"name": name}}
        self.asked: list[Question] = []
        self.may_answer = asyncio.Event()
        self.left = 0
        if not waits:
            self.may_answer.set()

    async def ask(self, question: Question) -> Json:
        self.asked.append(question)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return self.answer


class Scene:
    def __init__(self, crib: Crib, seen: Path) -> None:
        self.crib = crib
        self.home = crib.projects.home
        self._seen = seen

    async def call(
        self,
        tool: str,
        who: Principal = ANN,
        asker: Asker | None = None,
        *,
        project: Project | None = None,
        timeout: float | None = None,
        **arguments: Any,
    ) -> Json:
        """The structured content of the result."""
        params = {"arguments": msgspec.Raw(msgspec.json.encode(arguments))}
        request = CallRequest(tool=f"s:{tool}", params=params, asker=asker, timeout=timeout)
        answer = await self.crib.services.door.call(RequestContext(who, project or self.home), request)
        return dict(read_answer(answer.answer).structured or {})

    def begin(self, *args: Any, **more: Any) -> asyncio.Task[Json]:
        return asyncio.ensure_future(self.call(*args, **more))

    async def pid(self, who: Principal, **more: Any) -> int:
        return int((await self.call("whoami", who, **more))["pid"])

    def received(self, method: str) -> list[Json]:
        lines = self._seen.read_text().splitlines() if self._seen.exists() else []
        return [one for one in map(json.loads, lines) if one.get("method") == method]

    def received_answers(self) -> list[Json]:
        return [json.loads(line) for line in self._seen.read_text().splitlines() if '"method"' not in line]

    async def calls_received(self, count: int) -> None:
        await until(lambda: len(self.received("tools/call")) == count, f"{count} calls")

    @property
    def is_per_agent(self) -> bool:
        return self.home.servers["s"].is_per_agent

    async def turn(self) -> None:
        """The server asks for the first time."""
        assert (await self.call("ask", ANN, Person("ann")))["value"]["action"] == "accept"
        assert self.is_per_agent


OpenScene = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def open_scene(tmp_path: Path) -> OpenScene:
    """`open_scene(share="all")`: a crib with the server `s`. All cribs of a test have one database."""
    for name in ("home/start", "one", "two"):
        (tmp_path / name).mkdir(parents=True)
    seen = tmp_path / "seen"
    usual = {
        "command": sys.executable,
        "args": ["-I", "-S", str(fleet.SERVERS / "asking_pipe.py"), str(seen)],
        "roots": "project",
        "share": None,
        "connect_timeout": 60,
    }

    @asynccontextmanager
    async def opened(**entry: Any) -> AsyncIterator[Scene]:
        environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
        (tmp_path / "home" / "config.json").write_text(json.dumps({"servers": {"s": {**usual, **entry}}}))
        async with Crib(paths=Paths.of_user(environ), root=tmp_path / "one", environ=environ) as crib:
            await crib.projects.home.settled()
            yield Scene(crib, seen)

    return opened


async def test_a_first_question_while_several_agents_call_is_put_to_nobody(
    open_scene: OpenScene, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_scene() as scene:
        ann, ben = Person("ann"), Person("ben")
        holding = scene.begin("hold", ANN, ann)
        await scene.calls_received(1)
        assert (await scene.call("ask", BEN, ben))["value"] == CANCELLED
        assert (await holding)["value"] == "released", "a call in flight ends where it began"
        assert (ann.asked, ben.asked) == ([], [])
        assert "nobody could be asked" in caplog.text
        await scene.crib.services.audit.flush()
        assert scene.is_per_agent

        pids = [await scene.pid(who) for who in (ANN, BEN, CEC, OWNER)]
        assert len(set(pids)) == 4
        assert [await scene.pid(who) for who in (ANN, BEN, CEC, OWNER)] == pids
        assert (await scene.call("ask", BEN, ben))["value"] == ben.answer


@pytest.mark.parametrize("same", [ANN, OWNER])
async def test_calls_of_one_agent_wait_for_their_turn_and_each_is_asked_its_own_question(
    open_scene: OpenScene, same: Principal
) -> None:
    async with open_scene() as scene:
        await scene.turn()
        before = len(scene.received("tools/call"))
        people = [Person(f"window {number}", waits=True) for number in range(3)]
        calls = [scene.begin("ask", same, person) for person in people]
        await until(lambda: people[0].asked)
        assert len(scene.received("tools/call")) == before + 1
        calls[1].cancel()
        await asyncio.wait({calls[1]})
        people[0].may_answer.set()
        people[2].may_answer.set()
        assert [(await calls[number])["value"] for number in (0, 2)] == [people[0].answer, people[2].answer]
        assert len(scene.received("tools/call")) == before + 2, "the cancelled call was not sent"
        assert people[1].asked == []


async def test_a_question_that_stays_open_delays_only_its_agent_and_not_for_ever(
    open_scene: OpenScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_scene() as scene:
        await scene.turn()
        monkeypatch.setattr(questions, "LONGEST_QUESTION", 1.0)
        absent = Person("ann", waits=True)
        asking = scene.begin("ask", ANN, absent)
        await until(lambda: absent.asked)
        waiting = scene.begin("whoami", ANN)
        assert (await scene.call("ask", BEN, Person("ben")))["value"]["action"] == "accept"
        assert not asking.done()
        assert not waiting.done()
        assert (await asking)["value"] == CANCELLED
        assert (await waiting)["pid"]


async def test_a_calls_time_limit_begins_with_its_turn_and_stands_still_while_a_person_is_asked(
    open_scene: OpenScene,
) -> None:
    limit = 0.4
    loop = asyncio.get_running_loop()
    async with open_scene() as scene:
        await scene.turn()
        slow = Person("ann", waits=True)
        asking = scene.begin("ask", ANN, slow, timeout=limit)
        await until(lambda: slow.asked)
        waiting = scene.begin("whoami", ANN, timeout=limit)
        end = loop.time() + 2 * limit
        await until(lambda: loop.time() > end)
        slow.may_answer.set()
        assert (await asking)["value"] == slow.answer
        assert (await waiting)["pid"]
        with pytest.raises(CallTimeout):
            await scene.call("hold", ANN, timeout=limit)


async def test_a_late_question_of_a_cancelled_call_is_not_put_to_the_next_one(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        await scene.turn()
        first, next_one = Person("first"), Person("next")
        calls, answers = len(scene.received("tools/call")), len(scene.received_answers())
        late = scene.begin("late", ANN, first)
        await scene.calls_received(calls + 1)
        late.cancel()
        await asyncio.wait({late})
        assert (await scene.call("whoami", ANN, next_one))["pid"]
        await until(lambda: len(scene.received_answers()) == answers + 1)
        assert scene.received_answers()[-1]["result"] == CANCELLED
        assert (first.asked, next_one.asked) == ([], [])


async def test_a_question_ends_with_its_call_and_the_server_gets_an_answer(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        await scene.turn()
        person = Person("ann", waits=True)
        asking = scene.begin("ask", ANN, person)
        await until(lambda: person.asked)
        asking.cancel()
        await asyncio.wait({asking})
        assert person.left == 1
        assert await scene.pid(ANN)
        await until(lambda: scene.received("notifications/cancelled"))
        answers = [one["result"] for one in scene.received_answers()]
        assert answers[-1] == CANCELLED


async def test_that_a_server_asks_is_remembered_until_its_entry_changes(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        await scene.turn()
        await asyncio.gather(*scene.crib.projects._background)
    async with open_scene() as scene:
        assert scene.is_per_agent
        assert await scene.pid(ANN) != await scene.pid(BEN)
    async with open_scene(env={"NEW": "1"}) as scene:
        assert not scene.is_per_agent
        assert await scene.pid(ANN) == await scene.pid(BEN)


@pytest.mark.parametrize("share", ["all", "project"])
async def test_a_server_that_is_shared_by_its_entry_stays_so_and_runs_one_call_at_a_time(
    open_scene: OpenScene, share: str
) -> None:
    async with open_scene(share=share) as scene:
        await scene.call("ask", ANN, Person("ann"))
        assert not scene.is_per_agent
        ann, ben = Person("ann", waits=True), Person("ben")
        asking = scene.begin("ask", ANN, ann)
        await until(lambda: ann.asked)
        other = scene.begin("ask", BEN, ben)
        assert ben.asked == []
        ann.may_answer.set()
        assert ((await asking)["value"], (await other)["value"]) == (ann.answer, ben.answer)
        assert await scene.pid(ANN) == await scene.pid(BEN) == await scene.pid(OWNER)


async def test_all_own_processes_of_agents_learn_that_the_server_asks(open_scene: OpenScene) -> None:
    async with open_scene(share="agent") as scene:
        assert await scene.pid(BEN)
        await scene.call("ask", ANN, Person("ann"))
        first, second = Person("first", waits=True), Person("second")
        calls = [scene.begin("ask", BEN, first), scene.begin("ask", BEN, second)]
        await until(lambda: first.asked)
        first.may_answer.set()
        assert [(await one)["value"] for one in calls] == [first.answer, second.answer]


async def test_the_process_of_an_agent_ends_with_it(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        await scene.turn()
        gone, kept = await scene.pid(ANN), await scene.pid(BEN)
        scene.crib.bus.publish(AgentEnded(agent=ANN.name))
        await until(lambda: not Path(f"/proc/{gone}").exists())
        assert await scene.pid(BEN) == kept
        assert list(scene.home.agent_servers.by_agent("s")) == [BEN.name]


async def test_asking_for_roots_changes_nothing_and_each_call_gets_its_own_project(
    open_scene: OpenScene, tmp_path: Path
) -> None:
    async with open_scene(roots="project", share="all") as scene:
        for name, who in (("one", ANN), ("two", BEN)):
            project = await scene.crib.projects.at(tmp_path / name)
            found = await scene.call("ask", who, project=project, method="roots/list", params={})
            assert found["value"] == {"roots": [{"uri": (tmp_path / name).as_uri(), "name": name}]}
        assert not scene.is_per_agent
        assert not scene.home.servers["s"].asks
        (began,) = scene.received("initialize")[-1:]
        assert began["params"]["capabilities"]["roots"] == {}


async def test_a_server_without_roots_is_neither_told_of_them_nor_answered(open_scene: OpenScene) -> None:
    async with open_scene(roots="none") as scene:
        assert (await scene.call("ask", method="roots/list", params={}))["value"]["error"]["code"] == -32601
        (began,) = scene.received("initialize")
        assert set(began["params"]["capabilities"]) == {"elicitation"}


@pytest.mark.parametrize("transport", ["http", "sse", "ws"])
async def test_only_remote_servers_with_one_stream_get_a_connection_for_each_agent(
    open_scene: OpenScene, start_server: StartServer, parts: Callable[[str], list[str]], tmp_path: Path, transport: str
) -> None:
    parts("mcp-v1")
    seen = tmp_path / "own"
    running = start_server([*stdio_command("sdk_v1", "--seen", str(seen)), "--transport", transport])
    spelled = {"ws": "websocket"}.get(transport, transport)
    form = {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": {}}}
    form["params"]["requestedSchema"] = {"type": "object", "properties": {}}
    entry = {"url": running.url(transport), "transport": spelled, "command": None, "args": None, "roots": None}
    async with open_scene(**entry) as scene:
        await scene.call("ask", ANN, Person("ann"), rounds=[{"q": form}])
        assert scene.is_per_agent == (transport != "http")
        people = [Person(name, waits=True) for name in ("ann", "ben")]
        calls = [
            scene.begin("ask", who, person, rounds=[{"q": form}])
            for who, person in zip((ANN, BEN), people, strict=True)
        ]
        await until(lambda: all(person.asked for person in people))
        for person in people:
            person.may_answer.set()
        assert [(await one)["q"] for one in calls] == [person.answer for person in people]
        sessions = scene.home.agent_servers.all()
        assert len(sessions) == (0 if transport == "http" else 2)


async def test_the_owner_cancels_a_task_in_the_project_of_its_agent(
    open_scene: OpenScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_scene() as scene:
        crib = scene.crib
        await scene.pid(ANN)
        two = await crib.projects.at(tmp_path / "two")
        await two.settled()
        await crib.services.agents.add("dee", profile="developer", workdir=tmp_path / "two")
        about: Json = {"modern": True, "status": "working", "message": "", "created_at": "", "updated_at": ""}
        crib.bus.publish(TaskSeen(agent="dee", server="s", tool="whoami", task="t1", ttl=None, poll=None, **about))
        asked: list[Server] = []

        async def call(self: Server, call: Any, **_: Any) -> ServerAnswer:
            asked.append(self)
            return ServerAnswer(result=b"{}")

        monkeypatch.setattr(Server, "call", call)
        (task,) = crib.services.tasks.all()
        request: Any = RequestContext(OWNER, scene.home)
        context = CommandContext(crib=crib, request=request, host=cast(CommandHost, None), via=Via.SOCKET, emit=emitted)
        await registry.run("task:cancel", {"id": task.id}, context)
        assert set(asked) == {two.servers["s"]}
        assert two.servers["s"] is not scene.home.servers["s"]


async def emitted(event: Json) -> None:
    raise AssertionError(event)


async def allowed_folders(scene: Scene, project: Project, who: Principal) -> set[str]:
    request = CallRequest(tool="s:list_allowed_directories", params={"arguments": msgspec.Raw(b"{}")})
    answer = await scene.crib.services.door.call(RequestContext(who, project), request)
    return {line for line in read_answer(answer.answer).text.splitlines() if line.startswith("/")}


async def test_the_filesystem_servers_folders_are_only_replaced_if_the_entry_says_so(
    open_scene: OpenScene, parts: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command, *args = parts("filesystem")
    (tmp_path / "data").mkdir()
    entry = {"command": command, "args": [*args, str(tmp_path / "data")]}
    async with open_scene(**entry, roots=None) as scene:
        assert await allowed_folders(scene, scene.home, ANN) == {str(tmp_path / "data")}
    async with open_scene(**entry, roots="project") as scene:
        for name in ("one", "two"):
            project = await scene.crib.projects.at(tmp_path / name)
            for _ in range(ATTEMPTS):
                # It asks for its roots after it has started.
                if (found := await allowed_folders(scene, project, ANN)) == {str(tmp_path / name)}:
                    break
            assert found == {str(tmp_path / name)}
