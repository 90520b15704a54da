"""What commands prepare for the next ones gains them nothing: links on the way, closed folders, floods of files."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import subprocess
import threading
import time
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest

from parts.sandboxes import opened, own, shell, usual
from parts.waiting import wait_for
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox import Sandbox, layout, survey
from toolcrib.workspace.sandbox import sandbox as sandbox_module
from toolcrib.workspace.sandbox.git_protection import PLACEHOLDER_BIT
from toolcrib.workspace.sandbox.survey import Survey, SurveyBounds
from toolcrib.workspace.settings.model import DEFAULTS, GitMode

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.usefixtures("bwrap")]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
COMMIT = replace(DEFAULTS, git=GitMode.COMMIT)
NO_KEYS = replace(DEFAULTS, hidden=("*.key",))
FEW = SurveyBounds(entries=40, depth=8, seconds=5)


@pytest.fixture(params=["mine", pytest.param("somebody", marks=needs_root)])
def owner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


def index(*paths: bytes, version: int = 2) -> bytes:
    """As git writes one that names submodules."""
    entries = b""
    for path in paths:
        entry = bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + b"\1" * 20 + struct.pack(">H", len(path)) + path
        entries += entry + bytes(8 - len(entry) % 8)
    return struct.pack(">4sII", b"DIRC", version, len(paths)) + entries


def repository(place: Path, *submodules: bytes) -> Path:
    subprocess.run(["git", "init", "-q", str(place)], check=True, env={**usual(), "HOME": str(place.parent)})
    if submodules:
        (place / ".git" / "index").write_bytes(index(*submodules))
    return place


def outside_of(root: Path, owner: str) -> Path:
    outside = root.parent / "outside"
    (outside / "b").mkdir(parents=True)
    (outside / "b" / "secret").write_text("canary")
    return own(outside, owner)


@pytest.mark.parametrize("settings", [DEFAULTS, COMMIT], ids=["read-only", "commit"])
async def test_a_link_on_the_way_to_a_submodule_refuses_commands_that_write(
    root: Path, owner: str, settings: object
) -> None:
    """It could be exchanged for a folder while the next sandbox is made, and what it leads to would be mounted."""
    outside = outside_of(root, owner)
    repository(root, b"a/b")
    (root / "a").symlink_to(outside)
    own(root, owner)
    before = outside.stat(), (outside / "b").stat()
    async with opened(root, settings) as sandbox:  # type: ignore[arg-type]
        with pytest.raises(WorkspaceError, match="submodule at a/b, and a is a link") as refusal:
            await shell(sandbox, "true")
        reading = await shell(sandbox, "echo fine", writes=False)
    assert "git rm --cached" in refusal.value.remedy
    assert reading.stdout.text() == "fine\n"
    assert [path.name for path in (outside / "b").iterdir()] == ["secret"]
    assert [(there.st_uid, there.st_mtime_ns) for there in before] == [
        (there.st_uid, there.st_mtime_ns) for there in (outside.stat(), (outside / "b").stat())
    ]


async def test_the_way_to_a_submodule_cannot_be_exchanged_for_a_link(root: Path, owner: str) -> None:
    outside = outside_of(root, owner)
    repository(root, b"a/b")
    (root / "link").symlink_to(f"/oldroot{outside}")
    own(root, owner)
    flip = "import ctypes, time\nlibc = ctypes.CDLL(None)\nopen('ready', 'w').close()\n"
    flip += "while True: libc.renameat2(-100, b'a', -100, b'link', 2)"
    async with opened(root) as sandbox:
        flipping = asyncio.create_task(shell(sandbox, f'exec python3 -c "{flip}"'))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the flipping", 20)
        for _ in range(20):
            finished = await shell(sandbox, "cat a/b/secret; ls -A a/b")
            assert finished.stdout.text() == ".git\n"
        flipping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flipping
    assert [path.name for path in (outside / "b").iterdir()] == ["secret"]
    assert sorted(path.name for path in root.iterdir()) == [".git", "link", "ready"]


async def test_a_file_in_place_of_a_submodule_stays_one(root: Path, owner: str) -> None:
    repository(root, b"sub", b"deep/file/sub")
    (root / "sub").touch()
    (root / "deep").mkdir()
    (root / "deep" / "file").touch()
    own(root, owner)
    async with opened(root) as sandbox:
        await shell(sandbox, "rm -f sub deep/file; mv sub x; mv deep y; git init -q sub; git init -q deep/file/sub")
    assert (root / "sub").is_file()
    assert (root / "deep" / "file").is_file()


async def test_what_was_left_on_the_way_to_a_submodule_is_removed_by_the_next(root: Path, owner: str) -> None:
    repository(root, b"a/b")
    for place in ("a", "a/b", "a/b/.git"):
        (root / place).mkdir()
        (root / place).chmod(PLACEHOLDER_BIT | 0o755)
    own(root, owner)
    async with opened(root) as sandbox:
        await asyncio.gather(*(shell(sandbox, "sleep 0.1") for _ in range(3)))
    assert [path.name for path in root.iterdir()] == [".git"]


async def test_of_commands_at_once_the_last_puts_the_repository_right(root: Path, owner: str) -> None:
    """What one made must not count as what was there before the other."""
    repository(root)
    (root / "x").touch()
    own(root, owner)
    link = "mkdir sub .git/rebase-merge; git add x; git commit -qm x;"
    link += "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub;"
    async with opened(root, COMMIT) as sandbox:
        one = asyncio.create_task(shell(sandbox, link + "touch one; until [ -e two ]; do sleep 0.02; done"))
        await asyncio.to_thread(wait_for, (root / "one").exists, "the first", 20)
        two = asyncio.create_task(
            shell(sandbox, "touch two; until [ -e go ]; do sleep 0.02; done; git init -q sub; mkdir .git/rebase-apply")
        )
        first = await one
        (root / "go").touch()
        second = await two
    assert first.code == 0, first.stderr.text()
    assert not first.notes
    assert [note.partition(" ")[0].partition(".quarantined")[0] for note in second.notes] == [
        *(".git/rebase-merge", ".git/rebase-apply", "sub/.git", "sub/.git")
    ]
    assert not (root / "sub" / ".git").exists()
    assert not (root / ".git" / "rebase-merge").exists()
    assert not (root / ".git" / "rebase-apply").exists()


async def test_a_repository_that_was_closed_is_put_right_too(root: Path, owner: str) -> None:
    own(repository(root), owner)
    async with opened(root, COMMIT) as sandbox:
        await shell(
            sandbox,
            "mkdir .git/rebase-merge; mkdir .git/rebase-merge/x; chmod 0 .git/rebase-merge/x .git/rebase-merge .git",
        )
        again = await shell(sandbox, "git rev-parse --git-dir")
    assert again.stdout.text() == ".git\n"
    assert not (root / ".git" / "rebase-merge").exists()


async def test_an_index_that_cannot_be_read_refuses_commands_that_write(root: Path) -> None:
    """Two megabytes that stand for paths of many gigabytes."""
    repository(root)
    entry = bytes(24) + struct.pack(">I", 0o160000) + bytes(12) + b"\1" * 20 + bytes(3)
    bomb = struct.pack(">4sII", b"DIRC", 4, 20_000) + entry + b"a" * 1_000_000 + b"\0" + (entry + b"b\0") * 19_999
    (root / ".git" / "index").write_bytes(bomb)
    async with opened(root) as sandbox:
        began = time.process_time()
        with pytest.raises(WorkspaceError, match="submodules cannot be determined"):
            await shell(sandbox, "true")
        assert time.process_time() - began < 5
        assert (await shell(sandbox, "echo fine", writes=False)).stdout.text() == "fine\n"


async def test_looking_through_the_folder_does_not_hold_up_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    turned, others_went_on = threading.Event(), list[bool]()
    real = Sandbox._look

    def slow(self: Sandbox) -> Survey:
        nonlocal looks
        looks += 1
        turned.clear()
        others_went_on.append(turned.wait(60))
        time.sleep(0.3)
        return real(self)

    async def turn() -> None:
        while True:
            turned.set()
            await asyncio.sleep(0.01)

    monkeypatch.setattr(Sandbox, "_look", slow)
    async with opened(root, NO_KEYS) as sandbox:
        turning = asyncio.create_task(turn())
        going = asyncio.create_task(shell(sandbox, "touch new.key ready; until [ -e stop ]; do sleep 0.02; done"))
        await asyncio.to_thread(wait_for, (root / "ready").exists, "the first")
        looks = 0
        waiting = asyncio.create_task(shell(sandbox, "true", seconds=2))
        await asyncio.wait([waiting])
        tried = looks
        (root / "stop").touch()
        await going
        turning.cancel()
    assert isinstance(waiting.exception(), WorkspaceError)
    assert set(others_went_on) == {True}
    assert 1 <= tried <= 6


@pytest.mark.parametrize("mode", ["000", "111", "444", "300"])
async def test_a_closed_folder_shows_nothing_when_it_is_opened_again(root: Path, owner: str, mode: str) -> None:
    """A command cannot be asked what lies in a folder that it has closed."""
    (root / "conf" / "deep").mkdir(parents=True)
    (root / "conf" / "deep" / "server.key").write_text("canary")
    repository(root / "vendor" / "lib")
    own(root, owner)
    config = (root / "vendor" / "lib" / ".git" / "config").read_text()
    async with opened(root, NO_KEYS) as sandbox:
        await shell(sandbox, f"chmod {mode} conf vendor")
        second = await shell(
            sandbox, "chmod -R 755 conf vendor; cat conf/deep/server.key; echo x >> vendor/lib/.git/config; echo end"
        )
        assert second.stdout.text() == "end\n"
        for place in ("conf", "vendor"):
            assert stat.S_IMODE((root / place).stat().st_mode) == int(mode, 8)
            (root / place).chmod(0o755)
    assert (root / "vendor" / "lib" / ".git" / "config").read_text() == config


async def test_where_the_folder_itself_is_closed_nothing_is_run(root: Path, owner: str) -> None:
    own(root, owner)
    async with opened(root, NO_KEYS) as sandbox:
        await shell(sandbox, "chmod 311 .")
        with pytest.raises(WorkspaceError, match=r"cannot be listed|may not be opened") as refusal:
            await shell(sandbox, "true")
        root.chmod(0o755)
        assert (await shell(sandbox, "true")).code == 0
    assert refusal.value.remedy


async def test_a_flood_of_files_hides_no_repository(root: Path, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BEFORE_A_COMMAND", FEW)
    repository(root / "vendor" / "lib")
    (root / "vendor" / "run").mkdir()
    own(root, owner)
    config = (root / "vendor" / "lib" / ".git" / "config").read_text()
    knock = "import socket; socket.socket(socket.AF_UNIX).connect('vendor/run/s'); print('reached')"
    with socket.socket(socket.AF_UNIX) as door:
        with chdir(root):
            door.bind("vendor/run/s")
        (root / "vendor" / "run" / "s").chmod(0o777)
        door.listen(1)
        async with opened(root) as sandbox:
            for flood in ("mkdir f; cd f; seq 100 | xargs touch", "chmod 0 vendor", "chmod 755 vendor", "true"):
                finished = await shell(
                    sandbox,
                    f'{flood}; cd "$OLDPWD"; echo x >> vendor/lib/.git/config; mv vendor v; python3 -c "{knock}"',
                    env={"OLDPWD": str(root)},
                )
                assert "reached" not in finished.stdout.text()
        (root / "vendor").chmod(0o755)
    assert (root / "vendor" / "lib" / ".git" / "config").read_text() == config


async def test_too_many_repositories_refuse_commands_that_write(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command could make so many that a person's own has no place among them."""
    monkeypatch.setattr(survey, "MAX_PATHS", 3)
    async with opened(root) as sandbox:
        assert (await shell(sandbox, "mkdir -p a/.git b/.git c/.git d/.git")).code == 0
        with pytest.raises(WorkspaceError, match="too many repositories"):
            await shell(sandbox, "true")
        assert (await shell(sandbox, "true", writes=False)).code == 0
        (root / "d" / ".git").rmdir()
        assert (await shell(sandbox, "true")).code == 0


async def test_a_folder_too_large_to_be_looked_through_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (root / f"{number}").touch()
    async with opened(root) as sandbox:
        assert sandbox.describe()["looked_through"] == "all"
    monkeypatch.setattr(sandbox_module, "AT_THE_START", FEW)
    async with opened(root) as sandbox:
        assert sandbox.describe()["looked_through"] == "in part"


async def test_toolcribs_files_of_a_project_inside_are_kept_as_its_own(root: Path, owner: str) -> None:
    inner = root / "svc" / ".toolcrib"
    (inner / "runs").mkdir(parents=True)
    (inner / "runs" / "1.log").write_text("canary")
    (inner / "workspace.yml").write_text("read_only: true\n")
    (root / "linked").mkdir()
    (root / "linked" / ".toolcrib").symlink_to("../svc/.toolcrib")
    own(root, owner)
    attack = "cat svc/.toolcrib/workspace.yml */.toolcrib/runs/*; echo {} > svc/.toolcrib/workspace.yml; mv svc s;"
    attack += "rm -rf svc/.toolcrib linked/.toolcrib; mkdir linked/.toolcrib; mkdir svc/.toolcrib/runs; touch svc/fine"
    async with opened(root) as sandbox:
        for writes in (True, False):
            finished = await shell(sandbox, attack, writes=writes)
            assert finished.stdout.text() == "read_only: true\n"
    assert (inner / "workspace.yml").read_text() == "read_only: true\n"
    assert (inner / "runs" / "1.log").read_text() == "canary"
    assert (root / "linked" / ".toolcrib").is_symlink()
    assert (root / "svc" / "fine").exists()


async def test_hidden_files_too_deep_to_be_found_refuse_commands(root: Path) -> None:
    place = root.joinpath(*["d"] * 66)
    place.mkdir(parents=True)
    (place / "x.key").write_text("canary")
    folder = Folder(root, hidden=NO_KEYS.hidden)
    sandbox = await Sandbox.open(folder, NO_KEYS, environ=usual())
    with pytest.raises(WorkspaceError, match="64 levels"):
        await shell(sandbox, "find . -name x.key -exec cat {} +")
    await sandbox.close()
    folder.close()
