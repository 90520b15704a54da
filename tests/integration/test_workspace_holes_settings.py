"""Switches, limits and hidden files, each at every tool; and what a repository's own settings may not do."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts import holes, sides, traps
from parts.daemon import Home, StartDaemon
from parts.holes import CALLS
from parts.sides import PLAIN, Side
from parts.traps import Ground, leaked
from toolcrib.errors import WorkspaceError

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]

WRITING = ("write_file", "edit_file", "run_shell_safe")


@contextlib.contextmanager
def either(name: str, home: Home, request: pytest.FixtureRequest, tame: Ground, env: dict[str, str]) -> Iterator[Side]:
    if name == "stdio":
        with sides.over_stdio(home, env=env, root=tame.root) as side:
            yield side
    else:
        start: StartDaemon = request.getfixturevalue("daemon")
        with sides.at_daemon(start, tame.root, env=env) as side:
            yield side


@pytest.mark.req("FRG-9", "FRG-12")
@pytest.mark.parametrize("where", ["stdio", "daemon"])
def test_settings_that_came_with_a_repository_widen_nothing(
    toolcrib_home: Home, request: pytest.FixtureRequest, tame: Ground, where: str
) -> None:
    (tame.root / ".toolcrib" / "workspace.yml").write_text(
        f"read_only: false\ngit: commit\nnetwork: true\nforbid_shell_in_ci: false\nenvironment: [{traps.SECRET_NAME}]\n"
        f"readable: [{tame.outside}, {tame.sibling}]\npython: {tame.marker}\nhidden: [src/b.py]\n"
        "tools: {list_dir: off, read_file: on}\n"
        "limits: {session_calls: 1000000, processes: 4096, memory_mb: 65536, seconds: {run_shell_safe: 3600}}\n"
    )
    secret = {traps.SECRET_NAME: traps.SECRET}
    with either(where, toolcrib_home, request, tame, secret) as side:
        shell = side.sh(
            f"env; cat {tame.outside}/secret.txt; ls {tame.sibling}; {tame.marker}; git add notes.txt 2>&1;"
            "git config x.y z 2>&1; cat /proc/net/dev"
        )
        for tool, arguments in CALLS.items():
            said = side.call(tool, **arguments)
            assert not leaked(said.whole), f"{tool}: {said}"
            # What it forbids holds.
            assert said.is_error == (tool == "list_dir"), f"{tool}: {said}"
        assert side.call("read_file", path="src/b.py").is_error
    assert not leaked(shell.whole), shell
    interfaces = [
        line.split(":")[0].strip() for line in shell.data["stdout"].splitlines() if re.match(r" *\w+: +\d", line)
    ]
    assert interfaces == ["lo"], shell
    assert "index.lock" in shell.data["stdout"] or "Read-only" in shell.data["stdout"], shell
    assert not (tame.root / "ran").exists()


@pytest.mark.parametrize("where", ["stdio", "daemon"])
def test_in_ci_there_is_no_shell_whatever_the_repository_says(
    toolcrib_home: Home, request: pytest.FixtureRequest, tame: Ground, where: str
) -> None:
    (tame.root / ".toolcrib" / "workspace.yml").write_text("forbid_shell_in_ci: false\n")
    with either(where, toolcrib_home, request, tame, {"CI": "true"}) as side:
        said = side.sh("touch made")
        assert said.is_error, said
        # The daemon does not even list it.
        assert "CI" in said.text or "no tool" in said.text, said
        assert not side.call("run_tests", paths=["test_ok.py"]).is_error
    assert not (tame.root / "made").exists()


@pytest.mark.parametrize("settings", ["tools: {nothing: off}\n", "network: [", "hidden: ['!x']\n", "root: /\n", "x"])
def test_settings_that_cannot_be_read_stop_every_tool(daemon: StartDaemon, tame: Ground, settings: str) -> None:
    """What was meant to forbid must not be passed over."""
    (tame.root / ".toolcrib" / "workspace.yml").write_text(settings)
    before = traps.seen(tame.root)
    with sides.at_daemon(daemon, tame.root) as side:
        for tool, arguments in CALLS.items():
            said = side.call(tool, **arguments)
            assert said.is_error, f"{tool}: {said}"
            assert not leaked(said.whole)
    assert traps.seen(tame.root) == before


@pytest.mark.parametrize("tool", CALLS)
def test_a_tool_that_is_off_is_off(tame: Ground, environ: dict[str, str], tool: str) -> None:
    before = traps.seen(tame.root)
    with sides.in_process(tame.root, replace(PLAIN, off=frozenset({tool})), environ=environ) as side:
        said = side.call(tool, **CALLS[tool])
    assert said.is_error
    assert "off" in said.text
    assert traps.seen(tame.root) == before


def test_in_read_only_mode_no_tool_changes_one_byte(tame: Ground, environ: dict[str, str]) -> None:
    """Also not the index of git, a cache, a file of kept output, or the time of a folder."""
    root = tame.root
    (root / "test_writes.py").write_text(
        "import pathlib, pytest, subprocess\n"
        "@pytest.mark.parametrize('path', ['made', 'notes.txt', '.git/made', '.toolcrib/made', 'src/made'])\n"
        "def test_write(path):\n    pathlib.Path(path).write_text('x')\n"
        "def test_print():\n    print('x' * 1000000)\n    assert 0\n"
        "def test_git():\n    subprocess.run(['git', 'add', '.'], check=True)\n"
    )
    (root / "plugin.py").write_text("open('made', 'w')\ndef plugin(version): ...\n")
    (root / "mypy.ini").write_text("[mypy]\nplugins = ./plugin.py\n")
    before = traps.seen(root)
    calls = {**CALLS, "run_tests": {}, "run_lint": {"paths": ["src"], "tools": ["ruff", "mypy"]}}
    with sides.in_process(root, replace(PLAIN, read_only=True), environ=environ) as side:
        for tool, arguments in calls.items():
            said = side.call(tool, **arguments)
            assert said.is_error == (tool in WRITING), f"{tool}: {said}"
            assert tool not in WRITING or "read-only" in said.text
            if tool == "run_tests":
                assert said.data["failed"] == 7, said
                assert said.data["passed"] >= 1, said
        for form, arguments_of in holes.WRITE_FORMS.values():
            assert side.call(form, **arguments_of("made.txt")).is_error
    assert traps.seen(root) == before


HIDDEN_WORD = "HIDDENWORD4C0D"
COMMITTED = "COMMITTEDWORD77AE"
"""In a hidden file's past. Commands can ask git for it; whoever commits what shall be hidden has told it."""
HIDDEN = ("secret.env", "vault/**", "*.key", "/src/hidden.py", "closed/")


def test_what_is_hidden_is_hidden_from_every_tool(tame: Ground, environ: dict[str, str]) -> None:
    root = tame.root
    paths = (
        "secret.env",
        "src/secret.env",
        "vault/a.txt",
        "vault/deep/b.txt",
        "SERVER.KEY",
        "src/hidden.py",
        "closed/c",
    )
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{HIDDEN_WORD}\n")
    (root / "tracked.key").write_text("before\n")
    (root / "renamed.key").write_text(f"{COMMITTED}\nof some length that git will know again\n")
    traps.git(root, "add", "tracked.key", "renamed.key")
    traps.git(root, "commit", "--quiet", "--message=keys")
    (root / "tracked.key").write_text(f"{HIDDEN_WORD}\n")
    (root / "renamed.key").unlink()
    (root / "renamed.txt").write_text("x\nof some length that git will know again\n")
    traps.git(root, "add", "renamed.txt")
    for number, path in enumerate(paths):
        (root / f"link{number}").symlink_to(path)
    (root / "way").symlink_to("vault")
    before = {path: (root / path).read_bytes() for path in paths}
    (root / "test_hidden.py").write_text(
        "import pathlib\ndef test_it():\n"
        + "".join(f"    print(*[p.read_text() for p in [pathlib.Path({path!r})] if p.is_file()])\n" for path in paths)
        + "    import src.hidden\n"
    )
    every = {**holes.FILE_FORMS, **holes.WRITE_FORMS, **holes.CODE_FORMS}
    asked = [*paths, "vault", "closed", *(f"link{number}" for number in range(len(paths))), "way/a.txt", "vault/a.tx"]
    with sides.in_process(root, replace(PLAIN, hidden=HIDDEN), environ=environ) as side:
        for tool, arguments in every.values():
            # What takes long is asked once of each kind.
            few = ["secret.env", "vault", "link5"] if tool.startswith(("run_", "project_d")) else asked
            for path in few:
                said = side.call(tool, **arguments(path))
                assert HIDDEN_WORD not in said.whole, f"{tool} {path}: {said}"
                # A link may be told of, and a folder of which only the content is hidden is empty.
                told = path.startswith("link") and tool in ("stat_file", "run_tests", "run_lint")
                assert said.is_error or told or path == "vault" or tool == "project_diff", f"{tool} {path}: {said}"
        whole: dict[str, dict[str, Any]] = {
            "list_dir": {"depth": 20, "ignored": True},
            "find_files": {"glob": ["**"], "ignored": True},
            "search_text": {"pattern": HIDDEN_WORD[:6], "ignored": True},
            "project_structure": {"depth": 20},
            "project_diff": {},
        }
        for tool, given in whole.items():
            said = side.call(tool, **given)
            assert not said.is_error
            for word in (
                HIDDEN_WORD,
                COMMITTED,
                "secret.env",
                "a.txt",
                "SERVER.KEY",
                "hidden.py",
                "closed/c",
                "tracked.key",
            ):
                assert word not in said.whole.replace("test_hidden.py", ""), f"{tool} shows {word}: {said}"
        wrong = side.call("read_file", path="secret.en")
        assert "secret.env" not in wrong.whole, wrong
        for line in (
            "cat secret.env src/secret.env vault/* vault/*/* SERVER.KEY src/hidden.py closed/* link* way/* tracked.key",
            "grep -r . .; tar cf - . | strings; git diff; git stash; python3 -c 'import src.hidden'",
            "mv vault v; cat v/*; mv src s2; cat s2/hidden.py; ln secret.env x; cat x; cp -a . /tmp/c; grep -r . /tmp",
            "for f in secret.env vault/a.txt tracked.key; do rm -f $f; echo x > $f; done; rm -rf vault closed",
        ):
            said = side.sh(line)
            assert HIDDEN_WORD not in said.whole, f"{line}: {said}"
        ran = side.call("run_tests", paths=["test_hidden.py"])
        assert HIDDEN_WORD not in ran.whole
        assert ran.data.get("passed", 0) + ran.data.get("failed", 0) == 1, ran
    assert {path: (root / path).read_bytes() for path in paths} == before


def test_what_is_hidden_is_not_shown_out_of_git_s_store(tame: Ground, environ: dict[str, str]) -> None:
    """A file that was committed before somebody thought of hiding it."""
    (tame.root / "secret.env").write_text(f"{HIDDEN_WORD}\n")
    traps.git(tame.root, "add", "secret.env")
    traps.git(tame.root, "commit", "--quiet", "--message=oops")
    with sides.in_process(tame.root, replace(PLAIN, hidden=HIDDEN), environ=environ) as side:
        for base in ("HEAD", "HEAD~1"):
            for more in ({}, {"staged": True}, {"path": "secret.env"}):
                assert HIDDEN_WORD not in side.call("project_diff", base=base, **more).whole


# ---- roots


def test_no_folder_that_holds_more_than_a_project_can_be_a_root(toolcrib_home: Home, environ: dict[str, str]) -> None:
    home = Path(environ["HOME"])
    made = toolcrib_home.path / "made"
    made.mkdir()
    (made / "link").symlink_to("/etc")
    (made / "top").symlink_to("/")
    (made / "me").symlink_to(home)
    for name in (".git/hooks", ".toolcrib/runs"):
        (made / name).mkdir(parents=True)
    unfit = [Path(path) for path in ("/", "/etc", "/usr/lib", "/proc/self", "/sys", "/dev", "/tmp", "/home")]
    unfit += [home, home.parent, made / "link", made / "top", made / "me", made / ".git", made / ".git" / "hooks"]
    unfit += [
        made / ".toolcrib",
        made / ".toolcrib" / "runs",
        Path("/proc/self/cwd/../../../../../.."),
        Path("/etc/../etc"),
    ]
    for root in unfit:
        if root.is_dir():
            with pytest.raises(WorkspaceError, match="cannot be a workspace"), sides.in_process(root, environ=environ):
                pass
    with pytest.raises(WorkspaceError), sides.in_process(made / "missing", environ=environ):
        pass


def test_a_root_that_is_exchanged_leads_nowhere_else(tame: Ground, environ: dict[str, str]) -> None:
    """The folder that was opened stays the one that is worked in, or nothing is."""
    with sides.in_process(tame.root, environ=environ) as side:
        assert not side.sh("true").is_error
        away = tame.root.with_name("away")
        tame.root.rename(away)
        tame.root.symlink_to(tame.outside)
        try:
            for form in (holes.FILE_FORMS, holes.WRITE_FORMS, holes.CODE_FORMS):
                for tool, arguments in form.values():
                    for path in ("secret.txt", str(tame.root / "secret.txt"), "."):
                        said = side.call(tool, **arguments(path))
                        assert not leaked(said.whole), f"{tool} {path}: {said}"
            assert side.sh("ls; cat secret.txt; touch made").is_error
        finally:
            tame.root.unlink()
            away.rename(tame.root)


def test_temporary_names_cannot_be_foretold(tame: Ground, environ: dict[str, str]) -> None:
    """Names that were taken by links beforehand are not followed, and no two writes use the same."""
    seen: set[str] = set()
    (tame.root / "quiet").mkdir()
    with sides.in_process(tame.root, environ=environ) as side:
        watch = os.open(tame.root / "quiet", os.O_RDONLY)
        try:
            stop = False

            def look() -> None:
                while not stop:
                    seen.update(os.listdir(watch))  # noqa: PTH208 - by descriptor

            looking = threading.Thread(target=look)
            looking.start()
            try:
                for number in range(60):
                    assert not side.call("write_file", path="quiet/a.txt", content=f"{number}" * 5000).is_error
            finally:
                stop = True
                looking.join(60)
        finally:
            os.close(watch)
    other = seen - {"a.txt"}
    assert len(other) > 5, "no temporary file was seen"
    assert all(
        any(sum(char in "0123456789abcdef" for char in part) >= 12 for part in name.split("-")) for name in other
    ), other
    assert [path.name for path in (tame.root / "quiet").iterdir()] == ["a.txt"]
