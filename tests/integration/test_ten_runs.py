"""Ten runs of the real programs at once, each a process of its own: one server in each project, nothing mixed up."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from parts import runs, server_process
from parts.daemon import Cli, Home
from parts.waiting import wait_for
from toolcrib.testing.script import Call
from toolcrib.testing.server import serving

TEN = 10
LIMIT = 240.0


def projects(home: Home, count: int) -> list[Path]:
    made = [home.path / f"project-{n}" for n in range(count)]
    for folder in made:
        (folder / ".git").mkdir(parents=True)
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return made


@pytest.mark.req("FRG-11", "KAI-10")
@pytest.mark.parametrize(("name", "count"), [("codex", 3), ("claude", TEN)])
@pytest.mark.usual(name="codex")
def test_ten_runs_at_once_without_a_daemon_share_one_and_their_projects_servers(
    toolcrib_home: Home, cli: Cli, parts: Callable[[str], list[str]], name: str, count: int
) -> None:
    for program in runs.ALL:
        parts(program)
    program, *words = server_process.stdio_command("sdk_v2")
    seen = toolcrib_home.path / "seen"
    # Ten programs start at once: that the server is quick is not what is shown here.
    entry = {"command": program, "args": words, "cwd": "project", "connect_timeout": LIMIT}
    entry["env"] = {"TOOLCRIB_TEST_SEEN": str(seen)}
    toolcrib_home.write_config({"servers": {"own": entry}})
    folders = projects(toolcrib_home, count)
    with ExitStack() as stack:
        person = runs.ALL[name]
        user = stack.enter_context(runs.program_user(person, toolcrib_home, folders[0]))
        model = stack.enter_context(serving(person.agent.provider, [Call("own_echo", {"n": 1})], last_words="Done."))
        user.use(model.url)
        started = [
            replace(user, project=folders[n % count]).start(f"Echo for {n}.", "--json", "--timeout", f"{LIMIT:.0f}s")
            for n in range(TEN)
        ]
        results = [run.wait(LIMIT) for run in started]
        user.wait_until_alone()
    assert [one.ok().result["text"] for one in results] == ["Done."] * TEN
    assert [one.result["tools"].get("own:echo") for one in results] == [1] * TEN, "each log has only its own call"
    notes = [json.loads(line) for line in seen.read_text().splitlines()]
    calls = [note for note in notes if note["method"] == "tools/call"]
    assert len(calls) == TEN
    assert len({call["pid"] for call in calls}) == count, "a server is started once in each project"
    audit_log = cli("audit", "--json", "--tool", "own:echo").ok().json["entries"]
    agents = {entry["agent"] for entry in audit_log if entry["kind"] == "outcome"}
    assert len(agents) == TEN
    assert agents == {f"{name}-{one.result['conversation']}" for one in results}
    wait_for(lambda: not toolcrib_home.socket.exists(), "the daemon to end with the last run")
