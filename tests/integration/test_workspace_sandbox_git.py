"""A person's git never runs what a command left: each test is a trick with `.git`, and then git is run outside."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from parts.sandboxes import opened, own, shell, usual
from parts.waiting import wait_for
from toolcrib.workspace.settings.model import DEFAULTS, GitMode

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
COMMIT = replace(DEFAULTS, git=GitMode.COMMIT)
BOTH = pytest.mark.parametrize("settings", [DEFAULTS, COMMIT], ids=["read-only", "commit"])


@pytest.fixture(params=["mine", pytest.param("somebody", marks=needs_root)])
def owner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(tmp_path: Path, owner: str) -> Path:
    """A repository with one commit."""
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "-q")
    (place / "a.txt").write_text("one\n")
    git(place, "add", "a.txt")
    git(place, "commit", "-qm", "first")
    return own(place, owner)


def git(place: Path, *words: str, check: bool = True) -> str:
    """The person's own git, outside, which would follow whatever it finds."""
    environment = {
        **usual(),
        "HOME": str(place.parent),
        **{f"GIT_{who}_{what}": "p@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "advice.detachedHead",
        "GIT_CONFIG_VALUE_1": "false",
    }
    done = subprocess.run(
        ["git", *words], cwd=place, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def look_with_git(place: Path) -> None:
    """What a person, a prompt or an editor does all the time."""
    for words in (
        ["status"],
        ["log", "-1"],
        ["diff"],
        ["branch"],
        ["rebase", "--continue"],
        ["fetch"],
        ["commit", "-m", "x"],
    ):
        git(place, *words, check=False)


def files(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else b""
        for path in sorted(place.rglob("*"))
        if "/objects/" not in str(path)
    }


EVIL = "printf '#!/bin/sh\\ntouch '$PWD'/PWNED\\n' > evil.sh; chmod +x evil.sh; E=$PWD/evil.sh;"
"""A program that leaves a mark, wherever it is run from."""

TRICKS = {
    "config": "git config core.fsmonitor $E; printf '[core]\\nfsmonitor=%s\\n' $E >> .git/config",
    "config replaced": "printf '[core]\\nfsmonitor=%s\\n' $E > .git/c && mv -f .git/c .git/config",
    "config locked": "cp .git/config .git/config.lock; printf '[core]\\nfsmonitor=%s\\n' $E >> .git/config.lock;"
    "mv -f .git/config.lock .git/config",
    "config removed": "rm -f .git/config; ln -s $PWD/evil.config .git/config;"
    "printf '[core]\\nfsmonitor=%s\\n' $E > evil.config",
    "worktree config": "printf '[core]\\nfsmonitor=%s\\n' $E > .git/config.worktree;"
    "git config extensions.worktreeConfig 1",
    "hooks": "for h in pre-commit post-checkout post-index-change reference-transaction; do cp $E .git/hooks/$h; done",
    "hooks replaced": "mv .git/hooks .git/h; rm -rf .git/hooks; mkdir .git/hooks; cp $E .git/hooks/pre-commit;"
    "ln -s $PWD .git/hooks",
    "commondir": "mkdir -p c/objects c/refs; printf '[core]\\nfsmonitor=%s\\n' $E > c/config;"
    "echo $PWD/c > .git/commondir;"
    "printf '../c' > .git/x && mv -f .git/x .git/commondir",
    "moved away": "mv .git g; mkdir .git; cp -r g/* .git; printf '[core]\\nfsmonitor=%s\\n' $E >> .git/config",
    "removed": "rm -rf .git; git init -q .; git config core.fsmonitor $E",
    "file": "rm -rf .git; git init -q --separate-git-dir=$PWD/sep .; printf 'gitdir: sep' > .git;"
    "printf '[core]\\nfsmonitor=%s\\n' $E >> sep/config",
    "attributes": "mkdir -p .git/info; echo '* filter=evil' > .git/info/attributes; git config filter.evil.clean $E",
    "alternates": "mkdir -p .git/objects/info; echo $PWD/alt > .git/objects/info/alternates",
    "objects moved": "mv .git/objects .git/o && cp -r .git/o .git/objects && echo /x > .git/objects/info/alternates",
    "modules": "mkdir -p .git/modules/m/hooks; cp $E .git/modules/m/hooks/post-checkout",
    "worktrees": "mkdir -p .git/worktrees/w; echo $PWD/c > .git/worktrees/w/commondir;"
    "echo $PWD > .git/worktrees/w/gitdir",
    "remotes": "mkdir -p .git/remotes .git/branches; printf 'URL: ext::%s' $E > .git/remotes/origin;"
    "printf 'ext::%s' $E > .git/branches/origin",
    "rebase": "mkdir .git/rebase-merge; cd .git/rebase-merge; echo refs/heads/master > head-name;"
    'git rev-parse HEAD | tee onto orig-head; echo "exec $E" | tee git-rebase-todo git-rebase-todo.backup;'
    "echo 1 | tee msgnum end; : > interactive; : > done; : > quiet",
    "apply": "mkdir .git/rebase-apply; cp $E .git/rebase-apply/author-script; : > .git/rebase-apply/applying",
    "bare": "git init -q --bare bare; cp -r bare/* .;"
    "printf '[core]\\nfsmonitor=%s\\nworktree=.\\nbare=false\\n' $E >> config;"
    "rm -f .git/HEAD; echo broken > .git/HEAD",
    "submodule": "git init -q sub; cd sub; git commit -q --allow-empty -m x; git config core.fsmonitor $E;"
    "cd ..; git add sub",
    "submodule by hand": "git init -q sub; printf '[core]\\nfsmonitor=%s\\n' $E >> sub/.git/config;"
    "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub",
}


@BOTH
@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
async def test_no_trick_makes_a_persons_git_run_anything(root: Path, settings: object, trick: str) -> None:
    guarded = [".git/config", ".git/hooks", ".git/info", ".git/objects/info"]
    before = {name: files(root / name) if (root / name).is_dir() else (root / name).read_bytes() for name in guarded}
    async with opened(root, settings) as sandbox:  # type: ignore[arg-type]
        await shell(sandbox, EVIL + trick)
        (root / "PWNED").unlink(missing_ok=True)
        await asyncio.to_thread(look_with_git, root)
    assert not (root / "PWNED").exists()
    assert before == {
        name: files(root / name) if (root / name).is_dir() else (root / name).read_bytes() for name in guarded
    }
    for name in ("commondir", "config.worktree", "worktrees", "modules", "remotes", "rebase-merge", "rebase-apply"):
        assert not (root / ".git" / name).exists(), name
    # It may have lost its history, for that is what committing can do; but it is still the one that git finds.
    assert git(root, "rev-parse", "--git-dir").strip() == ".git"


@pytest.mark.parametrize("name", ["config", "hooks", "submodule by hand", "rebase"])
def test_outside_a_sandbox_these_tricks_work(root: Path, owner: str, name: str) -> None:
    """The control: the same words, run outside, and the same look with git, are caught out."""
    if owner == "somebody":
        pytest.skip("the same")
    subprocess.run(
        ["/bin/sh", "-c", EVIL + TRICKS[name]],
        cwd=root,
        env={
            **usual(),
            "HOME": str(root.parent),
            **{f"GIT_{w}_{x}": "a" for w in ("AUTHOR", "COMMITTER") for x in ("NAME", "EMAIL")},
        },
        check=False,
        capture_output=True,
    )
    (root / "PWNED").unlink(missing_ok=True)
    if name != "rebase":
        (root / "a.txt").write_text("two\n")
        git(root, "add", "a.txt", check=False)
    look_with_git(root)
    assert (root / "PWNED").exists()


@BOTH
async def test_without_a_repository_none_can_be_made(tmp_path: Path, owner: str, settings: object) -> None:
    place = own(_empty(tmp_path), owner)
    async with opened(place, settings) as sandbox:  # type: ignore[arg-type]
        for trick in (
            "git init -q .",
            "mkdir .git",
            "printf 'gitdir: /tmp/x' > .git",
            "ln -s /tmp/x .git",
            "rmdir .git",
            "mv .git x",
            "git init -q x; mv x/.git .",
            "git init -q y; mv -T y/.git .git",
        ):
            await shell(sandbox, trick)
            assert not (place / ".git").exists(), trick


def _empty(tmp_path: Path) -> Path:
    place = tmp_path / "plain"
    place.mkdir()
    return place


async def test_while_a_command_runs_the_place_of_a_missing_repository_is_taken(tmp_path: Path, owner: str) -> None:
    place = own(_empty(tmp_path), owner)
    async with opened(place) as sandbox:
        going = asyncio.create_task(shell(sandbox, "touch ready; sleep 20"))
        await asyncio.to_thread(wait_for, (place / "ready").exists, "the command", 20)
        assert not list((place / ".git").iterdir())
        # A person's git takes no notice of it, and may make a repository there.
        git(place, "init", "-q")
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
    assert (place / ".git" / "HEAD").exists()


async def test_reading_works_and_committing_does_not_where_git_is_read_only(root: Path) -> None:
    async with opened(root) as sandbox:
        reading = await shell(
            sandbox, "echo two >> a.txt; git status --porcelain; git log --oneline | wc -l; git diff --stat"
        )
        writing = await shell(sandbox, "git add a.txt; git commit -qm second; git branch x; git tag y; git stash")
    assert reading.code == 0, reading.stderr.text()
    assert reading.stdout.text().startswith(" M a.txt\n1\n")
    assert "Read-only file system" in writing.stderr.text()
    assert git(root, "rev-list", "--count", "HEAD").strip() == "1"


async def test_an_agent_may_commit_if_allowed(root: Path, owner: str) -> None:
    async with opened(root, COMMIT) as sandbox:
        done = await shell(
            sandbox,
            "echo two >> a.txt; mkdir d; echo new > d/b.txt; git add -A && git commit -qm second &&"
            "git checkout -qb topic &&"
            "git mv a.txt c.txt && git commit -qam third && git tag v1 && git stash list && git checkout -q - &&"
            "git merge -q topic &&"
            "git log --oneline | wc -l; git status --porcelain; git reset -q --hard HEAD~1 && git fsck",
        )
    assert done.code == 0, done.stderr.text()
    assert {path.lstat().st_uid for path in root.rglob("*")} == {root.stat().st_uid}
    assert done.stdout.text().split()[0] == "3"
    assert done.notes == ()
    assert git(root, "log", "-1", "--format=%an %s", "topic").strip() == "Toolcrib agent third"
    assert git(root, "status", "--porcelain") == ""


async def test_a_repository_inside_stays_read_only(root: Path, owner: str) -> None:
    inner = root / "vendor" / "lib"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    linked = root / "linked"
    linked.mkdir()
    (linked / ".git").write_text("gitdir: ../vendor/lib/.git\n")
    own(root, owner)
    before = files(inner / ".git")
    async with opened(root, COMMIT) as sandbox:
        finished = await shell(
            sandbox,
            "cd vendor/lib && git config core.fsmonitor /x; cp /bin/true .git/hooks/pre-commit; rm -rf .git; mv .git g;"
            "cd ../../linked; echo 'gitdir: /tmp' > .git; rm .git; mv .git x; cd ..; touch vendor/lib/fine",
        )
    assert files(inner / ".git") == before
    assert (linked / ".git").read_text() == "gitdir: ../vendor/lib/.git\n"
    assert (inner / "fine").exists(), finished.stderr.text()


@BOTH
async def test_the_place_of_a_submodule_that_is_not_there_is_guarded(root: Path, owner: str, settings: object) -> None:
    """`git status` at the top goes into it by itself, and follows what it finds."""
    head = git(root, "rev-parse", "HEAD").strip()
    for place in ("sub", "deep/er/sub"):
        git(root, "update-index", "--add", "--cacheinfo", f"160000,{head},{place}")
    git(root, "commit", "-qm", "submodules")
    (root / "sub").mkdir()
    own(root, owner)
    attack = "".join(
        f"rm -rf {place}; mkdir -p {place}; git init -q {place}; mv {place} x$$; mv deep y$$; git init -q {place};"
        f"git -C {place} config core.fsmonitor $E;"
        for place in ("sub", "deep/er/sub")
    )
    async with opened(root, settings) as sandbox:  # type: ignore[arg-type]
        await shell(sandbox, EVIL + attack)
        (root / "PWNED").unlink(missing_ok=True)
        await asyncio.to_thread(look_with_git, root)
    assert not (root / "PWNED").exists()
    assert not list(root.glob("**/sub/.git"))


async def test_what_was_put_right_is_said(root: Path) -> None:
    async with opened(root, COMMIT) as sandbox:
        finished = await shell(sandbox, EVIL + TRICKS["rebase"] + "; cd ../..;" + TRICKS["submodule by hand"])
    assert any("rebase-merge was removed" in note for note in finished.notes), finished.notes
    assert any("sub/.git" in note for note in finished.notes), finished.notes
