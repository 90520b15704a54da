"""`toolcrib workspace check` and `init`, and a person's word on a project's workspace.yml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parts.daemon import Cli, Home, StartDaemon
from toolcrib.workspace.settings.example import EXAMPLE
from toolcrib.workspace.settings.model import DEFAULTS, TOOL_NAMES, flat_settings

CODE_REFUSED = 11

with_and_without_a_daemon = pytest.mark.parametrize("served", [False, True], ids=["alone", "daemon"])


@pytest.fixture
def project(toolcrib_home: Home) -> Path:
    root = toolcrib_home.path / "project"
    (root / ".toolcrib").mkdir(parents=True)
    (root / ".toolcrib" / "config.yml").write_text("{}\n")
    return root


@pytest.fixture
def file(project: Path) -> Path:
    return project / ".toolcrib" / "workspace.yml"


def check(cli: Cli, project: Path, *words: str, code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = cli("workspace", "check", "--json", *words, cwd=project, env=env)
    assert done.exit_code == code, f"{done.out}{done.err}"
    found: dict[str, Any] = done.json
    return found


def states(found: dict[str, Any]) -> dict[str, str]:
    return {tool["name"]: tool["state"] for tool in found["tools"]}


def why(found: dict[str, Any], name: str) -> dict[str, str]:
    return next(tool for tool in found["tools"] if tool["name"] == name)


ALL_ON = dict.fromkeys(TOOL_NAMES, "on")


# What is in force


@pytest.mark.req("FRG-9")
@with_and_without_a_daemon
@pytest.mark.usefixtures("bwrap")
def test_all_is_in_force_where_the_sandbox_holds(daemon: StartDaemon, cli: Cli, project: Path, served: bool) -> None:
    if served:
        daemon({})
    found = check(cli, project)
    assert (found["root"], found["refusal"], found["broken"], found["ci"]) == (str(project), None, "", "")
    assert states(found) == ALL_ON
    assert found["sandbox"]["holds"]
    assert found["sandbox"]["refusal"] is None
    assert [probe for probe in found["sandbox"]["probes"] if not probe["held"]] == []
    assert len(found["sandbox"]["probes"]) > 5
    assert found["settings"] == flat_settings(DEFAULTS)
    assert found["files"] == []


@pytest.mark.usefixtures("bwrap")
def test_a_person_reads_the_same_in_words(cli: Cli, project: Path, file: Path) -> None:
    file.write_text("tools: {run_lint: off}\nlimits: {memory_mb: 128}\n")
    out = cli("workspace", "check", cwd=project).ok().out
    assert f"Folder:   {project}" in out
    assert f"Settings: {file} (not trusted: it can only forbid)" in out
    assert "Sandbox:  active." in out
    assert "  ✓ " in out
    assert "  ✗ " not in out
    lines = out.splitlines()
    assert any(line.startswith("run_lint") and " off " in line and str(file) in line for line in lines)
    assert any(line.split() == ["limits.memory_mb", "128", str(file)] for line in lines)


@pytest.mark.req("FRG-9")
def test_without_bubblewrap_code_is_refused_with_the_remedy_and_files_go_on(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    found = check(cli, project, code=CODE_REFUSED, env={"PATH": str(tmp_path)})
    assert not found["sandbox"]["holds"]
    assert "bubblewrap" in found["sandbox"]["refusal"]["remedy"]
    refused = {name for name, state in states(found).items() if state == "refused"}
    assert refused == {"run_tests", "run_lint", "run_shell_safe", "project_diff"}
    assert why(found, "run_tests")["remedy"] == found["sandbox"]["refusal"]["remedy"]
    assert set(states(found).values()) == {"refused", "on"}


@pytest.mark.req("FRG-9")
@pytest.mark.usefixtures("bwrap")
def test_in_ci_the_shell_is_off_and_the_variable_is_named(cli: Cli, project: Path, toolcrib_home: Home) -> None:
    found = check(cli, project, env={"GITLAB_CI": "true"})
    assert states(found) == {**ALL_ON, "run_shell_safe": "off"}
    assert "GITLAB_CI" in why(found, "run_shell_safe")["why"]
    (toolcrib_home.toolcrib / "workspace.yml").write_text("forbid_shell_in_ci: false\n")
    assert states(check(cli, project, env={"GITLAB_CI": "true"})) == ALL_ON


@pytest.mark.req("FRG-9", "FRG-12")
@pytest.mark.usefixtures("bwrap")
def test_what_is_off_names_the_file_that_says_so(cli: Cli, project: Path, file: Path, toolcrib_home: Home) -> None:
    mine = toolcrib_home.toolcrib / "workspace.yml"
    mine.write_text("read_only: true\n")
    file.write_text("tools: {list_dir: off}\n")
    found = check(cli, project)
    off = {tool["name"]: tool["set_by"] for tool in found["tools"] if tool["state"] == "off"}
    assert off == {
        "list_dir": str(file),
        "write_file": str(mine),
        "edit_file": str(mine),
        "run_shell_safe": str(mine),
    }
    assert all(tool["why"] and tool["remedy"] for tool in found["tools"] if tool["state"] == "off")


@pytest.mark.req("FRG-12")
@with_and_without_a_daemon
def test_a_mistake_in_the_file_stops_every_tool_with_its_line(
    daemon: StartDaemon, cli: Cli, project: Path, file: Path, served: bool
) -> None:
    if served:
        daemon({})
    file.write_text("read_only: true\nnetwrok: false\n")
    found = check(cli, project, code=3)
    assert set(states(found).values()) == {"refused"}
    assert f"{file}:2: netwrok" in found["broken"]
    assert "Did you mean network?" in found["problems"][0]["text"]
    assert "netwrok" in cli("workspace", "check", cwd=project).err
    checked = cli("config", "check", cwd=project)
    assert checked.exit_code == 3
    assert "netwrok" in checked.out
    called = cli("call", "workspace:list_dir", cwd=project)
    assert called.exit_code == 10
    assert f"{file}:2: netwrok" in called.out + called.err


@pytest.mark.req("FRG-12")
@pytest.mark.parametrize("whose", ["project", "user"])
def test_the_server_alone_does_not_start_on_a_mistake(
    toolcrib_home: Home, project: Path, file: Path, whose: str
) -> None:
    wrong = file if whose == "project" else toolcrib_home.toolcrib / "workspace.yml"
    wrong.write_text("tools:\n  run_shel_safe: off\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "toolcrib.workspace", "--root", str(project)],
        env=toolcrib_home.environ(),
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{wrong}:2: tools.run_shel_safe" in done.stderr
    assert "Did you mean run_shell_safe?" in done.stderr


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize("unfit", ["/", "/usr", "home", "toolcrib"])
def test_a_folder_that_is_unfit_is_refused_with_the_reason(
    cli: Cli, project: Path, toolcrib_home: Home, unfit: str
) -> None:
    named = {"home": toolcrib_home.user, "toolcrib": toolcrib_home.toolcrib}
    found = check(cli, project, "--root", str(named.get(unfit, unfit)), code=CODE_REFUSED)
    assert "cannot be a workspace" in found["refusal"]["message"]
    assert found["refusal"]["remedy"]
    assert set(states(found).values()) == {"refused"}


def test_a_folder_that_is_not_there_is_told(cli: Cli, project: Path) -> None:
    done = cli("workspace", "check", "--root", str(project / "nowhere"), cwd=project)
    assert done.exit_code == 4
    assert "nowhere" in done.err


# The file


@pytest.mark.req("FRG-12")
@pytest.mark.usefixtures("bwrap")
def test_init_writes_a_file_that_changes_nothing_and_is_not_written_over(cli: Cli, project: Path, file: Path) -> None:
    before = check(cli, project)
    assert str(file) in cli("workspace", "init", cwd=project).ok().out
    assert file.read_text() == EXAMPLE
    after = check(cli, project)
    assert after["settings"] == before["settings"]
    assert (after["problems"], after["effects"]) == ([], [])
    assert [one["file"] for one in after["files"]] == [str(file)]
    file.write_text("read_only: true\n")
    refused = cli("workspace", "init", cwd=project)
    assert refused.exit_code == 2
    assert "--force" in refused.err
    assert file.read_text() == "read_only: true\n"
    cli("workspace", "init", "--force", cwd=project).ok()
    assert file.read_text() == EXAMPLE
    assert sorted(path.name for path in file.parent.iterdir()) == ["config.yml", "workspace.yml"]


@pytest.mark.req("FRG-12")
def test_init_makes_the_folder_where_there_is_none(cli: Cli, toolcrib_home: Home) -> None:
    bare = toolcrib_home.path / "bare"
    bare.mkdir()
    cli("workspace", "init", "--root", str(bare)).ok()
    assert (bare / ".toolcrib" / "workspace.yml").read_text() == EXAMPLE


def test_init_writes_nothing_through_a_link(cli: Cli, project: Path, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    file.symlink_to(target)
    assert cli("workspace", "init", cwd=project).exit_code == 2
    cli("workspace", "init", "--force", cwd=project).ok()
    assert target.read_text() == "mine"
    assert not file.is_symlink()
    linked = project.parent / "linked"
    linked.mkdir()
    (linked / ".toolcrib").symlink_to(tmp_path)
    assert cli("workspace", "init", "--root", str(linked)).exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


# A person's word


@pytest.mark.req("FRG-9")
@with_and_without_a_daemon
@pytest.mark.usefixtures("bwrap")
def test_a_project_s_file_widens_once_it_is_trusted_and_no_longer_when_it_changes(
    daemon: StartDaemon, cli: Cli, project: Path, file: Path, served: bool
) -> None:
    if served:
        daemon({})
    file.write_text("network: true\nlimits: {session_calls: 20000}\ntools: {list_dir: off}\n")
    found = check(cli, project)
    assert not found["settings"]["network"]
    assert found["settings"]["tools.list_dir"] == "off"
    assert (found["untrusted"], len(found["effects"])) == (str(file), 2)

    asked = cli("trust", cwd=project)
    assert asked.exit_code == 2, "nobody said yes"
    shown = "\n  gives commands network access\n  raises limits.session_calls from 10000 to 20000"
    assert f"Once trusted, {file}:{shown}" in asked.err
    assert not check(cli, project)["settings"]["network"]
    assert "Its prohibitions apply" in cli("config", "check", cwd=project).out

    cli("trust", "--yes", cwd=project).ok()
    found = check(cli, project)
    assert found["settings"]["network"]
    assert found["settings"]["limits.session_calls"] == 20000
    assert found["files"] == [{"file": str(file), "trust": "trusted"}]
    assert (found["untrusted"], found["effects"]) == (None, [])

    file.write_text(file.read_text() + "git: commit\n")
    found = check(cli, project)
    assert (found["settings"]["network"], found["settings"]["git"]) == (False, "read-only")

    cli("trust", "--yes", str(file), cwd=project).ok()
    assert check(cli, project)["settings"]["git"] == "commit"
    cli("untrust", cwd=project).ok()
    found = check(cli, project)
    assert (found["settings"]["network"], found["settings"]["git"]) == (False, "read-only")


@pytest.mark.req("FRG-9")
def test_what_the_file_forbids_holds_in_the_daemon_at_once(
    daemon: StartDaemon, cli: Cli, project: Path, file: Path
) -> None:
    daemon({})
    (project / "seen.txt").write_text("seen\n")
    assert "seen" in cli("call", "workspace:read_file", "path=seen.txt", cwd=project).ok().out
    file.write_text("hidden: ['seen*']\nread_only: true\n")
    hidden = cli("call", "workspace:read_file", "path=seen.txt", cwd=project)
    assert hidden.exit_code == 10
    assert "hidden" in hidden.out
    refused = cli("call", "workspace:write_file", "path=new.txt", "content=x", cwd=project)
    assert refused.exit_code != 0
    assert not (project / "new.txt").exists()
