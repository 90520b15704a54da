"""What a command leaves, no other program runs or obeys: new repositories and guarded files get another name."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from parts.sandboxes import opened, own, shell, usual
from parts.waiting import wait_for
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox import layout
from toolcrib.workspace.sandbox.survey import SurveyBounds
from toolcrib.workspace.settings.model import DEFAULTS, GitMode

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture(params=["mine", pytest.param("somebody", marks=needs_root)])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder without a repository."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    return own(place, request.param)


def give(root: Path) -> None:
    """What a test has put there, to whom the folder belongs."""
    own(root, "mine" if root.stat().st_uid == os.geteuid() else "somebody")


def git_init(root: Path, *words: str) -> None:
    subprocess.run(["git", "init", "-q", *words], cwd=root, check=True, env=usual())


def look_with_git(root: Path) -> set[Path]:
    """A person's git in every folder; gives those that it takes for repositories."""
    environ = {**usual(), "HOME": str(root.parent), "GIT_CEILING_DIRECTORIES": str(root.parent)}
    found = set()
    for place in (root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())):
        words = ["git", "-c", "safe.directory=*", "-C", str(place)]
        done = subprocess.run([*words, "rev-parse", "--git-dir"], env=environ, capture_output=True, check=False)
        if done.returncode == 0:
            found.add(place)
        subprocess.run([*words, "status"], env=environ, capture_output=True, check=False)
    return found


EVIL = "printf '#!/bin/sh\\ntouch '$PWD'/PWNED\\n' > evil.sh; chmod +x evil.sh; E=$PWD/evil.sh;"
ARM = "printf '[core]\\nfsmonitor=%s\\nworktree=.\\nbare=false\\n' $E >>"
TRICKS = {
    "bare at the top": f"git init -q --bare b; mv b/* .; {ARM} config",
    "bare by hand": f"mkdir objects refs; echo 'ref: refs/heads/x' > HEAD; {ARM} config",
    "a hash": f"mkdir objects refs; echo 0123456789012345678901234567890123456789 > HEAD; {ARM} config",
    "a link": f"mkdir -p objects refs/heads; ln -s refs/heads/x HEAD; {ARM} config",
    "executable files": f": > objects; : > refs; chmod +x objects refs; echo 'ref: refs/x' > HEAD; {ARM} config",
    "bare below": f"mkdir -p x/y; git init -q --bare x/y/z; {ARM} x/y/z/config",
    "another's": f"mkdir -p c/objects c/refs s; echo ../c > s/commondir; echo 'ref: refs/x' > s/HEAD; {ARM} c/config",
    "git": f"git init -q sub; {ARM} sub/.git/config",
    "a gitlink": f"git init -q --bare .hid; {ARM} .hid/config; mkdir s; echo 'gitdir: ../.hid' > s/.git",
    "a link to one": f"git init -q --bare d; {ARM} d/config; mkdir s; ln -s ../d s/.git",
    "closed": f"git init -q sub; {ARM} sub/.git/config; chmod 555 sub sub/.git; git init -q --bare b; chmod 555 b",
    "in what is guarded": f"mkdir .vscode; git init -q --bare .vscode/x; {ARM} .vscode/x/config",
    "named as one that is put aside": f"git init -q --bare .git.quarantined-0; {ARM} .git.quarantined-0/config",
    "modules": f"git init -q s; cd s/.git; mkdir modules; git init -q --bare modules/m; {ARM} modules/m/config",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
async def test_no_command_leaves_a_repository(root: Path, trick: str) -> None:
    async with opened(root) as sandbox:
        finished = await shell(sandbox, EVIL + trick)
        (root / "PWNED").unlink(missing_ok=True)
        found = await asyncio.to_thread(look_with_git, root)
    assert finished.code == 0, finished.stderr.text()
    assert any("repositories: true in workspace.yml" in note for note in finished.notes), finished.notes
    assert (found, (root / "PWNED").exists()) == (set(), False)


@pytest.mark.parametrize("trick", ["bare at the top", "git", "a gitlink"])
def test_outside_a_sandbox_these_tricks_work(tmp_path: Path, trick: str) -> None:
    """The control."""
    subprocess.run(["/bin/sh", "-c", EVIL + TRICKS[trick]], cwd=tmp_path, env=usual(), check=True)
    assert look_with_git(tmp_path)
    assert (tmp_path / "PWNED").exists()


async def test_commands_in_steps_leave_none_either(root: Path) -> None:
    """Each step alone is none: the last one makes it."""
    (root / "sub").mkdir()
    (root / "sub" / "HEAD").write_text("ref: refs/heads/main\n")
    give(root)
    async with opened(root) as sandbox:
        for step in ("mkdir sub/objects", "echo x > sub/config", "true"):
            assert (await shell(sandbox, step)).notes == ()
        [note] = (await shell(sandbox, "mkdir sub/refs")).notes
    assert note.startswith("sub/HEAD is now HEAD.quarantined-")
    assert look_with_git(root) == set()


async def test_where_a_person_allows_it_commands_make_repositories(root: Path) -> None:
    async with opened(root, replace(DEFAULTS, repositories=True)) as sandbox:
        finished = await shell(sandbox, "git init -q sub; git init -q --bare b.git")
    assert finished.notes == ()
    assert {root / "sub", root / "b.git"} <= look_with_git(root)


async def test_a_bare_repository_that_was_there_is_read_only(root: Path) -> None:
    git_init(root, "--bare", "deep/b.git")
    before = (root / "deep" / "b.git" / "config").read_text()
    give(root)
    async with opened(root) as sandbox:
        finished = await shell(sandbox, "echo x >> deep/b.git/config; mv deep d; rm -rf deep/b.git; touch deep/fine")
    assert (root / "deep" / "b.git" / "config").read_text() == before
    assert (finished.notes, (root / "deep" / "fine").exists()) == ((), True)


async def test_a_folder_that_is_one_itself_runs_no_command_that_writes(root: Path) -> None:
    git_init(root, "--bare", ".")
    give(root)
    async with opened(root) as sandbox:
        with pytest.raises(WorkspaceError, match="The folder itself is a bare git repository"):
            await shell(sandbox, "true")
        assert (await shell(sandbox, "ls", writes=False)).code == 0


async def test_what_other_programs_obey_is_read_only(root: Path) -> None:
    for place in (root, root / "pkg" / "inner"):
        (place / ".vscode").mkdir(parents=True)
        (place / ".vscode" / "tasks.json").write_text("{}")
        (place / ".envrc").write_text("as it was\n")
    give(root)
    attack = "".join(
        f"echo x > {place}/.vscode/tasks.json; touch {place}/.vscode/new; rm -rf {place}/.vscode; mv {place}/.vscode v;"
        f"echo x > {place}/.envrc; mv {place}/.envrc e; ln -sf x {place}/.envrc; cat {place}/.envrc;"
        for place in (".", "pkg/inner")
    )
    async with opened(root) as sandbox:
        finished = await shell(sandbox, attack + "mv pkg/inner pkg/i; mv pkg p; touch pkg/inner/fine")
    assert finished.stdout.text() == "as it was\n" * 2
    assert finished.notes == ()
    for place in (root, root / "pkg" / "inner"):
        assert [path.name for path in (place / ".vscode").iterdir()] == ["tasks.json"]
        assert ((place / ".vscode" / "tasks.json").read_text(), (place / ".envrc").read_text()) == ("{}", "as it was\n")
    assert (root / "pkg" / "inner" / "fine").exists()


async def test_what_other_programs_obey_and_a_command_made_gets_another_name(root: Path) -> None:
    (root / "elsewhere").mkdir()
    (root / ".cursor").symlink_to("elsewhere")
    give(root)
    async with opened(root) as sandbox:
        finished = await shell(
            sandbox,
            "mkdir -p a/b .claude node_modules/p/.vscode; echo x > .claude/settings.json; echo x > a/b/.ENVRC;"
            "ln -s a .idea; chmod 000 a/b/.ENVRC; chmod 555 a/b; : > me.code-workspace;"
            "rm .cursor; mkdir .cursor; echo x > .cursor/mcp.json; echo fine > .env",
        )
        again = await shell(sandbox, "true")
    assert finished.code == 0, finished.stderr.text()
    assert again.notes == ()
    there = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert {name for name in there if "quarantined" not in name and "node_modules" not in name} == {
        *("a", "a/b", "a.txt", "elsewhere", ".env")
    }
    assert len(finished.notes) == 5
    assert all("guarded: in workspace.yml" in note for note in finished.notes)
    assert (next(root.glob(".claude.quarantined-*")) / "settings.json").read_text() == "x\n", "nothing is lost"


async def test_a_persons_own_change_meanwhile_stays(root: Path) -> None:
    """A command cannot write what is guarded, so a change of it is not the command's."""
    (root / ".envrc").write_text("before")
    give(root)
    async with opened(root) as sandbox:
        going = asyncio.create_task(shell(sandbox, "touch ready; until [ -e go ]; do sleep 0.01; done"))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the command")
        (root / "new").write_text("after")
        (root / "new").rename(root / ".envrc")
        give(root)
        beside = await shell(sandbox, "echo more >> .envrc")
        (root / "go").touch()
        assert (await going).notes == ()
    assert "Read-only" in beside.stderr.text()
    assert (root / ".envrc").read_text() == "after"


async def test_the_top_is_looked_at_behind_any_number_of_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BEFORE_A_COMMAND", SurveyBounds(entries=10, depth=8, seconds=60))
    (root / "theirs").mkdir()
    for number in range(20):
        (root / str(number)).touch()
    give(root)
    async with opened(root) as sandbox:
        finished = await shell(sandbox, EVIL + TRICKS["bare by hand"] + "; mkdir .claude; : > .envrc")
    assert look_with_git(root) == set()
    assert not {".claude", ".envrc", "HEAD"} & {path.name for path in root.iterdir()}
    assert len(finished.notes) == 3


async def test_committing_goes_on_working(root: Path) -> None:
    git_init(root, ".")
    give(root)
    async with opened(root, replace(DEFAULTS, git=GitMode.COMMIT)) as sandbox:
        finished = await shell(sandbox, "git add -A && git commit -qm x && git init -q sub")
    assert finished.code == 0, finished.stderr.text()
    assert finished.notes[0].startswith("sub/.git is now .git.quarantined-")
