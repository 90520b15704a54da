"""The `git` of a coding agent's run starts no program, whatever the repository's configuration names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolcrib.coding_agents import program_environment
from toolcrib.coding_agents.program_environment import search_path_with_plain_git
from toolcrib.errors import ConfigError

pytestmark = pytest.mark.req("FRG-3")
SUBMODULE = "160000,1234567890123456789012345678901234567890,lib"


class Repository:
    """Has a commit and a changed file of the same length. `trap` is a command that leaves a mark."""

    def __init__(self, base: Path) -> None:
        self.base, self.root, self.mark = base, base / "project", base / "mark"
        (base / "private").mkdir(mode=0o700)
        (base / "home").mkdir()
        self.root.mkdir()
        self.trap = f"touch {self.mark}; cat"
        self.make(self.root)

    @property
    def path(self) -> str:
        return search_path_with_plain_git(self.base / "private", os.environ["PATH"])

    def make(self, folder: Path) -> None:
        self.git("init", "--quiet", cwd=folder)
        (folder / ".gitattributes").write_text("*.txt filter=e diff=e\n")
        (folder / "a.txt").write_text("as it was\n")
        self.git("add", ".", cwd=folder)
        self.git("commit", "--quiet", "-m", "first", cwd=folder)
        (folder / "a.txt").write_text("As it is.\n")

    def config(self, name: str, value: str, *words: str, cwd: Path | None = None) -> None:
        self.git("config", *words, name, value, cwd=cwd)

    def git(self, *words: str, cwd: Path | None = None, path: str = os.environ["PATH"]) -> tuple[int, bytes, bytes]:
        """The exit code, standard output and standard error."""
        identity = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environ = {**identity, "PATH": path, "HOME": str(self.base / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *words], cwd=cwd or self.root, env=environ, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def in_submodule(it: Repository) -> None:
    lib = it.root / "lib"
    lib.mkdir()
    it.make(lib)
    it.config("filter.e.clean", it.trap, cwd=lib)
    it.git("update-index", "--add", "--cacheinfo", SUBMODULE)
    # Without this, git would not look into it.
    it.config("submodule.lib.ignore", "none")
    (it.root / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n')


def in_hook(it: Repository) -> None:
    hook = it.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{it.trap}\n")
    hook.chmod(0o755)


def in_included_file(it: Repository) -> None:
    (it.root / "more").write_text(f'[core]\n\tfsmonitor = "{it.trap}"\n')
    it.config("include.path", "../more")


def in_worktree_config(it: Repository) -> None:
    it.config("extensions.worktreeConfig", "true")
    it.config("core.fsmonitor", it.trap, "--worktree")


def in_bare_repository(it: Repository) -> None:
    (it.root / ".git").rename(it.root / "was")
    for name in ("HEAD", "config", "objects", "refs", "index"):
        (it.root / "was" / name).rename(it.root / name)
    it.config("core.worktree", str(it.root), "--file", "config")
    it.config("core.fsmonitor", it.trap, "--file", "config")


def in_remote(it: Repository) -> None:
    """A repository without its objects fetches them with the program that it names."""
    it.config("core.repositoryFormatVersion", "1")
    it.config("extensions.partialClone", "origin")
    it.config("remote.origin.promisor", "true")
    it.config("remote.origin.url", str(it.root))
    it.config("remote.origin.uploadpack", it.trap)


def setting(name: str) -> Callable[[Repository], None]:
    return lambda it: it.config(name, it.trap)


@pytest.mark.parametrize(
    ("lay", "words"),
    [
        (setting("core.fsmonitor"), "status"),
        (setting("filter.e.clean"), "status"),
        (setting("filter.e.process"), "status"),
        (setting("filter.e.smudge"), "checkout-index --force --prefix=out/ a.txt"),
        (setting("diff.e.textconv"), "diff"),
        (setting("diff.e.command"), "diff"),
        (setting("diff.external"), "diff"),
        (lambda it: it.config("alias.st", f"!{it.trap}"), "st"),
        (setting("core.sshCommand"), "ls-remote ssh://127.0.0.1/x"),
        (in_remote, f"cat-file -e {SUBMODULE.split(',')[1]}"),
        (in_hook, "checkout -q HEAD"),
        (in_included_file, "status"),
        (in_worktree_config, "status"),
        (in_bare_repository, "status"),
        (in_submodule, "status --porcelain"),
    ],
)
def test_no_program_of_a_repository_is_started(
    repository: Repository, lay: Callable[[Repository], None], words: str
) -> None:
    lay(repository)
    repository.mark.unlink(missing_ok=True)
    repository.git(*words.split(), path=repository.path)
    assert not repository.mark.exists()
    repository.git(*words.split())
    assert repository.mark.exists(), "the trap does not work"


def test_git_works_as_usual_without_such_configuration(repository: Repository) -> None:
    commands = ("status --porcelain", "rev-parse HEAD", "log", "diff", "grep -n was", "ls-files", "remote -v")
    for words in commands:
        assert repository.git(*words.split(), path=repository.path) == repository.git(*words.split())


def test_a_repository_with_a_submodule_still_has_a_status(repository: Repository) -> None:
    in_submodule(repository)
    repository.git("config", "--unset", "submodule.lib.ignore")
    assert repository.git("status", "--porcelain", path=repository.path)[0] == 0
    assert not repository.mark.exists()


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_git_is_unavailable_if_it_cannot_be_restricted(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(program_environment.sys, "platform", platform)
    monkeypatch.setattr(program_environment.platform, "machine", lambda: "riscv64" if platform == "linux" else "x86_64")
    assert repository.git("rev-parse", "HEAD", path=repository.path)[0] == 128


def test_without_git_the_path_is_unchanged_and_a_folder_with_a_colon_is_refused(tmp_path: Path) -> None:
    assert search_path_with_plain_git(tmp_path, str(tmp_path)) == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="TOOLCRIB_HOME"):
        search_path_with_plain_git(tmp_path / "a:b", os.environ["PATH"])
