"""The workspace tools through the daemon: every agent in its own folder, under its permission, on the record."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from parts import leftovers
from parts.agent_clients import ERAS, AgentClient, Owner, all_at_once, refusal
from parts.daemon import Cli, Daemon, Home, StartDaemon
from parts.waiting import wait_for

pytestmark = [pytest.mark.req("FRG-1", "FRG-9"), pytest.mark.usefixtures("bwrap")]

READING = {
    "workspace_read_file",
    "workspace_list_dir",
    "workspace_stat_file",
    "workspace_find_files",
    "workspace_search_text",
    "workspace_project_diff",
    "workspace_project_structure",
}
CHANGING = {
    "workspace_write_file",
    "workspace_edit_file",
    "workspace_run_tests",
    "workspace_run_lint",
    "workspace_run_shell_safe",
}


def workspace_tools(client: AgentClient) -> set[str]:
    return {name for name in client.tools() if name.startswith("workspace_")}


def data(answer: Any) -> dict[str, Any]:
    assert not refusal(answer), refusal(answer)
    found: dict[str, Any] = answer.result["structuredContent"]
    return found


@pytest.fixture
def folders(toolcrib_home: Home) -> tuple[Path, Path]:
    made = tuple(toolcrib_home.path / name for name in ("left", "right"))
    for folder in made:
        folder.mkdir()
        (folder / "name.txt").write_text(f"{folder.name}\n")
    return made[0], made[1]


@pytest.mark.parametrize("era", ERAS)
def test_two_agents_work_in_two_folders_at_once_and_neither_reaches_the_other_s(
    daemon: StartDaemon, folders: tuple[Path, Path], era: str
) -> None:
    running = daemon()
    owner = Owner(running)

    def work(folder: Path) -> tuple[str, str, str]:
        token = owner.add(folder.name, profile="developer", workdir=str(folder))
        other = next(one for one in folders if one != folder)
        with AgentClient(running, folder.name, token, era) as agent:
            assert workspace_tools(agent) == READING | CHANGING
            read = data(agent.call("workspace_read_file", path="name.txt"))
            agent.call("workspace_write_file", path="made.txt", content=folder.name)
            ran = data(agent.call("workspace_run_shell_safe", command="cat name.txt; pwd"))
            outside = refusal(agent.call("workspace_read_file", path=str(other / "name.txt")))
            stolen = data(agent.call("workspace_run_shell_safe", command=f"cat {other}/name.txt || echo none"))
            assert other.name not in stolen["stdout"], stolen
            return read["text"], ran["stdout"], outside

    for folder, (text, printed, outside) in zip(folders, all_at_once(work, folders), strict=True):
        assert text == f"{folder.name}\n"
        assert printed == f"{folder.name}\n{folder}\n"
        assert "outside" in outside or "leaves" in outside or "beneath" in outside, outside
        assert (folder / "made.txt").read_text() == folder.name
        assert sorted(path.name for path in folder.iterdir()) == ["made.txt", "name.txt"]


def test_an_agent_that_may_only_read_has_only_what_reads(daemon: StartDaemon, folders: tuple[Path, Path]) -> None:
    running = daemon()
    token = Owner(running).add("reader", profile="read-only", workdir=str(folders[0]))
    with AgentClient(running, "reader", token, "modern") as agent:
        assert workspace_tools(agent) == READING
        assert "may not use" in refusal(agent.call("workspace_write_file", path="a", content="x"))
    assert not (folders[0] / "a").exists()


def test_every_call_stands_in_the_audit_log_also_one_that_was_refused(
    daemon: StartDaemon, folders: tuple[Path, Path]
) -> None:
    running = daemon()
    owner = Owner(running)
    token = owner.add("left", profile="developer", workdir=str(folders[0]))
    with AgentClient(running, "left", token, "modern") as agent:
        agent.call("workspace_write_file", path="a.txt", content="x")
        agent.call("workspace_read_file", path="../right/name.txt")
    # What only reads is not waited for.
    wait_for(lambda: len(owner.audit(agent="left", server="workspace")) == 4, "the audit log to have it all")
    rows = [(row["tool"], row["kind"], row["outcome"]) for row in owner.audit(agent="left", server="workspace")]
    assert rows == [
        ("workspace:write_file", "intent", ""),
        ("workspace:write_file", "outcome", "ok"),
        ("workspace:read_file", "intent", ""),
        ("workspace:read_file", "outcome", "tool_error"),
    ]


def test_a_rule_about_paths_starts_at_the_agent_s_own_folder(daemon: StartDaemon, folders: tuple[Path, Path]) -> None:
    left = folders[0]
    for folder in (left / "src", left / ".git"):
        folder.mkdir()
    (left / ".git" / "HEAD").touch()
    (left / "src" / "inner").mkdir()
    running = daemon()
    owner = Owner(running)
    token = owner.add("inner", "workspace:read_file", workdir=str(left / "src"))
    owner.allow("inner", "workspace:write_file", when={"path": {"under": "inner"}})
    with AgentClient(running, "inner", token, "modern") as agent:
        assert not refusal(agent.call("workspace_write_file", path="inner/a.txt", content="x"))
        assert "may not use" in refusal(agent.call("workspace_write_file", path="b.txt", content="x"))
        # The project's root is above the agent's folder, and not the agent's.
        assert refusal(agent.call("workspace_read_file", path="../name.txt"))
    assert (left / "src" / "inner" / "a.txt").read_text() == "x"
    assert not (left / "src" / "b.txt").exists()


def test_a_settings_file_that_nobody_trusts_only_narrows(
    daemon: StartDaemon, cli: Cli, folders: tuple[Path, Path]
) -> None:
    left = folders[0]
    (left / ".toolcrib").mkdir()
    settings = left / ".toolcrib" / "workspace.yml"
    settings.write_text("tools: {write_file: off}\ngit: commit\nlimits: {read_kb: 1}\n")
    running = daemon()
    token = Owner(running).add("left", profile="developer", workdir=str(left))
    with AgentClient(running, "left", token, "modern") as agent:
        assert workspace_tools(agent) == (READING | CHANGING) - {"workspace_write_file"}
        told = cli("workspace", "check", "--json", cwd=left).json
        assert told["settings"]["git"] == "read-only"
        cli("trust", "--yes", cwd=left).ok()
        assert cli("workspace", "check", "--json", cwd=left).json["settings"]["git"] == "commit"
        settings.write_text("read_only: true\n")
        # Refused with the reason, or no longer in the catalog, which follows within a second.
        told = refusal(agent.call("workspace_edit_file", path="name.txt", old="left", new="x"))
        assert "read-only" in told or "There is no tool" in told
    assert (left / "name.txt").read_text() == "left\n"


def test_a_project_s_settings_hold_for_an_agent_in_a_folder_of_it(
    daemon: StartDaemon, folders: tuple[Path, Path]
) -> None:
    left = folders[0]
    for folder in (".toolcrib", "sub"):
        (left / folder).mkdir()
    (left / "sub" / ".env").write_text("SECRET=1")
    settings = left / ".toolcrib" / "workspace.yml"
    settings.write_text("read_only: true\nhidden: [.env]\ntools: {stat_file: off}\n")
    running = daemon()
    token = Owner(running).add("sub", profile="developer", workdir=str(left / "sub"))
    with AgentClient(running, "sub", token, "modern") as agent:
        assert "workspace_stat_file" not in workspace_tools(agent)
        assert "hidden" in refusal(agent.call("workspace_read_file", path=".env"))
        assert refusal(agent.call("workspace_write_file", path="a", content="x"))
        settings.write_text("tools: {list_dir: off}\n")
        wait_for(lambda: "workspace_stat_file" in workspace_tools(agent), "the list to follow the settings")
        assert "workspace_list_dir" not in workspace_tools(agent)
    assert [path.name for path in (left / "sub").iterdir()] == [".env"]


def test_a_folder_that_became_a_link_is_nobody_s(daemon: StartDaemon, folders: tuple[Path, Path]) -> None:
    """One agent's shell cannot choose where another agent works."""
    left, right = folders
    inner = left / "inner"
    inner.mkdir()
    running = daemon()
    owner = Owner(running)
    outer_token = owner.add("outer", profile="developer", workdir=str(left))
    inner_token = owner.add("inner", profile="developer", workdir=str(inner))
    with (
        AgentClient(running, "outer", outer_token, "modern") as outer,
        AgentClient(running, "inner", inner_token, "modern") as one,
    ):
        assert not refusal(one.call("workspace_list_dir"))
        swap = f"mv inner old && ln -s {right} inner"
        assert data(outer.call("workspace_run_shell_safe", command=swap))["exit_code"] == 0
        assert "is a link now" in refusal(one.call("workspace_read_file", path="name.txt"))
        assert refusal(one.call("workspace_write_file", path="planted", content="x"))
    assert [path.name for path in right.iterdir()] == ["name.txt"]


def test_a_folder_that_holds_the_person_s_own_files_has_no_workspace(daemon: StartDaemon, toolcrib_home: Home) -> None:
    running = daemon()
    token = Owner(running).add("wide", profile="developer", workdir=str(toolcrib_home.user))
    (toolcrib_home.user / ".ssh").mkdir()
    with AgentClient(running, "wide", token, "modern") as agent:
        assert workspace_tools(agent) == set()
        assert "home" in refusal(agent.call("workspace_list_dir"))


def test_the_person_can_do_without_them(daemon: StartDaemon) -> None:
    running = daemon({"workspace": False})
    token = Owner(running).add("a", profile="developer")
    with AgentClient(running, "a", token, "modern") as agent:
        assert workspace_tools(agent) == set()


def test_code_that_runs_without_a_sandbox_is_written_down_before_it_runs(
    daemon: StartDaemon, cli: Cli, folders: tuple[Path, Path]
) -> None:
    running: Daemon = daemon(None, "--unsafe-no-sandbox")
    wait_for(lambda: "WITHOUT A SANDBOX" in running.output.read_text(), "the warning at the start")
    assert "WITHOUT A SANDBOX" in cli("status").ok().err
    owner = Owner(running)
    token = owner.add("left", profile="developer", workdir=str(folders[0]))
    with AgentClient(running, "left", token, "modern") as agent:
        ran = agent.call("workspace_run_shell_safe", command="echo ran")
        agent.call("workspace_read_file", path="name.txt")
    assert "NOT SANDBOXED" in ran.result["content"][0]["text"]
    assert "NOT SANDBOXED" in ran.result["structuredContent"]["warning"]
    noted = [row for row in owner.audit(agent="left") if row["outcome"] == "code run without a sandbox"]
    assert [json.loads(row["detail"]) if isinstance(row["detail"], str) else row["detail"] for row in noted] == [
        {"tool": "run_shell_safe", "folder": str(folders[0])}
    ]


def test_a_person_calls_them_in_the_project_at_hand(daemon: StartDaemon, cli: Cli, toolcrib_home: Home) -> None:
    (toolcrib_home.project / "here.txt").write_text("here")
    daemon()
    told = cli("call", "workspace:read_file", "path=here.txt", "--json").ok().json
    assert told["structuredContent"]["text"] == "here"


@pytest.mark.req("FRG-2")
def test_what_a_tool_ran_and_failed_is_no_error_of_mcp_and_a_failure_for_people(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    (toolcrib_home.project / "pyproject.toml").write_text("[tool.ruff]\n[tool.pytest.ini_options]\n")
    (toolcrib_home.project / "test_it.py").write_text("import os\n\n\ndef test_it():\n    assert 1 == 2\n")
    daemon()
    calls = {
        "run_shell_safe command='exit 3'": "Exit code 3",
        "run_shell_safe command='sleep 60' seconds=1": "Ended at the time limit of 1 s",
        "run_tests": "FAILED: 1 failed",
        "run_lint tools:='[\"ruff\"]'": "FINDINGS: ruff: ",
    }
    for words, failure in calls.items():
        failed = cli("call", *shlex.split(f"workspace:{words}"), "--json", cwd=toolcrib_home.project)
        assert (failed.exit_code, failed.json["isError"]) == (10, False), failed
        assert failed.json["_meta"]["toolcrib/failure"].startswith(failure), failed
    (toolcrib_home.project / "test_it.py").write_text("def test_it():\n    pass\n")
    for words in ("run_shell_safe command=true", "run_tests", "run_lint tools:='[\"ruff\"]'"):
        fine = cli("call", *shlex.split(f"workspace:{words}"), "--json", cwd=toolcrib_home.project).ok()
        assert "_meta" not in fine.json
    audit_log = cli("audit", "--server", "workspace", "--json").ok().json["entries"]
    assert [entry["outcome"] for entry in audit_log if entry["kind"] == "outcome"] == ["failed"] * 4 + ["ok"] * 3


def test_a_removed_agent_s_command_ends_with_it(daemon: StartDaemon, folders: tuple[Path, Path]) -> None:
    running = daemon()
    owner = Owner(running)
    token = owner.add("left", profile="developer", workdir=str(folders[0]))
    with AgentClient(running, "left", token, "modern") as agent:
        agent.send_call("workspace_run_shell_safe", command="exec sleep 1003")
        wait_for(_sleeping, "the command to run")
        owner.remove("left")
        assert refusal(agent.answer())
    wait_for(lambda: not _sleeping(), "the command to be gone")


def _sleeping() -> bool:
    return any(process.words.split()[:2] == ["sleep", "1003"] for process in leftovers.living())
