"""The workspace tools that a client does not need, by the settings in its files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from toolcrib.cli import main
from toolcrib.coding_agents import own_equivalents
from toolcrib.coding_agents.own_equivalents import EQUIVALENTS, not_needed, without_comments
from toolcrib.workspace.tools import BY_NAME

pytestmark = pytest.mark.req("BNS-4")

READS = {"read_file", "list_dir", "find_files", "search_text"}
EDITS = {"write_file", "edit_file"}
SHELL = {"run_shell_safe"}
ALL = READS | EDITS | SHELL
NONE: set[str] = set()
CLAUDE = "home/.claude/settings.json"
CODEX = "home/.codex/config.toml"
GEMINI = "home/.gemini/settings.json"
PROJECT = "project"
POLICY = "home/.gemini/policies/mine.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_equivalents, "CLAUDE_MANAGED", (tmp_path / "managed",))
    monkeypatch.setattr(own_equivalents, "CODEX_SYSTEM", tmp_path / "managed")
    monkeypatch.setattr(own_equivalents, "GEMINI_SYSTEM", (tmp_path / "managed",))
    (tmp_path / "project" / "src").mkdir(parents=True)
    return tmp_path


def decided(client: str, folder: Path, **environ: str) -> frozenset[str]:
    project = folder / "project"
    return not_needed(client, {"HOME": str(folder / "home"), **environ}, project / "src", project)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("@PROJECT@", str(folder / "project")))


def claude_denies(*rules: str) -> str:
    return f'{{"permissions": {{"deny": [{", ".join(map(repr, rules))}]}}}}'.replace("'", '"')


TRUSTED = '[projects."@PROJECT@"]\ntrust_level = "trusted"\n'
WRITES = 'sandbox_mode = "workspace-write"\n'
RULE = '[[rule]]\ndecision = "deny"\npriority = 1\n'

CASES: list[tuple[str, dict[str, str], set[str]]] = [
    ("claude", {}, ALL),
    ("claude", {CLAUDE: claude_denies("Bash")}, {"read_file", "write_file", "edit_file"}),
    ("claude", {CLAUDE: claude_denies("Read")}, EDITS | SHELL),
    ("claude", {CLAUDE: claude_denies("Edit(*)")}, READS | SHELL),
    ("claude", {CLAUDE: claude_denies("Write")}, ALL - {"write_file"}),
    ("claude", {CLAUDE: claude_denies("Read(//**)", "Bash( : * )")}, EDITS),
    ("claude", {CLAUDE: claude_denies("*")}, NONE),
    ("claude", {CLAUDE: claude_denies("mcp__github__*", "WebFetch", "Glob")}, ALL - {"find_files"}),
    # The own tool still does the normal work, and the workspace tool would do what the rule denies.
    ("claude", {CLAUDE: claude_denies("Bash(rm:*)", "Read(./secrets/**)")}, ALL),
    ("claude", {CLAUDE: '{"permissions": {"ask": ["Bash"], "allow": ["Read"]}}'}, ALL),
    ("claude", {CLAUDE: '{"permissions": {"defaultMode": "dontAsk"}}'}, NONE),
    ("claude", {CLAUDE: '{"agent": "reviewer"}'}, NONE),
    ("claude", {f"{PROJECT}/.claude/settings.json": claude_denies("Edit")}, READS | SHELL),
    ("claude", {f"{PROJECT}/src/.claude/settings.local.json": claude_denies("Edit")}, READS | SHELL),
    ("claude", {"managed/managed-settings.json": claude_denies("Edit")}, READS | SHELL),
    ("claude", {"managed/managed-settings.d/1.json": claude_denies("Edit")}, READS | SHELL),
    ("claude", {"home/.claude/remote-settings.json": claude_denies("Edit")}, READS | SHELL),
    ("claude", {CLAUDE: "{"}, NONE),
    ("claude", {CLAUDE: "[]"}, NONE),
    ("claude", {CLAUDE: '{"permissions": {"deny": "Bash"}}'}, NONE),
    ("claude", {f"{PROJECT}/.claude/settings.json": '{"a":' * 100_000}, NONE),
    ("claude", {f"{PROJECT}/.claude/settings.json": " " * 600_000}, NONE),
    # Without a mode, Codex writes only in trusted projects.
    ("codex", {}, READS),
    ("codex", {CODEX: TRUSTED}, ALL),
    ("codex", {CODEX: WRITES}, ALL),
    ("codex", {CODEX: WRITES + "[features]\nshell_tool = false\n"}, EDITS),
    ("codex", {CODEX: WRITES, f"{PROJECT}/.codex/config.toml": "features.shell_tool = false"}, EDITS),
    ("codex", {CODEX: 'sandbox_mode = "read-only"\n' + TRUSTED}, READS),
    ("codex", {CODEX: 'profile = "careful"\n[profiles.careful]\nsandbox_mode = "read-only"\n' + TRUSTED}, READS),
    ("codex", {CODEX: 'default_permissions = ":workspace"'}, ALL),
    ("codex", {CODEX: 'default_permissions = "mine"\n' + TRUSTED}, READS),
    # A project's file cannot widen the sandbox.
    ("codex", {f"{PROJECT}/.codex/config.toml": WRITES}, READS),
    ("codex", {CODEX: WRITES, "managed/requirements.toml": 'allowed_sandbox_modes = ["read-only"]'}, READS),
    ("codex", {CODEX: WRITES, "managed/managed_config.toml": 'sandbox_mode = "read-only"'}, READS),
    ("codex", {CODEX: "broken ="}, NONE),
    ("codex", {CODEX: "sandbox_mode = []"}, NONE),
    ("codex", {CODEX: "features = 1"}, NONE),
    ("gemini", {}, ALL),
    ("gemini", {GEMINI: '{ // mine\n"tools": {"exclude": ["run_shell_command"]}}'}, ALL - SHELL),
    ("gemini", {GEMINI: '{"excludeTools": ["ShellTool", "search_file_content"]}'}, ALL - SHELL - {"search_text"}),
    ("gemini", {GEMINI: '{"tools": {"exclude": ["run_shell_command(rm)"]}}'}, ALL),
    ("gemini", {GEMINI: '{"tools": {"core": ["ReadFileTool", "replace", "run_shell_command(ls)"]}}'},
     {"read_file", "edit_file"}),
    ("gemini", {f"{PROJECT}/.gemini/settings.json": '{"coreTools": []}'}, NONE),
    ("gemini", {"managed/settings.json": '{"tools": {"exclude": ["glob"]}}'}, ALL - {"find_files"}),
    ("gemini", {"home/.gemini/extensions/x/gemini-extension.json": '{"excludeTools": ["glob"]}'}, ALL - {"find_files"}),
    ("gemini", {POLICY: RULE + 'toolName = ["replace", "write_file"]'}, ALL - EDITS),
    ("gemini", {POLICY: RULE + 'toolName = "*"'}, NONE),
    ("gemini", {POLICY: RULE + 'toolName = "run_shell_command"\ncommandPrefix = "rm"'}, ALL),
    ("gemini", {POLICY: RULE + 'toolName = "*"\nmcpName = "github"'}, ALL),
    ("gemini", {f"{PROJECT}/.gemini/policies/a.toml": RULE + 'toolName = "glob"'}, ALL - {"find_files"}),
    ("gemini", {POLICY: "rule = [1]"}, NONE),
    ("gemini", {GEMINI: '{"policyPaths": ["/else"]}'}, NONE),
    ("gemini", {GEMINI: "{"}, NONE),
    ("generic", {}, NONE),
]  # fmt: skip


@pytest.mark.parametrize(("client", "files", "expected"), CASES)
def test_a_tool_is_left_out_only_if_the_clients_settings_allow_its_own(
    folder: Path, client: str, files: dict[str, str], expected: set[str]
) -> None:
    write(folder, files)
    assert decided(client, folder) == expected


def test_settings_that_variables_move_are_read(folder: Path) -> None:
    write(folder, {"a/settings.json": claude_denies("Bash"), "b/config.toml": WRITES})
    write(folder, {"c/.gemini/settings.json": '{"excludeTools": ["glob"]}', "d.json": '{"excludeTools": ["replace"]}'})
    assert "run_shell_safe" not in decided("claude", folder, CLAUDE_CONFIG_DIR=str(folder / "a"))
    assert decided("codex", folder, CODEX_HOME=str(folder / "b")) == ALL
    moved = {"GEMINI_CLI_HOME": str(folder / "c"), "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(folder / "d.json")}
    assert decided("gemini", folder, **moved) == ALL - {"find_files", "edit_file"}


def test_a_run_of_claude_code_that_nobody_watches_keeps_the_tools_that_would_ask(folder: Path) -> None:
    assert decided("claude", folder, CLAUDE_CODE_ENTRYPOINT="sdk-cli") == {"read_file"}
    assert decided("claude", folder, CLAUDE_CODE_ENTRYPOINT="cli") == ALL


def test_a_projects_file_that_is_not_a_file_delays_nothing(folder: Path) -> None:
    settings = folder / "project" / ".claude" / "settings.json"
    settings.parent.mkdir()
    os.mkfifo(settings)
    assert decided("claude", folder) == NONE
    settings.unlink()
    settings.mkdir()
    assert decided("claude", folder) == NONE


def test_a_projects_file_of_unfinished_texts_delays_nothing() -> None:
    quotes = '\\"' * 200_000
    assert without_comments(quotes) == quotes


def test_too_many_files_count_as_unreadable(folder: Path) -> None:
    write(folder, {f"project/.gemini/policies/{number}.toml": "" for number in range(201)})
    assert decided("gemini", folder) == NONE


def test_only_existing_workspace_tools_are_left_out() -> None:
    for known in EQUIVALENTS.values():
        assert known.tools.keys() == ALL <= BY_NAME.keys()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["--client", "claude", "--agent", "a"], {"client": "claude", "agent": "a"}),
        (["--listing", "thin"], {"listing": "thin"}),
    ],
)
def test_the_bridge_starts_without_the_command_line(
    words: list[str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["toolcrib", "stdio", *words])
    monkeypatch.setattr(main, "run_bridge", lambda **given: given)
    assert main.main() == expected
