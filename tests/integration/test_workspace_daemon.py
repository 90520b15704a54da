"""The workspace tools through the daemon and the command line: each agent in its folder, audited.

Also `toolcrib workspace check` and `init`, the trust in a project's workspace.yml, and real coding agents.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts import coding_agents, fleet, leftovers
from parts.agent_clients import ERAS, AgentClient, Owner, all_at_once, refusal
from parts.coding_agents import CodingAgent, InstalledAgent
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.raw_client import SocketClient, legacy_request, notice, request
from parts.sandboxes import NO_PLUGINS
from parts.waiting import wait_for
from parts.workspace import popen
from toolcrib.testing.script import Call
from toolcrib.testing.server import serving
from toolcrib.workspace.settings.example import EXAMPLE
from toolcrib.workspace.settings.model import DEFAULTS, TOOL_NAMES, flat_settings

pytestmark = [pytest.mark.req("FRG-1", "FRG-9"), pytest.mark.usefixtures("bwrap")]

READING = {
    f"workspace_{name}"
    for name in ("read_file", "list_dir", "stat_file", "find_files", "search_text", "project_diff", "project_structure")
}
CHANGING = {f"workspace_{name}" for name in ("write_file", "edit_file", "run_tests", "run_lint", "run_shell_safe")}


@pytest.fixture(scope="module")
def shared_daemon(start_shared_daemon: StartDaemon, shared_home: Home) -> Daemon:
    (shared_home.toolcrib / "workspace.yml").write_text(f"environment: [{NO_PLUGINS}]\n")
    return start_shared_daemon({}, env={NO_PLUGINS: "1"})


@pytest.fixture
def owner(shared_daemon: Daemon) -> Owner:
    return Owner(shared_daemon)


@pytest.fixture
def folders(shared_home: Home) -> tuple[Path, Path]:
    place = Path(tempfile.mkdtemp(dir=shared_home.path))
    left, right = place / f"left-{place.name}", place / f"right-{place.name}"
    for folder in (left, right):
        folder.mkdir()
        (folder / "name.txt").write_text(f"{folder.name}\n")
    return left, right


@pytest.fixture
def left(folders: tuple[Path, Path]) -> Path:
    return folders[0]


def connect(owner: Owner, folder: Path, *, era: str = "modern", profile: str = "developer") -> AgentClient:
    """A new agent with the folder's name, which works in it."""
    token = owner.add(folder.name, profile=profile, workdir=str(folder))
    return AgentClient(owner.daemon, folder.name, token, era)


def workspace_tools(client: AgentClient) -> set[str]:
    return {name for name in client.tools() if name.startswith("workspace_")}


def data(answer: Any) -> dict[str, Any]:
    assert not refusal(answer), refusal(answer)
    return dict(answer.result["structuredContent"])


# ---- agents


@pytest.mark.parametrize("era", ERAS)
def test_two_agents_work_in_their_own_folders_at_once(owner: Owner, folders: tuple[Path, Path], era: str) -> None:
    def work(folder: Path) -> None:
        other = next(one for one in folders if one != folder)
        with connect(owner, folder, era=era) as agent:
            assert workspace_tools(agent) == READING | CHANGING
            assert data(agent.call("workspace_read_file", path="name.txt"))["text"] == f"{folder.name}\n"
            agent.call("workspace_write_file", path="made.txt", content=folder.name)
            ran = data(agent.call("workspace_run_shell_safe", command="cat name.txt; pwd"))
            assert ran["stdout"] == f"{folder.name}\n{folder}\n"
            outside = refusal(agent.call("workspace_read_file", path=str(other / "name.txt")))
            assert "outside" in outside or "leaves" in outside or "beneath" in outside, outside
            stolen = data(agent.call("workspace_run_shell_safe", command=f"cat {other}/name.txt || echo none"))
            assert other.name not in stolen["stdout"], stolen
        assert (folder / "made.txt").read_text() == folder.name
        assert sorted(path.name for path in folder.iterdir()) == ["made.txt", "name.txt"]

    all_at_once(work, folders)


def test_a_read_only_agent_gets_only_tools_that_read(owner: Owner, left: Path) -> None:
    with connect(owner, left, profile="read-only") as agent:
        assert workspace_tools(agent) == READING
        assert "may not use" in refusal(agent.call("workspace_write_file", path="a", content="x"))
    assert not (left / "a").exists()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.req("BNS-4")
def test_tools_that_a_client_has_itself_are_not_listed_but_can_be_called(owner: Owner, left: Path, era: str) -> None:
    daemon, without = owner.daemon, "read_file,search_text, run_shell_safe,other"
    token = owner.add(left.name, profile="developer", workdir=str(left))
    kept = (READING | CHANGING) - {f"workspace_{name}" for name in ("read_file", "search_text", "run_shell_safe")}
    with AgentClient(daemon, left.name, token, era) as client, SocketClient(daemon, bridge=False) as bridge:
        assert workspace_tools(client) == READING | CHANGING
        client.endpoint.labels = (("X-Toolcrib-Without", without), ("X-Toolcrib-Listing", "full"))
        assert workspace_tools(client) == kept
        assert left.name in json.dumps(data(client.call("workspace_read_file", path="name.txt")))
        hello = {"root": str(left), "conversation": f"b {era}", "token": token, "without": without}
        bridge.send(notice("toolcrib/bridge", {**hello, "listing": "handshake"}))
        listed = bridge.ask(request("tools/list") if era == "modern" else legacy_request("tools/list"))
        names = {tool["name"] for tool in listed["result"]["tools"]}
        assert {name for name in names if name.startswith("workspace_")} == kept


def test_every_call_is_in_the_audit_log_also_if_it_was_refused(owner: Owner, left: Path) -> None:
    with connect(owner, left) as agent:
        agent.call("workspace_write_file", path="a.txt", content="x")
        agent.call("workspace_read_file", path="../right/name.txt")
    # Entries of calls that only read are written later.
    wait_for(lambda: len(owner.audit(agent=left.name, server="workspace")) == 4, "all entries of the audit log")
    rows = [(row["tool"], row["kind"], row["outcome"]) for row in owner.audit(agent=left.name, server="workspace")]
    assert rows == [
        ("workspace:write_file", "intent", ""),
        ("workspace:write_file", "outcome", "ok"),
        ("workspace:read_file", "intent", ""),
        ("workspace:read_file", "outcome", "tool_error"),
    ]


def test_a_rule_about_paths_is_relative_to_the_agents_folder(owner: Owner, left: Path) -> None:
    for folder in ("src/inner", ".git"):
        (left / folder).mkdir(parents=True)
    (left / ".git" / "HEAD").touch()
    token = owner.add("inner", "workspace:read_file", workdir=str(left / "src"))
    owner.allow("inner", "workspace:write_file", when={"path": {"under": "inner"}})
    with AgentClient(owner.daemon, "inner", token, "modern") as agent:
        assert not refusal(agent.call("workspace_write_file", path="inner/a.txt", content="x"))
        assert "may not use" in refusal(agent.call("workspace_write_file", path="b.txt", content="x"))
        # The project's root is above the agent's folder.
        assert refusal(agent.call("workspace_read_file", path="../name.txt"))
    assert (left / "src" / "inner" / "a.txt").read_text() == "x"
    assert not (left / "src" / "b.txt").exists()


def test_an_untrusted_settings_file_can_only_forbid(owner: Owner, shared_cli: Cli, left: Path) -> None:
    (left / ".toolcrib").mkdir()
    settings = left / ".toolcrib" / "workspace.yml"
    settings.write_text("tools: {write_file: off}\ngit: commit\nlimits: {read_kb: 1}\n")
    with connect(owner, left) as agent:
        assert workspace_tools(agent) == (READING | CHANGING) - {"workspace_write_file"}
        assert check(shared_cli, left)["settings"]["git"] == "read-only"
        shared_cli("trust", "--yes", cwd=left).ok()
        assert check(shared_cli, left)["settings"]["git"] == "commit"
        settings.write_text("read_only: true\n")
        # Refused with the reason, or no longer in the catalog, which is updated within a second.
        error = refusal(agent.call("workspace_edit_file", path="name.txt", old="left", new="x"))
        assert "read-only" in error or "There is no tool" in error
    assert (left / "name.txt").read_text() == f"{left.name}\n"


def test_a_projects_settings_apply_to_an_agent_in_a_subfolder(owner: Owner, left: Path) -> None:
    sub = left / f"sub-{left.name}"
    for folder in (sub, left / ".toolcrib"):
        folder.mkdir()
    (sub / ".env").write_text("SECRET=1")
    settings = left / ".toolcrib" / "workspace.yml"
    settings.write_text("read_only: true\nhidden: [.env]\ntools: {stat_file: off}\n")
    with connect(owner, sub) as agent:
        assert "workspace_stat_file" not in workspace_tools(agent)
        assert "hidden" in refusal(agent.call("workspace_read_file", path=".env"))
        assert refusal(agent.call("workspace_write_file", path="a", content="x"))
        settings.write_text("tools: {list_dir: off}\n")
        wait_for(lambda: "workspace_stat_file" in workspace_tools(agent), "the list to follow the settings")
        assert "workspace_list_dir" not in workspace_tools(agent)
    assert [path.name for path in sub.iterdir()] == [".env"]


def test_an_agents_folder_that_became_a_link_is_refused(owner: Owner, folders: tuple[Path, Path]) -> None:
    """Otherwise one agent's shell could choose where another agent works."""
    left, right = folders
    inner = left / f"inner-{left.name}"
    inner.mkdir()
    with connect(owner, left) as outer, connect(owner, inner) as one:
        assert not refusal(one.call("workspace_list_dir"))
        swap = f"mv {inner.name} old && ln -s {right} {inner.name}"
        assert data(outer.call("workspace_run_shell_safe", command=swap))["exit_code"] == 0
        assert "is now a link" in refusal(one.call("workspace_read_file", path="name.txt"))
        assert refusal(one.call("workspace_write_file", path="planted", content="x"))
    assert [path.name for path in right.iterdir()] == ["name.txt"]


def test_the_users_home_cannot_be_an_agents_workspace(owner: Owner, shared_home: Home) -> None:
    (shared_home.user / ".ssh").mkdir()
    with connect(owner, shared_home.user) as agent:
        assert workspace_tools(agent) == set()
        assert "home" in refusal(agent.call("workspace_list_dir"))


def test_a_removed_agents_command_is_ended(owner: Owner, left: Path) -> None:
    def is_sleeping() -> bool:
        return any(process.words.split()[:2] == ["sleep", "1003"] for process in leftovers.living())

    with connect(owner, left) as agent:
        agent.send_call("workspace_run_shell_safe", command="exec sleep 1003")
        wait_for(is_sleeping, "the command to run")
        owner.remove(left.name)
        assert refusal(agent.answer())
    wait_for(lambda: not is_sleeping(), "the command to end")


def test_the_workspace_tools_can_be_switched_off(daemon: StartDaemon, left: Path) -> None:
    with connect(Owner(daemon({"workspace": False})), left) as agent:
        assert workspace_tools(agent) == set()


def test_code_without_a_sandbox_is_recorded_before_it_runs(daemon: StartDaemon, cli: Cli, left: Path) -> None:
    running = daemon(None, "--unsafe-no-sandbox")
    wait_for(lambda: "WITHOUT A SANDBOX" in running.output.read_text(), "the warning at the start")
    assert "WITHOUT A SANDBOX" in cli("status").ok().err
    owner = Owner(running)
    with connect(owner, left) as agent:
        ran = agent.call("workspace_run_shell_safe", command="echo ran")
        agent.call("workspace_read_file", path="name.txt")
    assert "NOT SANDBOXED" in ran.result["content"][0]["text"]
    assert "NOT SANDBOXED" in ran.result["structuredContent"]["warning"]
    noted = [row["detail"] for row in owner.audit(agent=left.name) if row["outcome"] == "code run without a sandbox"]
    assert [json.loads(detail) if isinstance(detail, str) else detail for detail in noted] == [
        {"tool": "run_shell_safe", "folder": str(left)}
    ]


@pytest.mark.req("FRG-2")
def test_the_command_line_calls_tools_in_the_current_project_and_reports_failures(
    shared_daemon: Daemon, shared_cli: Cli, left: Path
) -> None:
    """Code that failed is no error of MCP, but a failure for people."""

    def call(words: str) -> Any:
        return shared_cli("call", *shlex.split(f"workspace:{words}"), "--json", cwd=left)

    assert call("read_file path=name.txt").ok().json["structuredContent"]["text"] == f"{left.name}\n"
    (left / "pyproject.toml").write_text("[tool.ruff]\n[tool.pytest.ini_options]\n")
    (left / "test_it.py").write_text("import os\n\n\ndef test_it():\n    assert 1 == 2\n")
    failures = {
        "run_shell_safe command='exit 3'": "Exit code 3",
        "run_shell_safe command='sleep 60' seconds=1": "Ended at the time limit of 1 s",
        "run_tests": "FAILED: 1 failed",
        "run_lint tools:='[\"ruff\"]'": "FINDINGS: ruff: ",
    }
    for words, failure in failures.items():
        failed = call(words)
        assert (failed.exit_code, failed.json["isError"]) == (10, False), failed
        assert failed.json["_meta"]["toolcrib/failure"].startswith(failure), failed
    (left / "test_it.py").write_text("def test_it():\n    pass\n")
    for words in ("run_shell_safe command=true", "run_tests", "run_lint tools:='[\"ruff\"]'"):
        assert "_meta" not in call(words).ok().json
    entries = shared_cli("audit", "--server", "workspace", "--json").ok().json["entries"]
    outcomes = [entry["outcome"] for entry in entries if entry["kind"] == "outcome"]
    assert outcomes[-7:] == ["failed"] * 4 + ["ok"] * 3


# ---- toolcrib workspace check

CODE_REFUSED = 11
ALL_ON = dict.fromkeys(TOOL_NAMES, "on")


@pytest.fixture
def project(toolcrib_home: Home) -> Path:
    return make_project(toolcrib_home)


def make_project(home: Home) -> Path:
    root = Path(tempfile.mkdtemp(dir=home.path))
    (root / ".toolcrib").mkdir()
    (root / ".toolcrib" / "config.yml").write_text("{}\n")
    return root


def settings_file(project: Path) -> Path:
    return project / ".toolcrib" / "workspace.yml"


@pytest.fixture(params=["alone", "daemon"])
def anywhere(
    request: pytest.FixtureRequest,
    shared_daemon: Daemon,
    shared_cli: Cli,
    shared_home: Home,
    cli: Cli,
    toolcrib_home: Home,
) -> tuple[Cli, Path]:
    """The command line without and with a daemon, and a project."""
    if request.param == "alone":
        return cli, make_project(toolcrib_home)
    return shared_cli, make_project(shared_home)


def check(cli: Cli, project: Path, *args: str, code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = cli("workspace", "check", "--json", *args, cwd=project, env=env)
    assert done.exit_code == code, f"{done.out}{done.err}"
    return dict(done.json)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {tool["name"]: tool["state"] for tool in found["tools"]}


def tool_of(found: dict[str, Any], name: str) -> dict[str, str]:
    return next(tool for tool in found["tools"] if tool["name"] == name)


def test_everything_is_on_where_the_sandbox_holds(anywhere: tuple[Cli, Path]) -> None:
    cli, project = anywhere
    found = check(cli, project)
    assert (found["root"], found["refusal"], found["broken"], found["ci"]) == (str(project), None, "", "")
    assert states(found) == ALL_ON
    assert (found["sandbox"]["holds"], found["sandbox"]["refusal"]) == (True, None)
    assert [probe for probe in found["sandbox"]["probes"] if not probe["held"]] == []
    assert len(found["sandbox"]["probes"]) > 5
    assert {**found["settings"], "environment": []} == {**flat_settings(DEFAULTS), "environment": []}
    assert not [one for one in found["files"] if str(project) in one["file"]]


def test_check_shows_the_same_in_words(cli: Cli, project: Path) -> None:
    file = settings_file(project)
    file.write_text("tools: {run_lint: off}\nlimits: {memory_mb: 128}\n")
    out = cli("workspace", "check", cwd=project).ok().out
    assert f"Folder:   {project}" in out
    assert f"Settings: {file} (not trusted: only its restrictions apply)" in out
    assert "Sandbox:  active." in out
    assert "  ✓ " in out
    assert "  ✗ " not in out
    lines = out.splitlines()
    assert any(line.startswith("run_lint") and " off " in line and str(file) in line for line in lines)
    assert any(line.split() == ["limits.memory_mb", "128", str(file)] for line in lines)


def test_without_bubblewrap_code_is_refused_with_a_remedy(cli: Cli, project: Path, tmp_path: Path) -> None:
    found = check(cli, project, code=CODE_REFUSED, env={"PATH": str(tmp_path)})
    assert not found["sandbox"]["holds"]
    assert "bubblewrap" in found["sandbox"]["refusal"]["remedy"]
    refused = dict.fromkeys(("run_tests", "run_lint", "run_shell_safe", "project_diff"), "refused")
    assert states(found) == {**ALL_ON, **refused}
    assert tool_of(found, "run_tests")["remedy"] == found["sandbox"]["refusal"]["remedy"]


@pytest.mark.req("FRG-12")
def test_a_tool_that_is_off_names_the_variable_or_file(cli: Cli, project: Path, toolcrib_home: Home) -> None:
    found = check(cli, project, env={"GITLAB_CI": "true"})
    assert states(found) == {**ALL_ON, "run_shell_safe": "off"}
    assert "GITLAB_CI" in tool_of(found, "run_shell_safe")["why"]
    mine, file = toolcrib_home.toolcrib / "workspace.yml", settings_file(project)
    mine.write_text("forbid_shell_in_ci: false\n")
    assert states(check(cli, project, env={"GITLAB_CI": "true"})) == ALL_ON
    mine.write_text("read_only: true\n")
    file.write_text("tools: {list_dir: off}\n")
    off = [tool for tool in check(cli, project)["tools"] if tool["state"] == "off"]
    by_mine = dict.fromkeys(("write_file", "edit_file", "run_shell_safe"), str(mine))
    assert {tool["name"]: tool["set_by"] for tool in off} == {"list_dir": str(file), **by_mine}
    assert all(tool["why"] and tool["remedy"] for tool in off)


@pytest.mark.req("FRG-12")
def test_a_mistake_in_the_file_stops_every_tool_and_shows_its_line(anywhere: tuple[Cli, Path]) -> None:
    cli, project = anywhere
    settings_file(project).write_text("read_only: true\nnetwrok: false\n")
    mistake = f"{settings_file(project)}:2: netwrok"
    found = check(cli, project, code=3)
    assert set(states(found).values()) == {"refused"}
    assert mistake in found["broken"]
    assert "Did you mean network?" in found["problems"][0]["text"]
    assert "netwrok" in cli("workspace", "check", cwd=project).err
    checked = cli("config", "check", cwd=project)
    assert (checked.exit_code, "netwrok" in checked.out) == (3, True)
    called = cli("call", "workspace:list_dir", cwd=project)
    assert (called.exit_code, mistake in called.out + called.err) == (10, True)


@pytest.mark.req("FRG-12")
@pytest.mark.parametrize("whose", ["project", "user"])
def test_the_stand_alone_server_does_not_start_with_a_mistake(toolcrib_home: Home, project: Path, whose: str) -> None:
    wrong = settings_file(project) if whose == "project" else toolcrib_home.toolcrib / "workspace.yml"
    wrong.write_text("tools:\n  run_shel_safe: off\n")
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with popen(toolcrib_home, "--root", str(project), stdin=subprocess.DEVNULL, text=True, **pipes) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (3, "")
    assert f"{wrong}:2: tools.run_shel_safe" in err
    assert "Did you mean run_shell_safe?" in err


def test_an_unsuitable_folder_is_refused_with_the_reason(cli: Cli, project: Path, toolcrib_home: Home) -> None:
    for root in ("/", "/usr", toolcrib_home.user, toolcrib_home.toolcrib):
        found = check(cli, project, "--root", str(root), code=CODE_REFUSED)
        assert "cannot be a workspace" in found["refusal"]["message"]
        assert found["refusal"]["remedy"]
        assert set(states(found).values()) == {"refused"}
    missing = cli("workspace", "check", "--root", str(project / "nowhere"), cwd=project)
    assert (missing.exit_code, "nowhere" in missing.err) == (4, True)


# ---- toolcrib workspace init, and trust


@pytest.mark.req("FRG-12")
def test_init_writes_a_file_without_effect_and_does_not_overwrite(cli: Cli, project: Path) -> None:
    file = settings_file(project)
    before = check(cli, project)
    assert str(file) in cli("workspace", "init", cwd=project).ok().out
    assert file.read_text() == EXAMPLE
    after = check(cli, project)
    assert after["settings"] == before["settings"]
    assert (after["problems"], after["effects"]) == ([], [])
    assert [one["file"] for one in after["files"]] == [str(file)]
    file.write_text("read_only: true\n")
    refused = cli("workspace", "init", cwd=project)
    assert (refused.exit_code, "--force" in refused.err) == (2, True)
    assert file.read_text() == "read_only: true\n"
    cli("workspace", "init", "--force", cwd=project).ok()
    assert file.read_text() == EXAMPLE
    assert sorted(path.name for path in file.parent.iterdir()) == ["config.yml", "workspace.yml"]


@pytest.mark.req("FRG-12")
def test_init_creates_the_folder_and_follows_no_link(
    cli: Cli, project: Path, toolcrib_home: Home, tmp_path: Path
) -> None:
    bare, linked = toolcrib_home.path / "bare", toolcrib_home.path / "linked"
    for folder in (bare, linked):
        folder.mkdir()
    cli("workspace", "init", "--root", str(bare)).ok()
    assert settings_file(bare).read_text() == EXAMPLE
    target, file = tmp_path / "target", settings_file(project)
    target.write_text("mine")
    file.symlink_to(target)
    assert cli("workspace", "init", cwd=project).exit_code == 2
    cli("workspace", "init", "--force", cwd=project).ok()
    assert (target.read_text(), file.is_symlink()) == ("mine", False)
    (linked / ".toolcrib").symlink_to(tmp_path)
    assert cli("workspace", "init", "--root", str(linked)).exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


def test_a_projects_file_can_allow_more_only_while_it_is_trusted_and_unchanged(anywhere: tuple[Cli, Path]) -> None:
    cli, project = anywhere
    file = settings_file(project)
    file.write_text("network: true\nlimits: {session_calls: 20000}\ntools: {list_dir: off}\n")
    found = check(cli, project)
    assert (found["settings"]["network"], found["settings"]["tools.list_dir"]) == (False, "off")
    assert (found["untrusted"], len(found["effects"])) == (str(file), 2)

    asked = cli("trust", cwd=project)
    assert asked.exit_code == 2, "without --yes"
    shown = "\n  gives commands network access\n  raises limits.session_calls from 10000 to 20000"
    assert f"Once trusted, {file}:{shown}" in asked.err
    assert not check(cli, project)["settings"]["network"]
    assert "Its restrictions apply" in cli("config", "check", cwd=project).out

    cli("trust", "--yes", cwd=project).ok()
    found = check(cli, project)
    assert (found["settings"]["network"], found["settings"]["limits.session_calls"]) == (True, 20000)
    assert {"file": str(file), "trust": "trusted"} in found["files"]
    assert (found["untrusted"], found["effects"]) == (None, [])

    file.write_text(file.read_text() + "git: commit\n")
    found = check(cli, project)
    assert (found["settings"]["network"], found["settings"]["git"]) == (False, "read-only")

    cli("trust", "--yes", str(file), cwd=project).ok()
    assert check(cli, project)["settings"]["git"] == "commit"
    cli("untrust", cwd=project).ok()
    found = check(cli, project)
    assert (found["settings"]["network"], found["settings"]["git"]) == (False, "read-only")


def test_a_new_prohibition_applies_in_the_daemon_at_once(
    shared_daemon: Daemon, shared_cli: Cli, shared_home: Home
) -> None:
    project = make_project(shared_home)
    (project / "seen.txt").write_text("seen\n")
    assert "seen" in shared_cli("call", "workspace:read_file", "path=seen.txt", cwd=project).ok().out
    settings_file(project).write_text("hidden: ['seen*']\nread_only: true\n")
    hidden = shared_cli("call", "workspace:read_file", "path=seen.txt", cwd=project)
    assert (hidden.exit_code, "hidden" in hidden.out) == (10, True)
    refused = shared_cli("call", "workspace:write_file", "path=new.txt", "content=x", cwd=project)
    assert (refused.exit_code != 0, (project / "new.txt").exists()) == (True, False)


# ---- coding agents

WRONG = "def double(number: int) -> int:\n    return number + 2\n"
TEST = "from doubling import double\n\n\ndef test_three_doubled_is_six() -> None:\n    assert double(3) == 6\n"


@pytest.fixture(params=coding_agents.ALL, ids=lambda agent: str(agent.name))
def client(request: pytest.FixtureRequest, parts: Callable[[str], list[str]]) -> CodingAgent:
    agent: CodingAgent = request.param
    parts(agent.name)
    return agent


@pytest.mark.usual(client="codex")
def test_a_coding_agent_repairs_a_failing_test(
    client: CodingAgent, left: Path, owner: Owner, shared_cli: Cli, home_folder: Home
) -> None:
    (left / "doubling.py").write_text(WRONG)
    (left / "test_doubling.py").write_text(TEST)
    owner.add(left.name, profile="developer", workdir=str(left))
    generated = shared_cli("connect", client.name, "--agent", left.name, "--json").ok().json["generated"]
    steps = (
        Call("workspace_read_file", {"path": "doubling.py"}),
        Call("workspace_run_tests", {}),
        Call("workspace_edit_file", {"path": "doubling.py", "old": "number + 2", "new": "number * 2"}),
        Call("workspace_run_tests", {}),
        Call("workspace_read_file", {"path": "../../t/config.json"}),
    )
    with serving(client.provider, steps) as model:
        installed = coding_agents.install_agent(client, home_folder.path / "client", model)
        installed.run(cwd=left, generated=Path(generated))
    read, failed, edited, passed, outside = model.results
    assert "return number + 2" in read
    assert "crashed" not in failed.lower()
    assert "test_three_doubled_is_six" in failed
    assert "assert 5 == 6" in failed
    assert "1 failed" in failed or '"failed":1' in failed
    assert "doubling.py" in edited
    assert "1 passed" in passed or '"passed":1' in passed
    assert "servers" not in outside
    assert (left / "doubling.py").read_text() == WRONG.replace("+ 2", "* 2")


def follow_docs(installed: InstalledAgent, project: Path) -> InstalledAgent:
    """Sets the program up as docs/workspace.md describes, with the arguments that it names."""
    page = (Path(__file__).parents[2] / "docs" / "workspace.md").read_text()
    page = page.replace("/path/to/venv/bin/python", sys.executable)
    page = page.partition("### Stand-alone\n")[2].partition("### From Python\n")[0]
    if installed.agent.name == "claude":
        add, ask = (shlex.split(line) for line in re.findall(r"^\$ claude (.+)", page, re.MULTILINE))
        options: dict[str, Any] = {"env": dict(installed.environ), "cwd": project, "capture_output": True}
        subprocess.run([*fleet.command("claude"), *add], check=True, timeout=60, **options)
        usual = installed.agent.words
        words = (*usual[: usual.index("--allowedTools")], *ask[ask.index("--allowedTools") :])
        # On a busy machine the server starts too late for Claude's first request, which has all tools here.
        environ = {**installed.environ, "CLAUDE_CODE_MCP_STARTUP_WAIT_MS": "60000"}
        return dataclasses.replace(installed, agent=dataclasses.replace(installed.agent, words=words), environ=environ)
    language = "toml" if installed.agent.name == "codex" else "json"
    [recipe] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    if language == "toml":
        installed.file.write_text(installed.file.read_text() + recipe)
    else:
        installed.file.write_text(json.dumps({**json.loads(installed.file.read_text()), **json.loads(recipe)}))
    return installed


@pytest.mark.req("FRG-2")
def test_the_documented_setup_of_the_stand_alone_server_works(client: CodingAgent, home_folder: Home) -> None:
    project = home_folder.path / "doubling"
    project.mkdir()
    (project / "doubling.py").write_text(WRONG)
    with serving(client.provider, (Call("search_text", {"pattern": "return"}),)) as model:
        installed = follow_docs(coding_agents.install_agent(client, home_folder.path / "client", model), project)
        installed.run(cwd=project)
    assert ["return number + 2" in result for result in model.results] == [True], model.results
