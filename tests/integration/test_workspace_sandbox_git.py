"""Commands leave nothing that another program would run or obey: no hooks, repositories, guarded files or links.

Each test is a trick inside the sandbox. Then the user's own git looks at the folder outside of it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from parts.sandboxes import (
    SandboxPool,
    give_to,
    give_to_owner_of,
    make_folder,
    minimal_environ,
    open_sandbox,
    shell,
    tried_sandbox,
)
from parts.waiting import wait_for
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.sandbox import Sandbox, layout, survey
from toolcrib.workspace.sandbox import sandbox as sandbox_module
from toolcrib.workspace.sandbox.git_protection import PLACEHOLDER_BIT
from toolcrib.workspace.sandbox.survey import Survey, SurveyBounds
from toolcrib.workspace.settings.model import DEFAULTS, GitMode

pytestmark = [
    *(pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")),
    pytest.mark.asyncio(loop_scope="module"),
]

COMMIT = replace(DEFAULTS, git=GitMode.COMMIT)
NO_KEYS = replace(DEFAULTS, hidden=("*.key",))
FEW = SurveyBounds(entries=40, depth=8, seconds=5)
GIT_USER = {f"GIT_{who}_{what}": "p@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit."""
    place = tmp_path_factory.mktemp("template")
    git(place, "init", "-q")
    (place / "a.txt").write_text("one\n")
    git(place, "add", "a.txt")
    git(place, "commit", "-qm", "first")
    return place


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.use() as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def committing(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    """Its commands may commit."""
    async with pool.use(COMMIT) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def hiding(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    """Its commands see no keys."""
    async with pool.use(NO_KEYS) as sandbox:
        yield sandbox


@pytest.fixture(params=["read-only", "commit"])
def either(request: pytest.FixtureRequest, sandbox: Sandbox, committing: Sandbox) -> Sandbox:
    return sandbox if request.param == "read-only" else committing


def copy_template(template: Path, sandbox: Sandbox) -> Path:
    root = sandbox.folder.root
    shutil.copytree(template, root, symlinks=True, dirs_exist_ok=True)
    give_to_owner_of(root)
    return root


def git(place: Path, *args: str, check: bool = True) -> str:
    """The user's own git, outside, which follows everything it finds."""
    config = {"safe.directory": "*", "advice.detachedHead": "false"}
    environ = {**minimal_environ(), "HOME": str(place.parent), **GIT_USER, "GIT_CONFIG_COUNT": str(len(config))}
    environ |= {f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(config)}
    environ |= {f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(config.values())}
    words = ["git", *args]
    done = subprocess.run(words, cwd=place, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def use_git(place: Path) -> None:
    """What a person, a prompt or an editor does all the time."""
    for line in ("status", "log -1", "diff", "branch", "rebase --continue", "fetch", "commit -m x"):
        git(place, *line.split(), check=False)


def find_repositories(root: Path) -> set[Path]:
    """The folders that the user's git takes for repositories. It runs in each of them."""
    environ = {**minimal_environ(), "HOME": str(root.parent), "GIT_CEILING_DIRECTORIES": str(root.parent)}
    found = set()
    for place in (root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())):
        words = ["git", "-c", "safe.directory=*", "-C", str(place)]
        done = subprocess.run([*words, "rev-parse", "--git-dir"], env=environ, capture_output=True, check=False)
        if done.returncode == 0:
            found.add(place)
        subprocess.run([*words, "status"], env=environ, capture_output=True, check=False)
    return found


def content(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else b""
        for path in sorted((place, *place.rglob("*")))
        if "/objects/" not in str(path)
    }


async def until_exists(path: Path) -> None:
    await asyncio.to_thread(wait_for, path.exists, f"{path.name} to exist", 20)


# ---- the folder's own repository

EVIL = "printf '#!/bin/sh\\ntouch '$PWD'/PWNED\\n' > evil.sh; chmod +x evil.sh; E=$PWD/evil.sh;"
"""A program that leaves a mark when it runs."""
SET = "printf '[core]\\nfsmonitor=%s\\n' $E"

TRICKS = {
    "config": f"git config core.fsmonitor $E; {SET} >> .git/config",
    "config replaced": f"{SET} > .git/c && mv -f .git/c .git/config",
    "config locked": f"cp .git/config .git/config.lock; {SET} >> .git/config.lock; mv -f .git/config.lock .git/config",
    "config removed": f"rm -f .git/config; ln -s $PWD/evil.config .git/config; {SET} > evil.config",
    "worktree config": f"{SET} > .git/config.worktree; git config extensions.worktreeConfig 1",
    "hooks": "for h in pre-commit post-checkout post-index-change reference-transaction; do cp $E .git/hooks/$h; done",
    "hooks replaced": "mv .git/hooks .git/h; rm -rf .git/hooks; mkdir .git/hooks; cp $E .git/hooks/pre-commit;"
    "ln -s $PWD .git/hooks",
    "commondir": f"mkdir -p c/objects c/refs; {SET} > c/config; echo $PWD/c > .git/commondir;"
    "printf '../c' > .git/x && mv -f .git/x .git/commondir",
    "moved away": f"mv .git g; mkdir .git; cp -r g/* .git; {SET} >> .git/config",
    "removed": "rm -rf .git; git init -q .; git config core.fsmonitor $E",
    "file": f"rm -rf .git; git init -q --separate-git-dir=$PWD/sep .; printf 'gitdir: sep' > .git;{SET} >> sep/config",
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
    "bare": f"git init -q --bare bare; cp -r bare/* .; {SET} >> config; printf 'worktree=.\\nbare=false\\n' >> config;"
    "rm -f .git/HEAD; echo broken > .git/HEAD",
    "submodule": "git init -q sub; cd sub; git commit -q --allow-empty -m x; git config core.fsmonitor $E;"
    "cd ..; git add sub",
    "submodule by hand": f"git init -q sub; {SET} >> sub/.git/config;"
    "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
async def test_commands_cannot_make_the_users_git_run_a_program(either: Sandbox, template: Path, trick: str) -> None:
    root = copy_template(template, either)
    protected = [root / ".git" / name for name in ("config", "hooks", "info", "objects/info")]
    before = [content(path) for path in protected]
    await shell(either, EVIL + trick)
    (root / "PWNED").unlink(missing_ok=True)
    use_git(root)
    assert not (root / "PWNED").exists()
    assert [content(path) for path in protected] == before
    for name in ("commondir", "config.worktree", "worktrees", "modules", "remotes", "rebase-merge", "rebase-apply"):
        assert not (root / ".git" / name).exists(), name
    # A command that may commit can lose history, but git still finds this repository.
    assert git(root, "rev-parse", "--git-dir").strip() == ".git"


@pytest.mark.parametrize("name", ["config", "hooks", "submodule by hand", "rebase"])
async def test_these_tricks_work_outside_a_sandbox(template: Path, tmp_path: Path, name: str) -> None:
    """The control."""
    root = shutil.copytree(template, tmp_path / "project", symlinks=True)
    environ = {**minimal_environ(), "HOME": str(tmp_path), **GIT_USER}
    words = ["/bin/sh", "-c", EVIL + TRICKS[name]]
    await asyncio.to_thread(subprocess.run, words, cwd=root, env=environ, check=False, capture_output=True)
    (root / "PWNED").unlink(missing_ok=True)
    if name != "rebase":
        (root / "a.txt").write_text("two\n")
        git(root, "add", "a.txt", check=False)
    use_git(root)
    assert (root / "PWNED").exists()


async def test_a_missing_repository_cannot_be_created(either: Sandbox) -> None:
    for trick in (
        *("git init -q .", "mkdir .git", "printf 'gitdir: /tmp/x' > .git", "ln -s /tmp/x .git", "rmdir .git"),
        *("mv .git x", "git init -q x; mv x/.git .", "git init -q y; mv -T y/.git .git"),
    ):
        await shell(either, trick)
        assert not (either.folder.root / ".git").exists(), trick


async def test_the_user_can_create_a_repository_while_a_command_runs(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    running = asyncio.create_task(shell(sandbox, "touch ready; sleep 20"))
    await until_exists(root / "ready")
    assert not list((root / ".git").iterdir())
    git(root, "init", "-q")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (root / ".git" / "HEAD").exists()


async def test_with_read_only_git_reading_works_and_committing_fails(sandbox: Sandbox, template: Path) -> None:
    root = copy_template(template, sandbox)
    line = "echo two >> a.txt; git status --porcelain; git log --oneline | wc -l; git diff --stat"
    reading = await shell(sandbox, line)
    writing = await shell(sandbox, "git add a.txt; git commit -qm second; git branch x; git tag y; git stash")
    assert reading.code == 0, reading.stderr.text()
    assert reading.stdout.text().startswith(" M a.txt\n1\n")
    assert "Read-only file system" in writing.stderr.text()
    assert git(root, "rev-list", "--count", "HEAD").strip() == "1"


async def test_an_allowed_agent_can_commit(committing: Sandbox, template: Path) -> None:
    root = copy_template(template, committing)
    done = await shell(
        committing,
        "echo two >> a.txt; mkdir d; echo new > d/b.txt; git add -A && git commit -qm second &&"
        "git checkout -qb topic &&"
        "git mv a.txt c.txt && git commit -qam third && git tag v1 && git stash list && git checkout -q - &&"
        "git merge -q topic &&"
        "git log --oneline | wc -l; git status --porcelain; git reset -q --hard HEAD~1 && git fsck",
    )
    assert done.code == 0, done.stderr.text()
    assert {path.lstat().st_uid for path in root.rglob("*")} == {root.stat().st_uid}
    assert (done.stdout.text().split()[0], done.notes) == ("3", ())
    assert git(root, "log", "-1", "--format=%an %s", "topic").strip() == "Toolcrib agent third"
    assert git(root, "status", "--porcelain") == ""
    made = await shell(committing, "git init -q sub")
    assert made.notes[0].startswith("sub/.git was renamed .git.quarantined-")


async def test_a_repository_inside_stays_read_only(committing: Sandbox, template: Path) -> None:
    root = copy_template(template, committing)
    inner, linked = root / "vendor" / "lib", root / "linked"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    linked.mkdir()
    (linked / ".git").write_text("gitdir: ../vendor/lib/.git\n")
    give_to_owner_of(root)
    before = content(inner / ".git")
    result = await shell(
        committing,
        "cd vendor/lib && git config core.fsmonitor /x; cp /bin/true .git/hooks/pre-commit; rm -rf .git; mv .git g;"
        "cd ../../linked; echo 'gitdir: /tmp' > .git; rm .git; mv .git x; cd ..; touch vendor/lib/fine",
    )
    assert content(inner / ".git") == before
    assert (linked / ".git").read_text() == "gitdir: ../vendor/lib/.git\n"
    assert (inner / "fine").exists(), result.stderr.text()


async def test_notes_report_what_was_removed(committing: Sandbox, template: Path) -> None:
    copy_template(template, committing)
    result = await shell(committing, EVIL + TRICKS["rebase"] + "; cd ../..;" + TRICKS["submodule by hand"])
    assert any("rebase-merge was removed" in note for note in result.notes), result.notes
    assert any("sub/.git" in note for note in result.notes), result.notes


async def test_the_last_of_parallel_commands_cleans_the_repository(committing: Sandbox) -> None:
    """Files that one command made must not count as files that existed before the other."""
    root = committing.folder.root
    make_repository(root)
    (root / "x").touch()
    give_to_owner_of(root)
    link = "mkdir sub .git/rebase-merge; git add x; git commit -qm x;"
    link += "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub;"
    one = asyncio.create_task(shell(committing, link + "touch one; until [ -e two ]; do sleep 0.02; done"))
    await until_exists(root / "one")
    wait = "touch two; until [ -e go ]; do sleep 0.02; done; git init -q sub; mkdir .git/rebase-apply"
    two = asyncio.create_task(shell(committing, wait))
    first = await one
    (root / "go").touch()
    second = await two
    assert first.code == 0, first.stderr.text()
    assert not first.notes
    assert [note.partition(" ")[0].partition(".quarantined")[0] for note in second.notes] == [
        *(".git/rebase-merge", ".git/rebase-apply", "sub/.git", "sub/.git")
    ]
    for name in ("sub/.git", ".git/rebase-merge", ".git/rebase-apply"):
        assert not (root / name).exists()


async def test_a_repository_that_a_command_closed_is_cleaned(committing: Sandbox) -> None:
    root = committing.folder.root
    make_repository(root)
    give_to_owner_of(root)
    line = "mkdir .git/rebase-merge; mkdir .git/rebase-merge/x; chmod 0 .git/rebase-merge/x .git/rebase-merge .git"
    await shell(committing, line)
    again = await shell(committing, "git rev-parse --git-dir")
    assert again.stdout.text() == ".git\n"
    assert not (root / ".git" / "rebase-merge").exists()


# ---- submodules


def make_index(*paths: bytes) -> bytes:
    """An index as git writes it, which names submodules."""
    entries = b""
    for path in paths:
        entry = bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + b"\1" * 20 + struct.pack(">H", len(path)) + path
        entries += entry + bytes(8 - len(entry) % 8)
    return struct.pack(">4sII", b"DIRC", 2, len(paths)) + entries


def make_repository(place: Path, *submodules: bytes) -> None:
    environ = {**minimal_environ(), "HOME": str(place.parent)}
    subprocess.run(["git", "init", "-q", str(place)], check=True, env=environ)
    if submodules:
        (place / ".git" / "index").write_bytes(make_index(*submodules))


@pytest.fixture
def outside(tmp_path: Path, owner: str) -> Iterator[Path]:
    """A folder outside that no command may read or change."""
    place = tmp_path / "outside"
    (place / "b").mkdir(parents=True)
    (place / "b" / "secret").write_text("canary")
    give_to(owner, place)
    before = [(path, path.stat().st_uid, path.stat().st_mtime_ns) for path in (place, place / "b")]
    yield place
    assert [path.name for path in (place / "b").iterdir()] == ["secret"]
    assert [(path, path.stat().st_uid, path.stat().st_mtime_ns) for path in (place, place / "b")] == before


async def test_a_link_on_the_path_to_a_submodule_refuses_commands_that_write(either: Sandbox, outside: Path) -> None:
    """A command could swap it for a folder while the next sandbox is built, and its target would be mounted."""
    root = either.folder.root
    make_repository(root, b"a/b")
    (root / "a").symlink_to(outside)
    give_to_owner_of(root)
    with pytest.raises(WorkspaceError, match="submodule at a/b, and a is a link") as error:
        await shell(either, "true")
    assert "git rm --cached" in error.value.remedy
    assert (await shell(either, "echo fine", writes=False)).stdout.text() == "fine\n"


async def test_the_path_to_a_submodule_cannot_be_swapped_for_a_link(sandbox: Sandbox, outside: Path) -> None:
    root = sandbox.folder.root
    make_repository(root, b"a/b")
    (root / "link").symlink_to(f"/oldroot{outside}")
    give_to_owner_of(root)
    flip = "import ctypes, time\nlibc = ctypes.CDLL(None)\nopen('ready', 'w').close()\n"
    flip += "while True: libc.renameat2(-100, b'a', -100, b'link', 2)"
    flipping = asyncio.create_task(shell(sandbox, f'exec python3 -c "{flip}"'))
    await until_exists(root / "ready")
    for _ in range(20):
        assert (await shell(sandbox, "cat a/b/secret; ls -A a/b")).stdout.text() == ".git\n"
    flipping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flipping
    assert sorted(path.name for path in root.iterdir()) == [".git", "link", "ready"]


async def test_no_repository_can_be_made_in_place_of_a_missing_submodule(either: Sandbox, template: Path) -> None:
    """`git status` at the top enters it and obeys its configuration."""
    root = copy_template(template, either)
    head = git(root, "rev-parse", "HEAD").strip()
    for place in ("sub", "deep/er/sub"):
        git(root, "update-index", "--add", "--cacheinfo", f"160000,{head},{place}")
    git(root, "commit", "-qm", "submodules")
    (root / "sub").mkdir()
    give_to_owner_of(root)
    attack = "".join(
        f"rm -rf {place}; mkdir -p {place}; git init -q {place}; mv {place} x$$; mv deep y$$; git init -q {place};"
        f"git -C {place} config core.fsmonitor $E;"
        for place in ("sub", "deep/er/sub")
    )
    await shell(either, EVIL + attack)
    (root / "PWNED").unlink(missing_ok=True)
    use_git(root)
    assert not (root / "PWNED").exists()
    assert not list(root.glob("**/sub/.git"))


async def test_a_file_in_place_of_a_submodule_stays_a_file(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    make_repository(root, b"sub", b"deep/file/sub")
    (root / "deep").mkdir()
    for file in (root / "sub", root / "deep" / "file"):
        file.touch()
    give_to_owner_of(root)
    await shell(sandbox, "rm -f sub deep/file; mv sub x; mv deep y; git init -q sub; git init -q deep/file/sub")
    assert (root / "sub").is_file()
    assert (root / "deep" / "file").is_file()


async def test_leftover_placeholders_of_a_submodule_are_removed_by_the_next_command(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    make_repository(root, b"a/b")
    for place in ("a", "a/b", "a/b/.git"):
        (root / place).mkdir()
        (root / place).chmod(PLACEHOLDER_BIT | 0o755)
    give_to_owner_of(root)
    await asyncio.gather(*(shell(sandbox, "sleep 0.1") for _ in range(3)))
    assert [path.name for path in root.iterdir()] == [".git"]


async def test_an_unreadable_index_refuses_commands_that_write(sandbox: Sandbox) -> None:
    """Two megabytes that describe paths of many gigabytes."""
    root = sandbox.folder.root
    make_repository(root)
    entry = bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + b"\1" * 20 + bytes(3)
    bomb = struct.pack(">4sII", b"DIRC", 4, 20_000) + entry + b"a" * 1_000_000 + b"\0" + (entry + b"b\0") * 19_999
    (root / ".git" / "index").write_bytes(bomb)
    give_to_owner_of(root)
    began = time.process_time()
    with pytest.raises(WorkspaceError, match="submodules cannot be determined"):
        await shell(sandbox, "true")
    assert time.process_time() - began < 5
    assert (await shell(sandbox, "echo fine", writes=False)).stdout.text() == "fine\n"


# ---- new repositories, and files that other programs obey

ARM = "printf '[core]\\nfsmonitor=%s\\nworktree=.\\nbare=false\\n' $E >>"
NEW = {
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
    "in a guarded folder": f"mkdir .vscode; git init -q --bare .vscode/x; {ARM} .vscode/x/config",
    "named like a quarantined one": f"git init -q --bare .git.quarantined-0; {ARM} .git.quarantined-0/config",
    "modules": f"git init -q s; cd s/.git; mkdir modules; git init -q --bare modules/m; {ARM} modules/m/config",
}


@pytest.mark.parametrize("trick", NEW.values(), ids=NEW.keys())
async def test_no_command_leaves_a_repository(sandbox: Sandbox, trick: str) -> None:
    root = sandbox.folder.root
    result = await shell(sandbox, EVIL + trick)
    (root / "PWNED").unlink(missing_ok=True)
    assert result.code == 0, result.stderr.text()
    assert any("repositories: true in workspace.yml" in note for note in result.notes), result.notes
    assert (find_repositories(root), (root / "PWNED").exists()) == (set(), False)


@pytest.mark.parametrize("trick", ["bare at the top", "git", "a gitlink"])
async def test_new_repositories_are_obeyed_outside_a_sandbox(tmp_path: Path, trick: str) -> None:
    """The control."""
    words = ["/bin/sh", "-c", EVIL + NEW[trick]]
    await asyncio.to_thread(subprocess.run, words, cwd=tmp_path, env=minimal_environ(), check=True)
    assert find_repositories(tmp_path)
    assert (tmp_path / "PWNED").exists()


async def test_several_commands_cannot_make_a_repository_in_steps(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    (root / "sub").mkdir()
    (root / "sub" / "HEAD").write_text("ref: refs/heads/main\n")
    give_to_owner_of(root)
    for step in ("mkdir sub/objects", "echo x > sub/config", "true"):
        assert (await shell(sandbox, step)).notes == ()
    [note] = (await shell(sandbox, "mkdir sub/refs")).notes
    assert note.startswith("sub/HEAD was renamed HEAD.quarantined-")
    assert find_repositories(root) == set()


async def test_commands_can_make_repositories_if_the_settings_allow_it(owner: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path, owner)
    async with open_sandbox(root, replace(DEFAULTS, repositories=True)) as sandbox:
        result = await shell(sandbox, "git init -q sub; git init -q --bare b.git")
    assert result.notes == ()
    assert {root / "sub", root / "b.git"} <= find_repositories(root)


async def test_an_existing_bare_repository_is_read_only(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    git(root, "init", "-q", "--bare", "deep/b.git")
    before = (root / "deep" / "b.git" / "config").read_text()
    give_to_owner_of(root)
    result = await shell(sandbox, "echo x >> deep/b.git/config; mv deep d; rm -rf deep/b.git; touch deep/fine")
    assert (root / "deep" / "b.git" / "config").read_text() == before
    assert (result.notes, (root / "deep" / "fine").exists()) == ((), True)


async def test_in_a_bare_repository_commands_cannot_write(sandbox: Sandbox) -> None:
    git(sandbox.folder.root, "init", "-q", "--bare", ".")
    give_to_owner_of(sandbox.folder.root)
    with pytest.raises(WorkspaceError, match="The folder itself is a bare git repository"):
        await shell(sandbox, "true")
    assert (await shell(sandbox, "ls", writes=False)).code == 0


async def test_existing_guarded_files_are_read_only(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    for place in (root, root / "pkg" / "inner"):
        (place / ".vscode").mkdir(parents=True)
        (place / ".vscode" / "tasks.json").write_text("{}")
        (place / ".envrc").write_text("as it was\n")
    give_to_owner_of(root)
    attack = "".join(
        f"echo x > {place}/.vscode/tasks.json; touch {place}/.vscode/new; rm -rf {place}/.vscode; mv {place}/.vscode v;"
        f"echo x > {place}/.envrc; mv {place}/.envrc e; ln -sf x {place}/.envrc; cat {place}/.envrc;"
        for place in (".", "pkg/inner")
    )
    result = await shell(sandbox, attack + "mv pkg/inner pkg/i; mv pkg p; touch pkg/inner/fine")
    assert (result.stdout.text(), result.notes) == ("as it was\n" * 2, ())
    for place in (root, root / "pkg" / "inner"):
        assert [path.name for path in (place / ".vscode").iterdir()] == ["tasks.json"]
        assert ((place / ".vscode" / "tasks.json").read_text(), (place / ".envrc").read_text()) == ("{}", "as it was\n")
    assert (root / "pkg" / "inner" / "fine").exists()


async def test_new_guarded_files_are_renamed(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    (root / "elsewhere").mkdir()
    (root / ".cursor").symlink_to("elsewhere")
    give_to_owner_of(root)
    result = await shell(
        sandbox,
        "mkdir -p a/b .claude node_modules/p/.vscode; echo x > .claude/settings.json; echo x > a/b/.ENVRC;"
        "ln -s a .idea; chmod 000 a/b/.ENVRC; chmod 555 a/b; : > me.code-workspace;"
        "rm .cursor; mkdir .cursor; echo x > .cursor/mcp.json; echo fine > .env",
    )
    again = await shell(sandbox, "true")
    assert result.code == 0, result.stderr.text()
    assert again.notes == ()
    paths = {str(path.relative_to(root)) for path in root.rglob("*")}
    kept = {path for path in paths if "quarantined" not in path and "node_modules" not in path}
    assert kept == {"a", "a/b", "elsewhere", ".env"}
    assert len(result.notes) == 5
    assert all("guarded: in workspace.yml" in note for note in result.notes)
    assert (next(root.glob(".claude.quarantined-*")) / "settings.json").read_text() == "x\n", "nothing is lost"


async def test_the_users_own_change_of_a_guarded_file_is_kept(sandbox: Sandbox) -> None:
    """A command cannot write to it, so the change is not the command's."""
    root = sandbox.folder.root
    (root / ".envrc").write_text("before")
    give_to_owner_of(root)
    running = asyncio.create_task(shell(sandbox, "touch ready; until [ -e go ]; do sleep 0.01; done"))
    await until_exists(root / "ready")
    (root / "new").write_text("after")
    (root / "new").rename(root / ".envrc")
    give_to_owner_of(root)
    beside = await shell(sandbox, "echo more >> .envrc")
    (root / "go").touch()
    assert (await running).notes == ()
    assert "Read-only" in beside.stderr.text()
    assert (root / ".envrc").read_text() == "after"


async def test_the_top_folder_is_surveyed_however_many_files_it_has(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BEFORE_A_COMMAND", SurveyBounds(entries=10, depth=8, seconds=60))
    root = sandbox.folder.root
    (root / "theirs").mkdir()
    for number in range(20):
        (root / str(number)).touch()
    give_to_owner_of(root)
    result = await shell(sandbox, EVIL + NEW["bare by hand"] + "; mkdir .claude; : > .envrc")
    assert find_repositories(root) == set()
    assert not {".claude", ".envrc", "HEAD"} & {path.name for path in root.iterdir()}
    assert len(result.notes) == 3


# ---- closed folders, floods of files, hidden files


async def test_surveying_the_folder_does_not_block_the_event_loop(
    hiding: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    loop_ran, results = threading.Event(), list[bool]()
    real = Sandbox._look

    def slow(self: Sandbox) -> Survey:
        nonlocal looks
        looks += 1
        loop_ran.clear()
        results.append(loop_ran.wait(60))
        time.sleep(0.3)
        return real(self)

    async def keep_running() -> None:
        while True:
            loop_ran.set()
            await asyncio.sleep(0.01)

    root = hiding.folder.root
    monkeypatch.setattr(hiding._folder_lock, "_survey", slow.__get__(hiding))
    other = asyncio.create_task(keep_running())
    running = asyncio.create_task(shell(hiding, "touch new.key ready; until [ -e stop ]; do sleep 0.02; done"))
    await asyncio.to_thread(wait_for, (root / "ready").exists, "the first")
    looks = 0
    waiting = asyncio.create_task(shell(hiding, "true", seconds=2))
    await asyncio.wait([waiting])
    tried = looks
    (root / "stop").touch()
    await running
    other.cancel()
    assert isinstance(waiting.exception(), WorkspaceError)
    assert set(results) == {True}
    assert 1 <= tried <= 6


@pytest.mark.parametrize("mode", ["000", "111", "444", "300"])
async def test_a_folder_that_was_closed_stays_protected_when_it_is_opened_again(hiding: Sandbox, mode: str) -> None:
    """A survey cannot see into a folder that a command has closed."""
    root = hiding.folder.root
    (root / "conf" / "deep").mkdir(parents=True)
    (root / "conf" / "deep" / "server.key").write_text("canary")
    make_repository(root / "vendor" / "lib")
    give_to_owner_of(root)
    config = (root / "vendor" / "lib" / ".git" / "config").read_text()
    await shell(hiding, f"chmod {mode} conf vendor")
    open_again = "chmod -R 755 conf vendor; cat conf/deep/server.key; echo x >> vendor/lib/.git/config; echo end"
    assert (await shell(hiding, open_again)).stdout.text() == "end\n"
    for place in ("conf", "vendor"):
        assert stat.S_IMODE((root / place).stat().st_mode) == int(mode, 8)
        (root / place).chmod(0o755)
    assert (root / "vendor" / "lib" / ".git" / "config").read_text() == config


async def test_nothing_runs_while_the_folder_itself_is_closed(hiding: Sandbox) -> None:
    await shell(hiding, "chmod 311 .")
    with pytest.raises(WorkspaceError, match=r"cannot be listed|cannot be opened") as error:
        await shell(hiding, "true")
    assert error.value.remedy
    hiding.folder.root.chmod(0o755)
    assert (await shell(hiding, "true")).code == 0


async def test_a_flood_of_files_does_not_unprotect_a_repository(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BEFORE_A_COMMAND", FEW)
    root = make_folder(tmp_path)
    make_repository(root / "vendor" / "lib")
    for folder in (root / "vendor" / "run", root / "many"):
        folder.mkdir()
    for number in range(100):
        (root / "many" / str(number)).touch()
    give_to(owner, root)
    config = (root / "vendor" / "lib" / ".git" / "config").read_text()
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('vendor/run/s'); print('reached')"
    with socket.socket(socket.AF_UNIX) as listener:
        with chdir(root):
            listener.bind("vendor/run/s")
        (root / "vendor" / "run" / "s").chmod(0o777)
        listener.listen(1)
        async with open_sandbox(root) as sandbox:
            for flood in ("mkdir f; cd f; seq 100 | xargs touch", "chmod 0 vendor", "chmod 755 vendor", "true"):
                attack = f'echo x >> vendor/lib/.git/config; mv vendor v; python3 -c "{connect}"'
                result = await shell(sandbox, f'{flood}; cd "$OLDPWD"; {attack}', env={"OLDPWD": str(root)})
                assert "reached" not in result.stdout.text()
        (root / "vendor").chmod(0o755)
    assert (root / "vendor" / "lib" / ".git" / "config").read_text() == config


async def test_too_many_repositories_refuse_commands_that_write(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command could make so many that the user's own could not be protected."""
    monkeypatch.setattr(survey, "MAX_PATHS", 3)
    assert (await shell(sandbox, "mkdir -p a/.git b/.git c/.git d/.git")).code == 0
    with pytest.raises(WorkspaceError, match="too many repositories"):
        await shell(sandbox, "true")
    assert (await shell(sandbox, "true", writes=False)).code == 0
    (sandbox.folder.root / "d" / ".git").rmdir()
    assert (await shell(sandbox, "true")).code == 0


async def test_a_folder_too_large_to_survey_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / f"{number}").touch()
    async with open_sandbox(tmp_path) as sandbox:
        assert sandbox.describe()["looked_through"] == "all"
    monkeypatch.setattr(sandbox_module, "AT_THE_START", FEW)
    async with open_sandbox(tmp_path) as sandbox:
        assert sandbox.describe()["looked_through"] == "in part"


async def test_toolcribs_files_of_a_project_inside_are_protected(sandbox: Sandbox) -> None:
    root = sandbox.folder.root
    inner = root / "svc" / ".toolcrib"
    (inner / "runs").mkdir(parents=True)
    (inner / "runs" / "1.log").write_text("canary")
    (inner / "workspace.yml").write_text("read_only: true\n")
    (root / "linked").mkdir()
    (root / "linked" / ".toolcrib").symlink_to("../svc/.toolcrib")
    give_to_owner_of(root)
    attack = "cat svc/.toolcrib/workspace.yml */.toolcrib/runs/*; echo {} > svc/.toolcrib/workspace.yml; mv svc s;"
    attack += "rm -rf svc/.toolcrib linked/.toolcrib; mkdir linked/.toolcrib; mkdir svc/.toolcrib/runs; touch svc/fine"
    for writes in (True, False):
        assert (await shell(sandbox, attack, writes=writes)).stdout.text() == "read_only: true\n"
    assert (inner / "workspace.yml").read_text() == "read_only: true\n"
    assert (inner / "runs" / "1.log").read_text() == "canary"
    assert (root / "linked" / ".toolcrib").is_symlink()
    assert (root / "svc" / "fine").exists()


async def test_hidden_files_too_deep_to_find_refuse_commands(tmp_path: Path) -> None:
    place = tmp_path.joinpath(*["d"] * 66)
    place.mkdir(parents=True)
    (place / "x.key").write_text("canary")
    async with tried_sandbox(tmp_path, NO_KEYS) as sandbox:
        with pytest.raises(WorkspaceError, match="64 levels"):
            await shell(sandbox, "find . -name x.key -exec cat {} +")
