"""No way leads from a repository's file to a running command but the person's word on exactly that file."""

from __future__ import annotations

from pathlib import Path

import pytest

from parts.daemon import Cli, Home, StartDaemon

EVIL = "  evil: {{command: touch, args: [{mark}]}}\n"


@pytest.fixture
def project(toolcrib_home: Home) -> Path:
    root = toolcrib_home.path / "project"
    (root / ".toolcrib").mkdir(parents=True)
    (root / ".git" / "HEAD").mkdir(parents=True)
    return root


@pytest.fixture
def file(project: Path) -> Path:
    file = project / ".toolcrib" / "config.yml"
    file.write_text("servers:\n  good: {command: cat}\n")
    return file


@pytest.mark.req("BNS-10")
@pytest.mark.parametrize("words", [["remove", "good"], ["add", "--project", "more", "--", "cat"]])
def test_a_file_that_changed_since_it_was_trusted_is_neither_changed_nor_run(
    daemon: StartDaemon, cli: Cli, project: Path, file: Path, tmp_path: Path, words: list[str]
) -> None:
    mark = tmp_path / "ran"
    daemon({})
    cli("trust", "--yes", cwd=project).ok()
    file.write_text(file.read_text() + EVIL.format(mark=mark))
    refused = cli(*words, cwd=project)
    assert refused.exit_code == 3
    assert "not trusted" in refused.err
    assert "good" in file.read_text()
    assert "evil" not in [row["name"] for row in cli("servers", "--json", cwd=project).ok().json["servers"]]
    assert not mark.exists()


@pytest.mark.req("BNS-10")
def test_a_dangling_link_does_not_make_another_file_trusted(
    daemon: StartDaemon, cli: Cli, project: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    folder = project / ".toolcrib"
    (folder / "config.yaml").write_text("servers:\n" + EVIL.format(mark=mark))
    (folder / "config.yml").symlink_to("nowhere")
    daemon({})
    assert cli("add", "--project", "more", "--", "cat", cwd=project).exit_code == 3
    (folder / "config.yml").unlink()
    assert cli("servers", "--json", cwd=project).ok().json["servers"] == []
    assert cli("config", "check", "--json", cwd=project).json["untrusted"]
    assert not mark.exists()


@pytest.mark.req("BNS-3")
def test_an_entry_that_cannot_be_used_replaces_nothing(daemon: StartDaemon, cli: Cli, toolcrib_home: Home) -> None:
    daemon({"servers": {"keep": {"command": "cat"}}})
    before = {path: path.read_bytes() for path in toolcrib_home.toolcrib.glob("config.*")}
    refused = cli("add", "keep", "--replace", "--env", "A=${NOT_SET_ANYWHERE}", "--", "cat")
    assert refused.exit_code == 3
    assert "NOT_SET_ANYWHERE" in refused.err
    assert {path: path.read_bytes() for path in before} == before
    assert [row["name"] for row in cli("servers", "--json").ok().json["servers"]] == ["keep"]
