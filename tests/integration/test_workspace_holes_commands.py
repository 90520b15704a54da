"""Whatever a command, a test, a plugin of a linter or a filter of git tries: nothing outside is touched or told.

One script with every attempt is run by each tool that runs code, and each shows that it ran. What a repository's own
files name (programs, folders, environments, repositories) lies outside and stays there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from parts import sides, traps
from parts.attempts import PROOF, REPOSITORIES, script
from parts.daemon import Home
from parts.sides import Said, Side
from parts.traps import Ground, leaked

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]

RUNNERS = ("run_shell_safe", "run_shell_safe, words", "run_tests", "run_lint", "project_diff")


def run_by(runner: str, side: Side, ground: Ground) -> Said:
    """Runs the script as code of the project's, by the tool that is named."""
    root = ground.root
    (root / "attempts.sh").write_text(script(ground))
    run = 'import subprocess\ntold = subprocess.run(["bash", "attempts.sh"], capture_output=True, text=True).stdout\n'
    if runner == "run_shell_safe":
        return side.sh(script(ground))
    if runner == "run_shell_safe, words":
        return side.call("run_shell_safe", argv=["bash", "attempts.sh"])
    if runner == "run_tests":
        (root / "conftest.py").write_text(f"{run}print(told)\n")
        (root / "test_attempts.py").write_text(f"{run}def test_it():\n    raise RuntimeError(told[-500:])\n")
        return side.call("run_tests", paths=["test_attempts.py"])
    if runner == "run_lint":
        plugin = f"{run}def plugin(version):\n    raise RuntimeError(told)\n"
        (root / "evil_plugin.py").write_text(plugin)
        (root / "mypy.ini").write_text("[mypy]\nplugins = ./evil_plugin.py\n")
        return side.call("run_lint", paths=["src/a.py"], tools=["mypy"])
    traps.git(root, "config", "filter.evil.clean", f"[ $INSIDE ] || INSIDE=1 bash {root}/attempts.sh; cat")
    (root / ".gitattributes").write_text("notes.txt filter=evil\n")
    (root / "notes.txt").write_text("changed\n")
    return side.call("project_diff")


@pytest.mark.parametrize("runner", RUNNERS)
def test_code_that_tries_everything_gets_nowhere(ground: Ground, environ: dict[str, str], runner: str) -> None:
    with sides.in_process(ground.root, environ=environ) as side:
        assert not side.sh("true").is_error
        if runner == "project_diff":
            traps.git(ground.root, "config", "filter.evil.clean", "cat")
        own = (ground.root / ".toolcrib", ground.root / ".git" / "hooks", ground.root / ".git" / "config")
        before = [traps.seen(path) or path.read_bytes() for path in own[:2]]
        config = own[2].read_bytes()
        said = sides.told(run_by(runner, side, ground))
    if runner != "project_diff":
        assert (ground.root / "ran-here").exists(), said
        printed = (ground.root / "printed").read_text(errors="replace")
        assert "secret.txt" in printed, "the attempts were not made"
        assert not leaked(printed), leaked(printed)
        assert own[2].read_bytes() == config
    else:
        assert not (ground.root / "ran-here").exists(), "project_diff let something write"
        assert PROOF in said.whole
    if runner in ("run_shell_safe", "run_shell_safe, words", "run_tests"):
        assert PROOF in said.whole, said
    assert [traps.seen(path) for path in own[:2]] == before


@pytest.mark.parametrize("runner", ["run_shell_safe", "run_tests", "run_lint"])
def test_what_is_not_there_yet_cannot_be_made(environ: dict[str, str], toolcrib_home: Home, runner: str) -> None:
    """Neither settings nor a repository: both would be believed later, outside."""
    laid = Ground(root=toolcrib_home.project, outside=toolcrib_home.path / "outside")
    (laid.root / "src").mkdir()
    (laid.root / "src" / "a.py").write_text("here = 1\n")
    (laid.root / "notes.txt").write_text("notes\n")
    with sides.in_process(laid.root, environ=environ) as side:
        said = run_by(runner, side, laid)
        assert (laid.root / "ran-here").exists(), said
    assert not os.path.lexists(laid.root / ".toolcrib"), traps.seen(laid.root / ".toolcrib")
    assert not os.path.lexists(laid.root / ".git"), traps.seen(laid.root / ".git")


def test_no_command_changes_what_the_next_one_gets(ground: Ground, environ: dict[str, str]) -> None:
    line = "env | sort | grep -v '^_='; pwd; umask; ls -A ~ /tmp /dev/shm; type ls git; ulimit -f; id -u; jobs"
    changes = (
        "export HOLES=1 PATH=/nowhere HOME=/; cd /; umask 0; alias ls=false; git() { false; }; ulimit -f 1; "
        "echo 'export HOLES=2' | tee ~/.bashrc ~/.profile ~/.bash_profile > /dev/null; touch /tmp/left /dev/shm/left; "
        "sleep 50 & disown; setsid sleep 50 & exec -l bash -c 'export HOLES=3'"
    )
    with sides.in_process(ground.root, environ=environ) as side:
        before = side.sh(line).data["stdout"]
        side.sh(changes)
        assert side.sh(line).data["stdout"] == before
    assert "HOLES" not in before


# ---- what a repository's own files name


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_what_a_repository_names_is_neither_read_nor_run_nor_bound(
    ground: Ground, environ: dict[str, str], kind: str
) -> None:
    if kind == "a pointer to a repository":
        ground.root.joinpath(".git").rename(ground.outside / "repo.git")
        ground.outside.joinpath("repo").mkdir()
        ground.outside.joinpath("repo.git").rename(ground.outside / "repo" / ".git")
        (ground.root / "src" / traps.NAME).write_text(traps.WORD)
        traps.git(ground.outside / "repo", "--work-tree", str(ground.root), "add", f"src/{traps.NAME}")
        traps.git(ground.outside / "repo", "--work-tree", str(ground.root), "commit", "--quiet", "--message=second")
        (ground.root / "src" / traps.NAME).unlink()
        ground.before.clear()
    # Linters would follow them through the whole system, which takes long and shows nothing.
    for link in ("slash", "self", "fds"):
        (ground.root / link).unlink()
    for name, text in REPOSITORIES[kind](ground).items():
        path = ground.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
            path.chmod(0o755)
    ground.before.update(traps.seen(ground.outside) | traps.seen(ground.sibling))
    with sides.in_process(ground.root, environ=environ) as side:
        for tool, arguments in (
            ("run_tests", {"seconds": 20}),
            ("run_lint", {"tools": ["ruff", "mypy"], "seconds": 20}),
            ("project_diff", {}),
            ("project_diff", {"path": "src", "staged": True}),
            ("project_structure", {}),
            ("search_text", {"pattern": "here|there", "ignored": True}),
            (
                "run_shell_safe",
                {"command": "git status; git diff; git log -p; git submodule update; python3 -m pytest"},
            ),
            ("run_shell_safe", {"command": "ls -la .venv/ venv/ env/ $(head -1 .venv/pyvenv.cfg | cut -d' ' -f3)"}),
        ):
            said = side.call(tool, **arguments)
            assert not leaked(said.whole), f"{tool}: {leaked(said.whole)}: {said}"
    assert not ground.harm()
    assert not (ground.root / "ran").exists(), "the program outside ran where the folder is"


# ---- programs that the server itself starts


@pytest.mark.parametrize("entry", ["{root}/.venv/bin", ".", "{root}/linked"])
def test_the_server_starts_no_program_out_of_the_folder(ground: Ground, environ: dict[str, str], entry: str) -> None:
    """Whoever works in an environment of the project has its programs first on the path."""
    evil = f"#!/bin/sh\necho {traps.RAN} bubblewrap 0.8.0\ntouch {ground.outside}/ran\nexit 0\n"
    for folder in (ground.root, ground.root / "bin", ground.root / ".venv" / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("bwrap", "git", "rg", "nsenter", "python3", "python", "sh", "env"):
            (folder / name).write_text(evil)
            (folder / name).chmod(0o755)
    (ground.root / "linked").symlink_to("bin")
    before = Path.cwd()
    os.chdir(ground.root)
    try:
        path = f"{entry.format(root=ground.root)}:{environ['PATH']}"
        with sides.in_process(ground.root, environ={**environ, "PATH": path}) as side:
            for tool, arguments in (
                ("run_shell_safe", {"command": "/bin/echo fine"}),
                ("search_text", {"pattern": "."}),
                ("project_diff", {}),
            ):
                side.call(tool, **arguments)
                assert not ground.harm(), f"{tool} ran a program of the folder outside the sandbox"
            assert "fine" in side.sh("/bin/echo fine").data.get("stdout", "")
    finally:
        os.chdir(before)


MODULES = ("re2", "pathspec", "msgspec", "mcp", "yaml", "asyncio", "json", "logging", "sitecustomize", "usercustomize")


def test_the_server_imports_no_module_out_of_the_folder(toolcrib_home: Home) -> None:
    """Also started as people write it, without -P, in the folder itself; also a module that is needed later."""
    ran = toolcrib_home.path / "imported"
    for module in MODULES:
        (toolcrib_home.project / f"{module}.py").write_text(f"open({str(ran)!r}, 'w').write(__name__)\n")
    words = [sys.executable, "-m", "toolcrib.workspace", "--root", "."]
    with sides.over_stdio(toolcrib_home, words=words) as side:
        assert side.call("find_files", glob=["*.py"]).data["total"] == len(MODULES)
        assert not side.call("search_text", pattern="write").is_error
        assert not side.sh("true").is_error
    assert not ran.exists(), ran.read_text()
