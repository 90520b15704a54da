"""Servers' questions where nobody is at the client: the owner answers them with `toolcrib approve`, or a program does.

One daemon connects a server of each era. Both record the answers that they get.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from parts import runs
from parts.agent_clients import ERAS, Owner
from parts.asked_clients import AskedClient, Json
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.server_process import stdio_command, stdio_entry
from parts.typing_person import at_terminal
from parts.waiting import during, wait_for
from toolcrib import AgentOptions, Client, Crib, Kit, ServerQuestion, StdioServer, run_agent
from toolcrib.core.connection import Connection
from toolcrib.errors import ServerUnavailable, ToolcribError
from toolcrib.testing import Call, CallByName, Say, ScriptedModel, scripted

pytestmark = [pytest.mark.slow, pytest.mark.req("KSI-5", "KSI-8")]

LIMIT = 60.0
KEY = "sk-test-0123456789abcdef"
SERVERS = {"legacy": ("sdk_v1",), "modern": ("sdk_v2", "--modern-only")}
PROPERTIES: Json = {
    "name": {"type": "string", "minLength": 2, "description": "Nothing is\napproved: yet"},
    "age": {"type": "integer", "minimum": 18, "default": 30},
    "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
    "extras": {"type": "array", "items": {"type": "string", "enum": ["lid", "bag", "pen"]}, "maxItems": 2},
    "gift": {"type": "boolean"},
}
FORM: Json = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who buys?",
        "requestedSchema": {"type": "object", "properties": PROPERTIES, "required": ["name", "size"]},
    },
}
PAGE: Json = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Pay.", "url": "https://shop.example/pay?o=1", "elicitationId": "e1"},
}
SAMPLING: Json = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Capital?"}}], "maxTokens": 20},
}
SAMPLED: Json = {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"}
BOUGHT: Json = {"action": "accept", "content": {"name": "Ann", "size": "l", "age": 30}}


def asking(mark: str, question: Json = FORM) -> Json:
    return {"rounds": [{"q": question}], "mark": mark}


JOB_STEPS = [
    Call("legacy_ask", asking("job legacy")),
    Call("modern_ask", asking("job modern", PAGE)),
    Say("Bought."),
]


@dataclass(frozen=True, kw_only=True)
class Scene:
    daemon: Daemon
    cli: Cli
    owner: Owner
    home: Home
    job_model: ScriptedModel

    def answers(self, mark: str) -> list[Json]:
        """What the servers got for the question of the call with this mark."""
        return [line["arguments"]["q"] for line in self._noted("answered", mark)]

    def was_cancelled(self, mark: str) -> bool:
        return bool(self._noted("cancelled", mark))

    def _noted(self, method: str, mark: str) -> list[Json]:
        files = [self.home.path / f"{name}.seen" for name in SERVERS]
        lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
        return [line for line in lines if (line["method"], line["name"]) == (method, mark)]

    def waiting(self) -> Json:
        """The only question that waits, when there is one."""
        (row,) = wait_for(lambda: self.owner.say("approval:list")["approvals"], "a question to wait", LIMIT)
        return dict(row)

    def nothing_waits(self) -> None:
        wait_for(lambda: not self.owner.say("approval:list")["approvals"], "the question to end", LIMIT)

    def questions(self, agent: str) -> list[Json]:
        return [row for row in self.owner.audit(agent=agent) if row["kind"] == "question"]

    def connect(self, **more: Any) -> Connection:
        return Crib.connect(**{"environ": self.home.environ(), "workdir": self.home.project, **more})


@pytest.fixture(scope="module")
def scene(
    shared_home: Home, start_shared_daemon: StartDaemon, shared_cli: Cli, parts: Callable[[str], list[str]]
) -> Iterator[Scene]:
    parts("mcp-v1")
    entries = {
        name: stdio_entry(*words, "--seen", str(shared_home.path / f"{name}.seen")) for name, words in SERVERS.items()
    }
    asks = {f"{name}_sampling": {**entry, "sampling": "ask"} for name, entry in entries.items()}
    with scripted("openai", JOB_STEPS) as model:
        jobs = {"model": "openai:worker", "base_urls": {"openai": model.url}, "api_keys": {"openai": "${JOBS_KEY}"}}
        daemon = start_shared_daemon({"servers": {**entries, **asks}, "jobs": jobs}, env={"JOBS_KEY": KEY})
        daemon.wait_until_ready(*entries, *asks)
        yield Scene(daemon=daemon, cli=shared_cli, owner=Owner(daemon), home=shared_home, job_model=model)


@pytest.fixture(scope="module")
def daemon_for_runs(scene: Scene) -> Daemon:
    return scene.daemon


def test_a_job_is_asked_and_continues_after_the_owners_answers(scene: Scene) -> None:
    job = scene.cli("job", "submit", "Buy a pen.", "--json").ok().json["job"]
    waits = scene.waiting()
    shown = scene.cli("approvals").ok().out
    first, *lines = shown.splitlines()
    assert first.startswith(f"{waits['id']}  server legacy asks {job} to fill in a form, in legacy:ask; ")
    assert [line.strip() for line in lines if "in the conversation" not in line] == [
        "\"Server 'legacy' asks: Who buys?\"",
        r'name: text, at least 2 characters; required  "Nothing is\napproved: yet"',
        "age: a whole number, at least 18; default 30",
        'size: one of "s" ("Small"), "l" ("Large"); required',
        'extras: any of "lid", "bag", "pen", at most 2 of them',
        "gift: true or false",
    ]
    missing = scene.cli("approve", waits["id"])
    assert (missing.exit_code, missing.out) == (2, "")
    assert '"name" is required: text' in missing.err
    wrong = scene.cli("approve", waits["id"], "name=A", "size=Large", "colour=red")
    assert wrong.exit_code == 2
    assert 'it has no field "colour"; "name" must be text, at least 2 characters, not "A"' in wrong.err
    assert scene.cli("approve", waits["id"], "name=Ann", "--always").exit_code == 2
    assert scene.waiting()["id"] == waits["id"], "it still waits"
    done = scene.cli("approve", waits["id"], "name=Ann", "size=Large").ok()
    assert done.out == f"Approved: the question in legacy:ask for {job}.\n"
    wait_for(lambda: scene.answers("job legacy"), "the server to get the answer")
    assert scene.answers("job legacy") == [BOUGHT]

    paying = scene.waiting()
    shown = scene.cli("approvals", paying["id"]).ok().out
    assert f"server modern asks {job} to open a page on shop.example, in modern:ask; " in shown
    assert 'page: "https://shop.example/pay?o=1"' in shown
    assert "Toolcrib does not open it." in shown
    assert scene.cli("refuse", paying["id"]).ok().out == f"Refused: the question in modern:ask for {job}.\n"

    ended = scene.daemon.command("job:result", job=job, wait=LIMIT)
    assert (ended["status"], ended["text"]) == ("done", "Bought."), ended
    assert scene.answers("job modern") == [{"action": "decline"}]
    assert [json.loads(text) for text in scene.job_model.conversations[-1].results] == [
        {"q": BOUGHT},
        {"q": {"action": "decline"}},
    ]
    asked = scene.questions(job)
    assert [(row["server"], row["outcome"], row["detail"]["asks"]) for row in asked] == [
        ("legacy", "accept", "form"),
        ("modern", "decline", "url"),
    ]
    assert "Ann" not in json.dumps(asked)
    audited = scene.cli("audit", "--agent", job).ok().out
    assert "server legacy asked for a form: accept" in audited
    assert "server modern asked for a page: decline" in audited


async def asked_twice(scene: Scene, mark: str, answer: Callable[[Json], Awaitable[object]]) -> dict[str, Any]:
    """A lent agent's results of a call of each server, whose question `answer` gets as it waits."""
    results = {}
    async with scene.connect() as connection:
        for name in SERVERS:
            call = asyncio.create_task(connection.call(f"{name}:ask", asking(f"{mark} {name}")))
            waits = await during(scene.waiting)
            assert (waits["agent"], waits["question"]["server"]) == (connection.agent, name)
            await answer(waits)
            async with asyncio.timeout(LIMIT):
                results[name] = (await call).structured
    return results


async def test_a_form_is_filled_in_field_by_field_at_a_terminal(scene: Scene) -> None:
    async def fill_in(waits: Json) -> None:
        typed = [
            ("name: ", ""),
            ("It is required: text, at least 2 characters.\r\nname: ", "A"),
            ("It must be text, at least 2 characters.\r\nname: ", "Ann"),
            ("age: ", ""),
            ("size: ", ""),
            ("size: ", "Large"),
            ("extras (separated by commas): ", "lid, pen"),
            ("gift: ", "maybe"),
            ("It must be true or false.\r\ngift: ", "yes"),
        ]
        code, screen = await during(at_terminal, scene.home, "approve", waits["id"], answers=typed)
        assert code == 0, screen
        assert r'"Nothing is\napproved: yet"' in screen

    content = {"name": "Ann", "size": "l", "extras": ["lid", "pen"], "gift": True, "age": 30}
    given = {"q": {"action": "accept", "content": content}}
    assert await asked_twice(scene, "typed", fill_in) == dict.fromkeys(SERVERS, given)
    assert [scene.answers(f"typed {name}") for name in SERVERS] == [[given["q"]]] * 2


async def test_a_form_is_answered_with_json_or_values(scene: Scene) -> None:
    async def with_json(waits: Json) -> None:
        refused = await during(scene.cli, "approve", waits["id"], "--content", "[1]")
        assert "not a JSON object" in refused.err
        words = ("--content", json.dumps({"name": "Ann", "size": "l"}))
        assert (await during(scene.cli, "approve", waits["id"], *words, "--json")).ok().json["approved"]
        late = await during(scene.cli, "approve", waits["id"], *words)
        assert (late.exit_code, "was answered" in late.err) == (4, True)

    async def with_words(waits: Json) -> None:
        words = ("name=Ann=1", "size=s", "extras=bag", "extras=pen", "gift=no", "age=18")
        (await during(scene.cli, "approve", waits["id"], *words)).ok()

    assert await asked_twice(scene, "json", with_json) == {name: {"q": BOUGHT} for name in SERVERS}
    content = {"name": "Ann=1", "size": "s", "extras": ["bag", "pen"], "gift": False, "age": 18}
    given = {"q": {"action": "accept", "content": content}}
    assert await asked_twice(scene, "words", with_words) == dict.fromkeys(SERVERS, given)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_question_ends_with_its_call_and_with_its_agent(scene: Scene, server: str) -> None:
    async with scene.connect() as connection:
        call = asyncio.create_task(connection.call(f"{server}:ask", asking(f"left {server}")))
        await during(scene.waiting)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await during(scene.nothing_waits)
    async with scene.connect() as connection:
        call = asyncio.create_task(connection.call(f"{server}:ask", asking(f"ended {server}")))
        await during(scene.waiting)
        await during(scene.owner.remove, connection.agent)
        await during(scene.nothing_waits)
        with pytest.raises(ToolcribError):
            await call
    assert scene.answers(f"left {server}") == scene.answers(f"ended {server}") == []


async def test_a_daemon_killed_while_it_asks_repeats_nothing_and_the_next_one_asks_the_owner_too(
    toolcrib_home: Home, daemon: StartDaemon, cli: Cli
) -> None:
    seen = toolcrib_home.path / "seen"
    config = {"servers": {"modern": stdio_entry(*SERVERS["modern"], "--seen", str(seen))}}
    first = daemon(config)
    first.wait_until_ready("modern")

    def waiting(running: Daemon) -> Json:
        (row,) = wait_for(lambda: running.command("approval:list")["approvals"], "a question to wait", LIMIT)
        return dict(row)

    async with Crib.connect(environ=toolcrib_home.environ(), workdir=toolcrib_home.project) as connection:
        call = asyncio.create_task(connection.call("ask", asking("killed")))
        await during(waiting, first)
        await during(first.kill)
        with pytest.raises(ServerUnavailable, match="may have run"):
            await call
        second = await during(daemon, config, "--port", str(urlsplit(first.endpoint).port))
        await during(wait_for, lambda: second.status()["runs"] == 1, "the lease to be back", LIMIT)
        assert second.command("approval:list")["approvals"] == []
        call = asyncio.create_task(connection.call("ask", asking("again")))
        waits = await during(waiting, second)
        (await during(cli, "refuse", waits["id"])).ok()
        assert (await call).structured == {"q": {"action": "decline"}}
        audited = (await during(cli, "audit", "--agent", connection.agent)).ok().out
    assert "cut off" in audited
    lines = [json.loads(line) for line in seen.read_text().splitlines()]
    marks = [line["name"] for line in lines if line["method"] == "asking"]
    assert marks == ["killed", "again"]


def answer_with(seen: list[ServerQuestion], value: Any = None) -> Callable[[ServerQuestion], Any]:
    async def answer(question: ServerQuestion) -> Any:
        seen.append(question)
        await asyncio.sleep(0)
        return {"name": "Ann", "size": "l"} if value is None else value

    return answer


def check(question: ServerQuestion, server: str) -> None:
    assert (question.server, question.tool) == (server, f"{server}:ask")
    assert question.message == f"Server '{server}' asks: Who buys?"
    assert [field.name for field in question.fields] == list(PROPERTIES)
    assert question.schema == FORM["params"]["requestedSchema"]
    assert question.url == question.host == ""


@pytest.mark.parametrize("server", SERVERS)
async def test_a_program_answers_what_is_asked_during_its_calls_in_the_daemon(scene: Scene, server: str) -> None:
    seen: list[ServerQuestion] = []
    async with scene.connect(answer=answer_with(seen)) as connection:
        result = await connection.call(f"{server}:ask", asking(f"program {server}"))
        assert result.structured == {"q": BOUGHT}
        agent = connection.agent
    assert scene.answers(f"program {server}") == [BOUGHT]
    (question,) = seen
    check(question, server)
    (noted,) = await during(scene.questions, agent)
    assert noted["outcome"] == "accept"


def own(server: str, home: Home) -> StdioServer:
    command, *args = stdio_command(*SERVERS[server])
    env = {"TOOLCRIB_TEST_SEEN": str(home.path / f"{server}.seen")}
    return StdioServer(server, command=command, args=args, env=env, connect_timeout=LIMIT)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, BOUGHT),
        (False, {"action": "decline"}),
        ({"name": 5}, {"action": "cancel"}),
        (True, {"action": "cancel"}),
        (7, {"action": "cancel"}),
    ],
    ids=str,
)
async def test_a_kit_asks_its_program(scene: Scene, server: str, value: Any, result: Json) -> None:
    seen: list[ServerQuestion] = []
    mark = f"kit {server} {value}"
    async with Kit([own(server, scene.home)], connect_limit=LIMIT, answer=answer_with(seen, value)) as kit:
        assert (await kit.call("ask", asking(mark))).structured == {"q": result}
    assert scene.answers(mark) == [result]
    (question,) = seen
    check(question, server)


async def test_a_program_that_does_not_answer_gets_no_questions(scene: Scene) -> None:
    async with Client(own("legacy", scene.home)) as client:
        result = await client.call_tool("ask", asking("nobody"))
    assert result.structured == {"q": {"action": "cancel"}}

    def fails(_: ServerQuestion) -> bool:
        raise RuntimeError("no")

    async with Client(own("legacy", scene.home), answer=fails) as client:
        result = await client.call_tool("ask", asking("failing"))
    assert result.structured == {"q": {"action": "cancel"}}
    assert scene.answers("nobody") == scene.answers("failing") == [{"action": "cancel"}]


async def test_a_page_is_accepted_by_a_program(scene: Scene) -> None:
    seen: list[ServerQuestion] = []
    async with Client(own("legacy", scene.home), answer=answer_with(seen, True)) as client:
        result = await client.call_tool("ask", asking("page", PAGE))
    assert result.structured == {"q": {"action": "accept"}}
    (question,) = seen
    assert (question.url, question.host, question.fields) == ("https://shop.example/pay?o=1", "shop.example", ())
    assert question.message == "Server 'legacy' asks you to open a page on shop.example: Pay."


@pytest.mark.parametrize("of_crib", [{}, {"answer": lambda _: False}], ids=["without", "with"])
async def test_a_run_asks_its_program_what_its_servers_and_its_crib_are_asked(scene: Scene, of_crib: Any) -> None:
    seen: list[ServerQuestion] = []
    own_mark, crib_mark = (f"run {whose} {len(of_crib)}" for whose in ("own", "crib"))
    steps = [CallByName("ask", asking(own_mark)), CallByName("modern_ask", asking(crib_mark)), Say("Bought.")]
    with scripted("openai", steps) as model:
        async with scene.connect(**of_crib) as connection:
            options = AgentOptions(
                model="openai:m",
                base_url=model.url,
                api_key=KEY,
                mcp_servers=[own("legacy", scene.home)],
                crib=connection,
                keep=("ask", "modern_ask"),
                answer=answer_with(seen),
            )
            events = [event async for event in run_agent("Buy.", options)]
    assert events[-1].text == "Bought.", events[-1]
    assert [json.loads(text) for text in model.conversations[-1].results] == [{"q": BOUGHT}] * 2
    assert scene.answers(own_mark) == scene.answers(crib_mark) == [BOUGHT]
    assert [question.server for question in seen] == ["legacy", "modern"]


ASKING_PROGRAM = """
import json, sys
from toolcrib import CodeAgent
seen = []
def answer(question):
    seen.append([question.server, question.tool, question.message])
    return {"name": "Ann", "size": "l"}
result = CodeAgent(sys.argv[1], answer=answer).run("Buy.")
print(json.dumps({"text": result.text, "status": result.status, "seen": seen}))
"""


@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="codex")
def test_a_program_answers_what_its_coding_agent_is_asked(scene: Scene, new_user: Any, name: str) -> None:
    marks = [f"{name} {server}" for server in SERVERS]
    user, model = new_user(name, *(Call(f"{mark.split()[1]}_ask", asking(mark)) for mark in marks))
    words = [sys.executable, "-c", ASKING_PROGRAM, name]
    done = subprocess.run(
        words, env=user.environ, cwd=user.project, capture_output=True, text=True, timeout=runs.LIMIT, check=False
    )
    assert done.returncode == 0, done.err
    found = json.loads(done.stdout)
    assert (found["text"], found["status"]) == ("Done.", "finished"), done.err
    assert found["seen"] == [[server, f"{server}:ask", f"Server '{server}' asks: Who buys?"] for server in SERVERS]
    assert [scene.answers(mark) for mark in marks] == [[BOUGHT], [BOUGHT]]
    assert all('"Ann"' in text.replace("\\", "") for text in model.conversations[-1].results[-2:])


@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="codex")
def test_a_run_says_where_its_question_waits_and_a_killed_run_takes_it_along(
    scene: Scene, new_user: Any, name: str
) -> None:
    mark = f"{name} run modern"
    steps = Call("modern_ask", asking(mark)), Call("legacy_ask", asking(f"{name} killed legacy"))
    user, _ = new_user(name, *steps)
    run = user.start("Buy.")
    scene.cli("approve", scene.waiting()["id"], "name=Ann", "size=l").ok()
    wait_for(lambda: scene.answers(mark), "the server to get the answer", LIMIT)
    assert scene.answers(mark) == [BOUGHT]
    assert scene.waiting()["question"]["server"] == "legacy"
    os.kill(run.process.pid, signal.SIGKILL)
    _, err = run.process.communicate(timeout=LIMIT)
    assert "Server 'modern' asks something in modern:ask: see `toolcrib approvals`." in err
    scene.nothing_waits()
    user.wait_until_alone()
    assert scene.answers(f"{name} killed legacy") == []


@pytest.mark.parametrize("server", [f"{name}_sampling" for name in SERVERS])
@pytest.mark.parametrize("era", ERAS)
def test_a_models_answer_is_asked_for_only_with_the_owners_permission(scene: Scene, era: str, server: str) -> None:
    name = f"sampler-{era}-{server}"
    token = scene.owner.add(name, profile="developer", workdir=str(scene.home.project))

    def call(client: AskedClient, mark: str, *, approved: bool) -> Any:
        with ThreadPoolExecutor() as pool:
            turn = pool.submit(client.call, f"{server}_ask", asking(mark, SAMPLING))
            waits = scene.waiting()
            assert (waits["agent"], waits["question"]["mode"]) == (name, "sampling")
            assert not turn.done()
            shown = scene.cli("approvals").ok().out
            assert f"server {server} wants an answer from {name}'s model, in {server}:ask; " in shown
            scene.cli("approve" if approved else "refuse", waits["id"]).ok()
            return waits, turn.result(LIMIT)

    with AskedClient.at_endpoint(scene.daemon, era, token) as client:
        mark = f"sample {era} {server}"
        waits, turn = call(client, mark, approved=True)
        (asked,) = turn.questions.values()
        assert asked["params"] == waits["question"]["params"], "what was approved is what is passed on"
        assert asked["params"]["messages"] == SAMPLING["params"]["messages"]
        turn = client.answer(turn, lambda _: SAMPLED)
        assert turn.result["structuredContent"]["q"]["content"]["text"] == "Paris"
        assert [answer["content"]["text"] for answer in scene.answers(mark)] == ["Paris"]

        mark = f"refused {era} {server}"
        waits, turn = call(client, mark, approved=False)
        assert not turn.questions
        if server.startswith("legacy"):
            (answer,) = scene.answers(mark)
            assert answer["error"]["code"] == -1
            assert "refused by the owner" in answer["error"]["message"]
        else:
            assert "refused by the owner" in json.dumps(turn.message)
            assert scene.answers(mark) == []
    outcomes = [row["outcome"] for row in scene.questions(name)]
    assert outcomes == ["answered", "refused"]


@pytest.mark.parametrize("server", SERVERS)
def test_the_owner_is_asked_at_the_terminal_of_the_call(scene: Scene, server: str) -> None:
    words = ["call", f"{server}:ask", "--args", json.dumps(asking(f"at the call {server}"))]
    typed = [
        ("Answer it? [y/N]", "y"),
        ("name: ", "Ann"),
        ("age: ", ""),
        ("size: ", "Large"),
        ("extras", ""),
        ("gift: ", ""),
    ]
    code, screen = at_terminal(scene.home, *words, answers=typed)
    assert code == 0, screen
    assert f"server {server} asks owner to fill in a form" in screen
    assert scene.answers(f"at the call {server}") == [BOUGHT]
    words = ["call", f"{server}:ask", "--args", json.dumps(asking(f"declined {server}", PAGE))]
    code, screen = at_terminal(scene.home, *words, answers=[("shop.example", "ignored"), ("Answer it? [y/N]", "n")])
    assert code == 0, screen
    assert scene.answers(f"declined {server}") == [{"action": "decline"}]


def test_the_owners_call_without_a_terminal_says_how_to_answer_its_own_question(scene: Scene) -> None:
    def call(server: str) -> Any:
        return pool.submit(scene.cli, "call", f"{server}:ask", "--args", json.dumps(asking(f"elsewhere {server}")))

    def waiting(server: str) -> str | None:
        rows = scene.owner.say("approval:list")["approvals"]
        return next((row["id"] for row in rows if row["question"]["server"] == server), None)

    with ThreadPoolExecutor(2) as pool:
        called, ids = {}, {}
        for server in SERVERS:
            called[server] = call(server)
            ids[server] = wait_for(lambda server=server: waiting(server), "the question")
        for server in SERVERS:
            scene.cli("approve", ids[server], "name=Ann", "size=l").ok()
            said = f"A server asks something. `toolcrib approvals {ids[server]}` shows it"
            err = called[server].result(LIMIT).err
            assert (said in err, err.count("asks something")) == (True, 1)
            assert scene.answers(f"elsewhere {server}") == [BOUGHT]
