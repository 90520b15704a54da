"""Runs of the real programs with `toolcrib run`: outcomes, hostile projects, `workspace.yml`, proxies, ten at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts import fleet, runs, server_process
from parts.daemon import PROGRAM
from parts.runs import CODEX, ProgramSetup, ProgramUser
from parts.sizes import some
from parts.waiting import wait_for
from toolcrib.policy.profile import BUILTIN
from toolcrib.testing.conversation import ToolOffering
from toolcrib.testing.script import Call, CallByName, Say, Step
from toolcrib.testing.server import ScriptedModel, serving

ROOT = Path(__file__).parents[2]
OWN_SHELL = {
    "claude": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "gemini": ("run_shell_command", "command"),
}


def outcomes(events: list[dict[str, Any]], server: str) -> list[str]:
    """How the calls of a server's tools ended; an empty name for the built-in tools."""
    over = [event for event in events if event["kind"] == "tool" and event["tool_status"] != "started"]
    return [event["tool_status"] for event in over if event.get("server", "") == server]


@pytest.mark.req("FRG-6", "FRG-7")
@pytest.mark.parametrize("name", runs.ALL)
@pytest.mark.usual(name="claude")
def test_a_failing_command_of_a_workspace_tool_is_shown_as_failed(new_user, name):
    limited = {"command": "sleep 60", "seconds": 1}
    commands = ({"command": "exit 3"}, limited, {"command": "true"})
    user, _ = new_user(name, *(Call("workspace_run_shell_safe", command) for command in commands))
    started = user.start("try").wait().ok()
    lines = [line for line in started.err.splitlines() if "workspace:run_shell_safe" in line and line[0] in "✓✗"]
    assert [line[0] for line in lines] == ["✗", "✗", "✓"], started.err
    assert "Exit code 3" in lines[0]
    assert "Ended at the time limit of 1 s" in lines[1]
    log = runs.Log.read(user.logs()[0])
    assert log.summary["failures"] == 2
    assert " (2 failed)\n" in started.err
    assert outcomes(log.events, "workspace") == ["error", "error", "ok"]


@pytest.mark.req("FRG-6")
@pytest.mark.parametrize("name", OWN_SHELL)
@pytest.mark.usual(name="codex")
def test_a_failing_command_of_the_programs_own_shell_is_shown_as_failed(new_user, name):
    tool, argument = OWN_SHELL[name]
    user, _ = new_user(name, *(CallByName(tool, {argument: command}) for command in ("exit 3", "true")))
    assert outcomes(user.run("try", "--profile", "trusted").ok().log.events, "") == ["error", "ok"]


def recipes(page: str) -> list[str]:
    """The commands of a page that run a coding agent, without comments."""
    lines = (line.removeprefix("$ ").partition("  #")[0].strip() for line in (ROOT / page).read_text().splitlines())
    return [line for line in lines if re.match(r"(git diff \| )?toolcrib run (claude|codex|gemini) ", line)]


RECIPES = recipes("docs/coding-agents.md")


def test_the_recipes_of_the_readme_are_on_the_page_whose_recipes_are_run_here():
    assert len(recipes("README.md")) == 3
    assert set(recipes("README.md")) <= set(RECIPES)


def git(folder: Path, *words: str) -> None:
    user = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True)


def execute(user: ProgramUser, *command: str) -> str:
    """The output of a command that must succeed."""
    environ = {**user.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{user.environ['PATH']}"}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, env=environ, cwd=user.project, timeout=runs.LIMIT, **pipes)
    assert done.returncode == 0, (command, done)
    return done.stdout


@pytest.mark.req("FRG-3", "FRG-6")
@pytest.mark.parametrize("name", runs.ALL)
def test_the_recipes_of_the_page_work_as_they_are_written(new_user, name):
    user, model = new_user(name)
    project = user.project
    (project.parent / "api").mkdir()
    (project / "task.md").write_text("the task of the file\n")
    (project / "proxy.env").write_text("A_VARIABLE=of the file\n")
    git(project, "init", "-q")
    git(project, "add", "task.md")
    git(project, "commit", "-qm", "First")
    (project / "task.md").write_text("the task of the diff\n")
    own = [line for line in RECIPES if f"toolcrib run {name} " in line]
    assert own
    for line in own:
        before = len(model.bodies)
        assert execute(user, "/bin/sh", "-c", line) == "Done.\n", line
        received = json.dumps(model.bodies[before:], ensure_ascii=False)
        assert shlex.split(line.removeprefix("git diff | "))[3] in received, line
        assert ("the task of the diff" in received) == ("git diff" in line or "task.md" in line), line
        for word in re.findall(r" -- .*?(opus|gpt-5)", line):
            assert word in received, line


REVIEW = """
from toolcrib import CodeAgent
print(CodeAgent("claude", profile="read-only").run("Review.\\n+ see @.env").text)
"""


@pytest.mark.req("FRG-6")
def test_the_library_does_not_read_files_named_in_a_prompt_either(new_user):
    user, model = new_user("claude")
    (user.project / ".env").write_text("SECRET=1234\n")
    assert execute(user, sys.executable, "-c", REVIEW) == "Done.\n"
    received = json.dumps(model.bodies)
    assert "see @.env" in received
    assert "SECRET=1234" not in received


PROXY = "http://127.0.0.1:9"
"""Nothing listens there."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class ProxyInEnvironment(ProgramUser):
    @property
    def environ(self) -> dict[str, str]:
        proxies = {name: PROXY for upper in PROXIES for name in (upper, upper.lower())}
        return {**super().environ, **proxies, "no_proxy": "elsewhere.example"}


class ProxyInFile(ProgramUser):
    """In the program's own file for variables."""

    def use(self, url: str, *more: object) -> None:
        super().use(url)
        if self.setup is runs.CLAUDE:
            file = self.folder / ".claude" / "settings.json"
            settings = json.loads(file.read_text())
            settings["env"] |= dict.fromkeys(PROXIES, PROXY)
            file.write_text(json.dumps(settings))
            return
        file = self.folder / (".codex" if self.setup is runs.CODEX else ".gemini") / ".env"
        with file.open("a") as opened:
            opened.writelines(f"{name}={PROXY}\n" for name in PROXIES)


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-6", "FRG-7")
@pytest.mark.parametrize(
    ("kind", "profile"),
    some(
        [(ProxyInFile, "read-only")],
        [(ProxyInEnvironment, "read-only"), (ProxyInEnvironment, "trusted"), (ProxyInFile, "trusted")],
    ),
)
@pytest.mark.parametrize("client", runs.ALL)
def test_toolcrib_is_reached_without_the_users_proxy_and_a_long_answer_arrives_whole(new_user, client, kind, profile):
    # Without repetitions, which Gemini CLI takes for a loop.
    answer = " ".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(7_500))
    user, model = new_user(client, Call("workspace_read_file", {"path": "note.md"}), Say(answer), kind=kind)
    (user.project / "note.md").write_text("The text of the note.\n")
    finished = user.run("Do it.", "--profile", profile)
    assert "The text of the note." in "".join(model.results), finished.out + finished.err
    assert finished.ok().result["text"].strip() == answer


class ProjectOnPath(ProgramUser):
    """The project's folder of programs is on PATH, as for many users."""

    @property
    def environ(self) -> dict[str, str]:
        usual = super().environ
        return {**usual, "PATH": f"{self.project}/node_modules/.bin{os.pathsep}{usual['PATH']}"}


def node_trap(user: ProgramUser, client: str) -> None:
    """The program is a script for `node`, as npm installs it, and the project has one of that name."""
    node, script = fleet.command(client)
    (user.programs / client).symlink_to(script)
    trap = user.project / "node_modules" / ".bin" / "node"
    trap.parent.mkdir(parents=True)
    trap.write_text(f'#!/bin/sh\ntouch {user.place}/node.mark\nexec {node} "$@"\n')
    trap.chmod(0o755)


def commit(folder: Path) -> None:
    """A file that the configuration has a filter for, and a change that keeps its size."""
    git(folder, "init", "--quiet")
    (folder / ".gitattributes").write_text("*.txt filter=e\n")
    (folder / "a.txt").write_text("as it was\n")
    git(folder, "add", ".gitattributes", "a.txt")
    git(folder, "commit", "-m", "first")
    (folder / "a.txt").write_text("As it is.\n")


def make_pipe(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    os.mkfifo(file)


PIPES = {"claude": ("CLAUDE.md", ".claude/settings.json", ".mcp.json"), "codex": ("AGENTS.md",), "gemini": (".env",)}
"""Files on which a program that opens them would block."""


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5")
@pytest.mark.parametrize(
    ("client", "profile", "triggered"),
    some(
        [
            ("claude", "read-only", set()),
            ("codex", "nothing", set()),
            ("codex", "read-only", set()),
            ("codex", "trusted", {"node.mark", "filter.mark"}),
            ("gemini", "read-only", set()),
        ],
        [("codex", "developer", set()), ("gemini", "developer", set()), ("gemini", "trusted", {"node.mark"})],
    ),
)
def test_below_all_the_projects_interpreters_git_filters_and_pipes_do_no_harm(new_user, client, profile, triggered):
    user, model = new_user(client, kind=ProjectOnPath)
    commit(user.project)
    git(user.project, "config", "filter.e.clean", f"touch {user.place}/filter.mark; cat")
    if client != "claude":
        node_trap(user, client)
    if not triggered:
        for name in PIPES[client]:
            make_pipe(user.project / name)
    finished = user.run("look", "--profile", profile, "--timeout", "120s").ok()
    assert model.bodies
    marks = {path.name for path in user.place.glob("*.mark")}
    assert marks >= triggered
    assert triggered or not marks
    warning = f"Removed from PATH, because the project could have its own node or git there: {user.project}"
    assert client == "claude" or (warning in finished.err) is not bool(triggered)


PLANT = """
cd lib && git init -q && echo '*.txt filter=e' > .gitattributes && echo 'as it was' > a.txt && git add . &&
git -c user.name=a -c user.email=a@b.c commit -qm first && echo 'As it is.' > a.txt &&
git config filter.e.clean 'touch {}; cat' && echo planted
"""


@pytest.mark.req("FRG-3", "FRG-5")
def test_a_filter_that_codex_plants_in_a_submodule_does_not_run_in_its_next_run(new_user):
    user, _ = new_user("codex")
    mark = user.place / "mark"
    commit(user.project)
    git(user.project, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    (user.project / "lib").mkdir()
    (user.project / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n\tignore = none\n')
    steps = [CallByName("exec_command", {"cmd": PLANT.format(mark)}), Say("Aye.")]
    with serving(user.setup.agent.provider, steps) as model:
        user.use(model.url, ToolOffering.DEFERRED)
        user.run("plant it", "--profile", "developer").ok()
        assert "planted" in str(model.results)
        mark.unlink(missing_ok=True)
        user.run("look", "--profile", "read-only").ok()
    assert not mark.exists()
    git(user.project, "status", "--porcelain")
    assert mark.exists(), "nothing was planted"


@pytest.mark.req("FRG-3", "FRG-5")
def test_a_pipe_that_would_block_gemini_is_reported_at_once(new_user):
    user, model = new_user("gemini")
    names = some([".gemini/.env", "GEMINI.md"], [".gitignore", ".geminiignore", ".gemini/settings.json"])
    for pipe in (user.project / name for name in names):
        make_pipe(pipe)
        finished = user.run("look", "--profile", "read-only")
        assert finished.exit_code == 2
        assert f"{pipe} is not a regular file" in finished.out
        pipe.unlink()
    assert model.bodies == []


@pytest.mark.soak
@pytest.mark.req("FRG-3", "FRG-5")
def test_a_pipe_in_place_of_gitignore_does_not_block_codex(new_user):
    user, model = new_user("codex")
    make_pipe(user.project / ".gitignore")
    user.run("look", "--profile", "read-only", "--timeout", "120s").ok()
    assert model.bodies


SECRET = "s3cret-0123456789"


class InCi(ProgramUser):
    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "CI": "true"}


def configure(user: ProgramUser, settings: str) -> None:
    """Makes the user's project one with this `workspace.yml`."""
    (user.project / ".env").write_text(f"KEY={SECRET}\n")
    (user.project / "there.txt").write_text("as it was\n")
    (user.project / ".toolcrib").mkdir()
    (user.project / ".toolcrib" / "workspace.yml").write_text(settings)


def reads(setup: ProgramSetup, name: str) -> list[Step]:
    """Ways to read a file with the program's built-in tools."""
    match setup.agent.name:
        case "claude":
            search = CallByName("Grep", {"pattern": "KEY", "output_mode": "content"})
            return [CallByName("Read", {"file_path": name}), search]
        case "codex":
            return [CallByName("exec_command", {"cmd": f"cat {name}"})]
        case _:
            return [CallByName("read_file", {"file_path": name}), CallByName("grep_search", {"pattern": "KEY"})]


def received(model: ScriptedModel) -> str:
    return "\n".join(map(str, model.bodies))


@pytest.mark.req("FRG-3")
@pytest.mark.parametrize(
    ("client", "profile"),
    some(
        [("claude", "developer"), ("codex", "developer"), ("gemini", "trusted")],
        [("claude", "trusted"), ("codex", "trusted"), ("gemini", "developer")],
    ),
)
def test_built_in_tools_neither_read_hidden_files_nor_write_in_a_read_only_folder(new_user, client, profile):
    setup = runs.ALL[client]
    steps = [*reads(setup, ".env"), *setup.writes(Path()).values()]
    user, model = new_user(client, *steps)
    configure(user, 'read_only: true\nhidden: [".env*"]\n')
    before = set(user.project.iterdir())
    log = user.run("try", "--profile", profile).ok().log
    assert len(model.results) == len(steps), "the model made every attempt"
    assert SECRET not in received(model)
    assert set(user.project.iterdir()) == before
    assert log.metadata["own_tools"] == "none"
    [warning] = [text for text in log.texts("log", "toolcrib") if "own tools are limited" in text]
    assert warning.startswith(
        f"{client}'s own tools are limited to none, instead of {BUILTIN[profile].own_tools} "
        "(`hidden` in workspace.yml; `read_only` in workspace.yml)."
    )


@pytest.mark.req("FRG-3")
@pytest.mark.parametrize("settings", some(["forbid_shell_in_ci: true\n"], ["tools: {run_shell_safe: off}\n"]))
def test_codex_has_no_shell_of_its_own_where_the_workspace_has_none(new_user, settings):
    writes = [*CODEX.writes(Path(".idea")).values(), *CODEX.writes(Path()).values()]
    user, model = new_user("codex", *reads(CODEX, "there.txt"), *writes, offering=ToolOffering.DEFERRED, kind=InCi)
    configure(user, settings)
    finished = user.run("try").ok()
    assert "as it was" not in received(model)
    assert not (user.project / "shell").exists()
    assert (user.project / "patched").exists(), "its other tools work"
    assert not (user.project / ".idea").exists(), "files there configure other programs"
    assert "codex's own tools are limited to edit, without a shell, instead of edit (" in finished.err
    names = {tool.name for talk in model.conversations for tool in (*talk.tools, *talk.found)}
    assert "exec_command" not in names


@pytest.mark.req("FRG-3")
def test_a_run_in_ci_has_no_workspace_shell_even_if_its_daemon_was_started_elsewhere(new_user):
    shell = CallByName("mcp__toolcrib__workspace_run_shell_safe", {"command": "touch by-our-shell"})
    user, model = new_user("claude", shell, kind=InCi)
    configure(user, "{}\n")
    user.run("try").ok()
    assert len(model.results) == 1
    assert not (user.project / "by-our-shell").exists()
    assert "run_shell_safe" not in {tool.name for tool in model.offered}


TEN = 10
TEN_LIMIT = 240.0


@pytest.mark.req("FRG-11", "KAI-10")
@pytest.mark.soak
@pytest.mark.parametrize(("name", "count"), [("codex", 3), ("claude", TEN)])
def test_ten_runs_at_once_without_a_daemon_share_one_and_their_projects_servers(toolcrib_home, cli, parts, name, count):
    for program in runs.ALL:
        parts(program)
    program, *words = server_process.stdio_command("sdk_v2")
    seen = toolcrib_home.path / "seen"
    # Ten programs start at once, so the server may be slow.
    entry = {"command": program, "args": words, "cwd": "project", "connect_timeout": TEN_LIMIT}
    toolcrib_home.write_config({"servers": {"own": {**entry, "env": {"TOOLCRIB_TEST_SEEN": str(seen)}}}})
    folders = [toolcrib_home.path / f"project-{n}" for n in range(count)]
    for folder in folders:
        (folder / ".git").mkdir(parents=True)
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    with ExitStack() as stack:
        setup = runs.ALL[name]
        user = stack.enter_context(runs.program_user(setup, toolcrib_home, folders[0]))
        model = stack.enter_context(serving(setup.agent.provider, [Call("own_echo", {"n": 1})], last_words="Done."))
        user.use(model.url)
        users = [replace(user, project=folders[n % count]) for n in range(TEN)]
        started = [one.start(f"Echo {n}.", "--json", "--timeout", f"{TEN_LIMIT:.0f}s") for n, one in enumerate(users)]
        results = [run.wait(TEN_LIMIT).ok().result for run in started]
        user.wait_until_alone()
    assert [one["text"] for one in results] == ["Done."] * TEN
    assert [one["tools"].get("own:echo") for one in results] == [1] * TEN, "each log has only its own call"
    calls = [note for note in map(json.loads, seen.read_text().splitlines()) if note["method"] == "tools/call"]
    assert len(calls) == TEN
    assert len({call["pid"] for call in calls}) == count, "a server is started once in each project"
    audit_log = cli("audit", "--json", "--tool", "own:echo").ok().json["entries"]
    agents = {entry["agent"] for entry in audit_log if entry["kind"] == "outcome"}
    assert len(agents) == TEN
    assert agents == {f"{name}-{one['conversation']}" for one in results}
    wait_for(lambda: not toolcrib_home.socket.exists(), "the daemon to end with the last run")
