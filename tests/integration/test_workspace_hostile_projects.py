"""Hostile code, repositories and settings: nothing outside is changed or leaked, and limits and switches hold.

A script with every attempt (`parts/attempts.py`) is run by each tool that runs code. What a repository's own files name
lies outside and is neither read nor run. Each switch and limit is tried with every tool.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts import holes, sides, traps
from parts.attempts import PROOF, REPOSITORIES, script
from parts.daemon import Home, StartDaemon
from parts.holes import CALLS
from parts.sandboxes import QUICK_TESTS, with_limits
from parts.sides import Answer, Side
from parts.traps import HostileProject, leaks_in, snapshot
from toolcrib.errors import WorkspaceError

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]

CODE_TOOLS = ("run_shell_safe", "run_tests", "run_lint", "project_diff")


# ---- code that tries everything


def run_attempts(runner: str, side: Side, project: HostileProject) -> Answer:
    """Runs the script as code of the project, by the named tool."""
    root = project.root
    (root / "attempts.sh").write_text(script(project))
    run = 'import subprocess\nout = subprocess.run(["bash", "attempts.sh"], capture_output=True, text=True).stdout\n'
    if runner == "run_shell_safe":
        return side.sh(script(project))
    if runner == "run_shell_safe, words":
        return side.call("run_shell_safe", argv=["bash", "attempts.sh"])
    if runner == "run_tests":
        (root / "conftest.py").write_text(f"{run}print(out)\n")
        (root / "test_attempts.py").write_text(f"{run}def test_it():\n    raise RuntimeError(out[-500:])\n")
        return side.call("run_tests", paths=["test_attempts.py"])
    if runner == "run_lint":
        (root / "evil_plugin.py").write_text(f"{run}def plugin(version):\n    raise RuntimeError(out)\n")
        (root / "mypy.ini").write_text("[mypy]\nplugins = ./evil_plugin.py\n")
        return side.call("run_lint", paths=["src/a.py"], tools=["mypy"])
    traps.git(root, "config", "filter.evil.clean", f"[ $INSIDE ] || INSIDE=1 bash {root}/attempts.sh; cat")
    (root / ".gitattributes").write_text("notes.txt filter=evil\n")
    (root / "notes.txt").write_text("changed\n")
    return side.call("project_diff")


@pytest.mark.parametrize("runner", ["run_shell_safe", "run_shell_safe, words", "run_tests", "run_lint", "project_diff"])
def test_hostile_code_changes_and_reads_nothing_outside(
    hostile: HostileProject, environ: dict[str, str], runner: str
) -> None:
    root = hostile.root
    with sides.in_process(root, environ=environ) as side:
        assert not side.sh("true").is_error
        if runner == "project_diff":
            traps.git(root, "config", "filter.evil.clean", "cat")
        own = (root / ".toolcrib", root / ".git" / "hooks")
        before, config = snapshot(*own), (root / ".git" / "config").read_bytes()
        answer = run_attempts(runner, side, hostile)
    assert not leaks_in(answer.whole), answer
    if runner == "project_diff":
        assert not (root / "ran-here").exists(), "project_diff allowed a write"
    else:
        assert (root / "ran-here").exists(), answer
        printed = (root / "printed").read_text(errors="replace")
        assert "secret.txt" in printed, "the attempts were not made"
        assert not leaks_in(printed), leaks_in(printed)
        assert (root / ".git" / "config").read_bytes() == config
    assert PROOF in answer.whole or runner == "run_lint", answer
    assert snapshot(*own) == before


@pytest.mark.parametrize("runner", ["run_shell_safe", "run_tests", "run_lint"])
def test_hostile_code_cannot_create_settings_or_a_repository(
    environ: dict[str, str], toolcrib_home: Home, runner: str
) -> None:
    """Programs outside would obey them later."""
    project = HostileProject(root=toolcrib_home.project, outside=toolcrib_home.path / "outside")
    (project.root / "src").mkdir()
    (project.root / "src" / "a.py").write_text("here = 1\n")
    (project.root / "notes.txt").write_text("notes\n")
    with sides.in_process(project.root, environ=environ) as side:
        answer = run_attempts(runner, side, project)
    assert (project.root / "ran-here").exists(), answer
    for name in (".toolcrib", ".git"):
        assert not os.path.lexists(project.root / name), snapshot(project.root / name)


def test_a_command_does_not_affect_the_next_one(hostile: HostileProject, environ: dict[str, str]) -> None:
    line = "env | sort | grep -v '^_='; pwd; umask; ls -A ~ /tmp /dev/shm; type ls git; ulimit -f; id -u; jobs"
    changes = (
        "export HOLES=1 PATH=/nowhere HOME=/; cd /; umask 0; alias ls=false; git() { false; }; ulimit -f 1; "
        "echo 'export HOLES=2' | tee ~/.bashrc ~/.profile ~/.bash_profile > /dev/null; touch /tmp/left /dev/shm/left; "
        "sleep 50 & disown; setsid sleep 50 & exec -l bash -c 'export HOLES=3'"
    )
    with sides.in_process(hostile.root, environ=environ) as side:
        before = side.sh(line).data["stdout"]
        side.sh(changes)
        assert side.sh(line).data["stdout"] == before
    assert "HOLES" not in before


# ---- repositories

REPOSITORY_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("run_tests", {"seconds": 20}),
    ("run_lint", {"tools": ["ruff", "mypy"], "seconds": 20}),
    ("project_diff", {}),
    ("project_diff", {"path": "src", "staged": True}),
    ("project_structure", {}),
    ("search_text", {"pattern": "here|there", "ignored": True}),
    ("run_shell_safe", {"command": "git status; git diff; git log -p; git submodule update; python3 -m pytest"}),
    ("run_shell_safe", {"command": "ls -la .venv/ venv/ env/ $(head -1 .venv/pyvenv.cfg | cut -d' ' -f3)"}),
]


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_programs_and_paths_named_by_a_repository_are_not_used(
    walkable: HostileProject, environ: dict[str, str], kind: str
) -> None:
    root, repository = walkable.root, walkable.outside / "repo"
    if kind == "a pointer to a repository":
        repository.mkdir()
        (root / ".git").rename(repository / ".git")
        (root / "src" / traps.NAME).write_text(traps.WORD)
        traps.git(repository, "--work-tree", str(root), "add", f"src/{traps.NAME}")
        traps.git(repository, "--work-tree", str(root), "commit", "--quiet", "--message=second")
        (root / "src" / traps.NAME).unlink()
    for name, text in REPOSITORIES[kind](walkable).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
            path.chmod(0o755)
    walkable.remember()
    before = snapshot(root / ".git")
    with sides.in_process(root, environ=environ) as side:
        for tool, arguments in REPOSITORY_CALLS:
            answer = side.call(tool, **arguments)
            assert not leaks_in(answer.whole), f"{tool}: {leaks_in(answer.whole)}: {answer}"
    assert not (root / "ran").exists(), "the program outside ran inside"
    assert snapshot(root / ".git") == before


@pytest.mark.parametrize("entry", ["{root}/.venv/bin", ".", "{root}/linked"])
def test_the_server_starts_no_program_from_the_folder(
    hostile: HostileProject, environ: dict[str, str], entry: str
) -> None:
    """PATH often begins with an environment of the project."""
    root = hostile.root
    evil = f"#!/bin/sh\necho {traps.RAN} bubblewrap 0.8.0\ntouch {hostile.outside}/ran\nexit 0\n"
    for folder in (root, root / "bin", root / ".venv" / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("bwrap", "git", "rg", "nsenter", "python3", "python", "sh", "env"):
            (folder / name).write_text(evil)
            (folder / name).chmod(0o755)
    (root / "linked").symlink_to("bin")
    path = f"{entry.format(root=root)}:{environ['PATH']}"
    with contextlib.chdir(root), sides.in_process(root, environ={**environ, "PATH": path}) as side:
        calls = {"run_shell_safe": {"command": "/bin/echo fine"}, "search_text": {"pattern": "."}, "project_diff": {}}
        for tool, arguments in calls.items():
            side.call(tool, **arguments)
            assert not hostile.changes_outside(), f"{tool} ran a program of the folder outside the sandbox"
        assert "fine" in side.sh("/bin/echo fine").data.get("stdout", "")


def test_the_server_imports_no_module_from_the_folder(toolcrib_home: Home) -> None:
    """Also without -P, in the folder itself, and for modules that are imported late."""
    modules = ["re2", "pathspec", "msgspec", "mcp", "yaml", "asyncio", "json", "logging", "sitecustomize"]
    modules.append("usercustomize")
    ran = toolcrib_home.path / "imported"
    for module in modules:
        (toolcrib_home.project / f"{module}.py").write_text(f"open({str(ran)!r}, 'w').write(__name__)\n")
    words = [sys.executable, "-m", "toolcrib.workspace", "--root", "."]
    with sides.over_stdio(toolcrib_home, words=words) as side:
        assert side.call("find_files", glob=["*.py"]).data["total"] == len(modules)
        assert not side.call("search_text", pattern="write").is_error
        assert not side.sh("true").is_error
    assert not ran.exists(), ran.read_text()


# ---- sockets, projects inside, output files


@contextlib.contextmanager
def listening(path: Path) -> Iterator[list[str]]:
    """A process that listens in the folder, and its connections."""
    connections: list[str] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        # A socket's whole path may have 107 bytes.
        with contextlib.chdir(path.parent):
            listener.bind(path.name)
        listener.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(path.name)
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield connections
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


SOCKETS = ("app.sock", ".git/fsmonitor--daemon.ipc", "a/b/c/d/e/f/g/h/i/j/app.sock", "node_modules/x/app.sock")
CONNECT = """
import os, pytest, socket
@pytest.mark.parametrize("path", {paths!r})
def test_connect(path):
    os.chdir(os.path.join({root!r}, os.path.dirname(path)))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.path.basename(path))
"""


def test_sockets_in_the_folder_cannot_be_reached(hostile: HostileProject, environ: dict[str, str]) -> None:
    """Behind them are the user's processes: a development server, an agent of keys, git's own daemon."""
    (hostile.root / "test_connect.py").write_text(CONNECT.format(root=str(hostile.root), paths=SOCKETS))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(listening(hostile.root / path)) for path in SOCKETS]
        with sides.in_process(hostile.root, replace(QUICK_TESTS, read_only=True), environ=environ) as side:
            answer = side.call("run_tests", paths=["test_connect.py"])
            assert (answer.data["failed"], answer.data.get("passed", 0)) == (len(SOCKETS), 0), answer
        with sides.in_process(hostile.root, environ=environ) as side:
            for path in SOCKETS:
                answer = side.sh(f"python3 -c 'import test_connect; test_connect.test_connect(\"{path}\")'")
                assert answer.data["exit_code"] == 1, answer
        assert connections == [[]] * len(SOCKETS)


@pytest.mark.parametrize("planted", ["links", "a link for the folder", "the largest number", "a folder"])
def test_planted_names_of_output_files_do_no_harm(
    hostile: HostileProject, environ: dict[str, str], planted: str
) -> None:
    place = hostile.root / ".toolcrib" / "output"
    if planted == "a link for the folder":
        place.symlink_to(hostile.outside)
    else:
        place.mkdir()
    if planted == "links":
        (place / ".gitignore").symlink_to(hostile.outside / "made")
        for number in range(1, 6):
            (place / f"run_shell_safe-{number}.log").symlink_to(hostile.outside / "secret.txt")
    if planted == "the largest number":
        for number in (999_999_999, 1_000_000_000):
            (place / f"run_shell_safe-{number}.log").write_text("mine\n")
    if planted == "a folder":
        (place / "run_shell_safe-1.log").mkdir()
    with sides.in_process(hostile.root, environ=environ) as side:
        answer = side.checked("run_shell_safe", command="yes 0123456789 | head -c 300000; echo THEEND")
        assert "THEEND" in answer.data["stdout"], answer
        if kept := answer.data.get("output_file"):
            assert "0123456789" in side.call("read_file", path=kept).text


# ---- settings


@contextlib.contextmanager
def served(
    where: str, request: pytest.FixtureRequest, home: Home, project: HostileProject, env: dict[str, str]
) -> Iterator[Side]:
    if where == "stdio":
        with sides.over_stdio(home, env=env, root=project.root) as side:
            yield side
    else:
        with sides.at_daemon(request.getfixturevalue("daemon"), project.root, env=env) as side:
            yield side


@pytest.mark.req("FRG-9", "FRG-12")
@pytest.mark.parametrize("where", ["stdio", "daemon"])
def test_a_repositorys_own_settings_can_only_forbid(
    toolcrib_home: Home, request: pytest.FixtureRequest, walkable: HostileProject, where: str
) -> None:
    (walkable.root / ".toolcrib" / "workspace.yml").write_text(
        f"read_only: false\ngit: commit\nnetwork: true\nforbid_shell_in_ci: false\nenvironment: [{traps.SECRET_NAME}]\n"
        f"readable: [{walkable.outside}, {walkable.sibling}]\npython: {walkable.marker}\nhidden: [src/b.py]\n"
        "tools: {list_dir: off, read_file: on}\n"
        "limits: {session_calls: 1000000, processes: 4096, memory_mb: 65536, seconds: {run_shell_safe: 3600}}\n"
    )
    with served(where, request, toolcrib_home, walkable, {traps.SECRET_NAME: traps.SECRET}) as side:
        shell = side.checked(
            "run_shell_safe",
            command=f"env; cat {walkable.outside}/secret.txt; ls {walkable.sibling}; {walkable.marker};"
            "git add notes.txt 2>&1; git config x.y z 2>&1; cat /proc/net/dev",
        )
        for tool, arguments in CALLS.items():
            answer = side.checked(tool, **arguments)
            assert answer.is_error == (tool == "list_dir"), f"{tool}: {answer}"
        assert side.call("read_file", path="src/b.py").is_error
    out = shell.data["stdout"]
    assert re.findall(r"^ *(\w+): +\d", out, re.MULTILINE) == ["lo"], shell
    assert "index.lock" in out or "Read-only" in out, shell
    assert not (walkable.root / "ran").exists()


@pytest.mark.parametrize("where", ["stdio", "daemon"])
def test_in_ci_a_repositorys_settings_cannot_allow_the_shell(
    toolcrib_home: Home, request: pytest.FixtureRequest, walkable: HostileProject, where: str
) -> None:
    (walkable.root / ".toolcrib" / "workspace.yml").write_text("forbid_shell_in_ci: false\n")
    with served(where, request, toolcrib_home, walkable, {"CI": "true"}) as side:
        answer = side.sh("touch made")
        assert answer.is_error, answer
        # The daemon does not even list it.
        assert "CI" in answer.text or "no tool" in answer.text, answer
        assert not side.call("run_tests", paths=["test_ok.py"]).is_error
    assert not (walkable.root / "made").exists()


def test_settings_that_cannot_be_read_disable_every_tool(daemon: StartDaemon, toolcrib_home: Home) -> None:
    """Their prohibitions are unknown."""
    running = daemon({})
    broken = ("tools: {nothing: off}\n", "network: [", "hidden: ['!x']\n", "root: /\n", "x")
    for number, settings in enumerate(broken):
        project = traps.lay_traps(toolcrib_home.path / f"g{number}")
        (project.root / ".toolcrib" / "workspace.yml").write_text(settings)
        before = snapshot(project.root)
        with sides.as_agent(running, project.root, f"agent{number}") as side:
            for tool, arguments in CALLS.items():
                answer = side.checked(tool, **arguments)
                assert answer.is_error, f"{settings} {tool}: {answer}"
        assert snapshot(project.root) == before
        assert not project.changes_outside()


def test_each_tool_can_be_switched_off(walkable: HostileProject, environ: dict[str, str]) -> None:
    before = snapshot(walkable.root)
    for tool, arguments in CALLS.items():
        with sides.in_process(walkable.root, replace(QUICK_TESTS, off=frozenset({tool})), environ=environ) as side:
            answer = side.call(tool, **arguments)
        assert (answer.is_error, "off" in answer.text) == (True, True), f"{tool}: {answer}"
    assert snapshot(walkable.root) == before


def test_read_only_mode_changes_not_one_byte(walkable: HostileProject, environ: dict[str, str]) -> None:
    """Nor git's index, a cache, an output file, or the time of a folder."""
    root = walkable.root
    (root / "test_writes.py").write_text(
        "import pathlib, pytest, subprocess\n"
        "@pytest.mark.parametrize('path', ['made', 'notes.txt', '.git/made', '.toolcrib/made', 'src/made'])\n"
        "def test_write(path):\n    pathlib.Path(path).write_text('x')\n"
        "def test_print():\n    print('x' * 1000000)\n    assert 0\n"
        "def test_git():\n    subprocess.run(['git', 'add', '.'], check=True)\n"
    )
    (root / "plugin.py").write_text("open('made', 'w')\ndef plugin(version): ...\n")
    (root / "mypy.ini").write_text("[mypy]\nplugins = ./plugin.py\n")
    before = snapshot(root)
    calls = {**CALLS, "run_tests": {}, "run_lint": {"paths": ["src"], "tools": ["ruff", "mypy"]}}
    with sides.in_process(root, replace(QUICK_TESTS, read_only=True), environ=environ) as side:
        for tool, arguments in calls.items():
            answer = side.call(tool, **arguments)
            writes = tool in ("write_file", "edit_file", "run_shell_safe")
            assert answer.is_error == writes, f"{tool}: {answer}"
            assert not writes or "read-only" in answer.text
            if tool == "run_tests":
                assert (answer.data["failed"], answer.data["passed"] >= 1) == (7, True), answer
        for tool, form in holes.WRITE_FORMS.values():
            assert side.call(tool, **form("made.txt")).is_error
    assert snapshot(root) == before


HIDDEN_WORD = "HIDDENWORD4C0D"
COMMITTED = "COMMITTEDWORD77AE"
"""In a hidden file's history, which commands can read with git."""
HIDDEN = ("secret.env", "vault/**", "*.key", "/src/hidden.py", "closed/")


def test_hidden_files_are_hidden_from_every_tool(walkable: HostileProject, environ: dict[str, str]) -> None:
    root = walkable.root
    paths = (
        "secret.env",
        "src/secret.env",
        "vault/a.txt",
        "vault/deep/b.txt",
        "SERVER.KEY",
        "src/hidden.py",
        "closed/c",
    )
    (root / "tracked.key").write_text("before\n")
    (root / "renamed.key").write_text(f"{COMMITTED}\nof some length that git recognises\n")
    (root / "oops.key").write_text(f"{HIDDEN_WORD}\n")
    traps.git(root, "add", "tracked.key", "renamed.key", "oops.key")
    traps.git(root, "commit", "--quiet", "--message=keys")
    (root / "tracked.key").write_text(f"{HIDDEN_WORD}\n")
    (root / "renamed.key").unlink()
    (root / "renamed.txt").write_text("x\nof some length that git recognises\n")
    traps.git(root, "add", "renamed.txt")
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{HIDDEN_WORD}\n")
        (root / f"link{number}").symlink_to(path)
    (root / "way").symlink_to("vault")
    (root / "test_hidden.py").write_text(
        "import pathlib\ndef test_it():\n"
        + "".join(f"    print(*[p.read_text() for p in [pathlib.Path({path!r})] if p.is_file()])\n" for path in paths)
        + "    import src.hidden\n"
    )
    with sides.in_process(root, replace(QUICK_TESTS, hidden=HIDDEN), environ=environ) as side:
        check_hidden_paths(side, paths)
        check_hidden_listings(side)
        check_hidden_commands(side)
    assert {(root / path).read_text() for path in paths} == {f"{HIDDEN_WORD}\n"}


def check_hidden_paths(side: Side, paths: tuple[str, ...]) -> None:
    asked = [*paths, "vault", "closed", *(f"link{number}" for number in range(len(paths))), "way/a.txt", "vault/a.tx"]
    for tool, arguments in {**holes.FILE_FORMS, **holes.WRITE_FORMS, **holes.CODE_FORMS}.values():
        # Slow tools try one path of each kind.
        for path in ["secret.env", "vault", "link5"] if tool.startswith(("run_", "project_d")) else asked:
            answer = side.call(tool, **arguments(path))
            assert HIDDEN_WORD not in answer.whole, f"{tool} {path}: {answer}"
            # A link may be described, and a folder whose content is hidden is empty.
            is_link = path.startswith("link") and tool in ("stat_file", "run_tests", "run_lint")
            assert answer.is_error or is_link or path == "vault" or tool == "project_diff", f"{tool} {path}: {answer}"


def check_hidden_listings(side: Side) -> None:
    listings: dict[str, dict[str, Any]] = {
        "list_dir": {"depth": 20, "ignored": True},
        "find_files": {"glob": ["**"], "ignored": True},
        "search_text": {"pattern": HIDDEN_WORD[:6], "ignored": True},
        "project_structure": {"depth": 20},
        "project_diff": {},
    }
    names = ("secret.env", "a.txt", "SERVER.KEY", "hidden.py", "closed/c", "tracked.key")
    for tool, given in listings.items():
        answer = side.call(tool, **given)
        assert not answer.is_error
        for word in (HIDDEN_WORD, COMMITTED, *names):
            assert word not in answer.whole.replace("test_hidden.py", ""), f"{tool} shows {word}: {answer}"
    assert "secret.env" not in side.call("read_file", path="secret.en").whole
    # A file that was committed before it was hidden.
    for base in ("HEAD", "HEAD~1"):
        for more in ({}, {"staged": True}, {"path": "oops.key"}):
            assert HIDDEN_WORD not in side.call("project_diff", base=base, **more).whole


def check_hidden_commands(side: Side) -> None:
    for line in (
        "cat secret.env src/secret.env vault/* vault/*/* SERVER.KEY src/hidden.py closed/* link* way/* tracked.key",
        "grep -r . .; tar cf - . | strings; git diff; git stash; python3 -c 'import src.hidden'",
        "mv vault v; cat v/*; mv src s2; cat s2/hidden.py; ln secret.env x; cat x; cp -a . /tmp/c; grep -r . /tmp",
        "for f in secret.env vault/a.txt tracked.key; do rm -f $f; echo x > $f; done; rm -rf vault closed",
    ):
        answer = side.sh(line)
        assert HIDDEN_WORD not in answer.whole, f"{line}: {answer}"
    ran = side.call("run_tests", paths=["test_hidden.py"])
    assert HIDDEN_WORD not in ran.whole
    assert ran.data.get("passed", 0) + ran.data.get("failed", 0) == 1, ran


def test_folders_that_hold_more_than_a_project_cannot_be_a_root(toolcrib_home: Home, environ: dict[str, str]) -> None:
    home, made = Path(environ["HOME"]), toolcrib_home.path / "made"
    for name in (".git/hooks", ".toolcrib/runs"):
        (made / name).mkdir(parents=True)
    for name, target in {"link": "/etc", "top": "/", "me": str(home)}.items():
        (made / name).symlink_to(target)
    unfit = ["/", "/etc", "/usr/lib", "/proc/self", "/sys", "/dev", "/tmp", "/home", "/etc/../etc"]
    unfit.append("/proc/self/cwd/../../../../../..")
    inside = ["link", "top", "me", ".git", ".git/hooks", ".toolcrib", ".toolcrib/runs"]
    for root in (home, home.parent, *map(Path, unfit), *(made / name for name in inside)):
        if root.is_dir():
            with pytest.raises(WorkspaceError, match="cannot be a workspace"), sides.in_process(root, environ=environ):
                pass
    with pytest.raises(WorkspaceError), sides.in_process(made / "missing", environ=environ):
        pass


def test_a_root_that_is_replaced_leads_nowhere_else(walkable: HostileProject, environ: dict[str, str]) -> None:
    """Tools work in the folder that was opened, or not at all."""
    root, away = walkable.root, walkable.root.with_name("away")
    with sides.in_process(root, environ=environ) as side:
        assert not side.sh("true").is_error
        root.rename(away)
        root.symlink_to(walkable.outside)
        try:
            for tool, arguments in {**holes.FILE_FORMS, **holes.WRITE_FORMS, **holes.CODE_FORMS}.values():
                for path in ("secret.txt", str(root / "secret.txt"), "."):
                    answer = side.call(tool, **arguments(path))
                    assert not leaks_in(answer.whole), f"{tool} {path}: {answer}"
            assert side.sh("ls; cat secret.txt; touch made").is_error
        finally:
            root.unlink()
            away.rename(root)


def test_temporary_names_cannot_be_predicted(walkable: HostileProject, environ: dict[str, str]) -> None:
    seen: set[str] = set()
    quiet = walkable.root / "quiet"
    quiet.mkdir()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.update(os.listdir(quiet))  # noqa: PTH208 - faster

    with sides.in_process(walkable.root, environ=environ) as side:
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            for number in range(60):
                assert not side.call("write_file", path="quiet/a.txt", content=f"{number}" * 5000).is_error
        finally:
            stop.set()
            watching.join(60)
    names = seen - {"a.txt"}
    assert len(names) > 5, "no temporary file was seen"
    assert all(re.search("[0-9a-f]{12}", name) for name in names), names
    assert [path.name for path in quiet.iterdir()] == ["a.txt"]


# ---- limits


@pytest.mark.req("FRG-10")
def test_every_tool_counts_as_a_call_of_the_session(walkable: HostileProject, environ: dict[str, str]) -> None:
    before = snapshot(walkable.root)
    for tool, arguments in CALLS.items():
        with sides.in_process(walkable.root, with_limits(session_calls=1), environ=environ) as side:
            assert not side.call("stat_file", path="notes.txt").is_error
            answer = side.call(tool, **arguments)
        assert (answer.is_error, "session_calls" in answer.text) == (True, True), f"{tool}: {answer}"
    assert snapshot(walkable.root) == before


@pytest.mark.req("FRG-10")
@pytest.mark.parametrize("form", [form for form, (tool, _) in holes.WRITE_FORMS.items() if tool == "write_file"])
def test_writing_stops_at_the_sessions_bytes(walkable: HostileProject, environ: dict[str, str], form: str) -> None:
    tool, arguments = holes.WRITE_FORMS[form]
    written = 0
    with sides.in_process(walkable.root, with_limits(session_bytes=40), environ=environ) as side:
        for number in range(30):
            answer = side.call(tool, **arguments("made.txt" if "append" in form else f"made{number}.txt"))
            if answer.is_error:
                break
            written += answer.data["written"]
        assert "session_mb" in answer.text, answer
        assert "session_mb" in side.call("edit_file", path="notes.txt", old="plain", new="p" * 40).text
    assert written <= 40
    assert sum(path.stat().st_size for path in walkable.root.glob("made*")) <= 40


@pytest.mark.req("FRG-10")
def test_a_write_above_the_limit_writes_nothing(walkable: HostileProject, environ: dict[str, str]) -> None:
    before = snapshot(walkable.root)
    with sides.in_process(walkable.root, with_limits(session_bytes=100, file_size=50), environ=environ) as side:
        assert side.call("write_file", path="made", content="x" * 101).is_error
        assert side.call("write_file", path="notes.txt", content="x" * 101, mode="append").is_error
        assert side.call("edit_file", path="notes.txt", old="plain", new="x" * 101).is_error
        assert side.call("write_file", path="made", content="x" * 60).is_error
    assert snapshot(walkable.root) == before


@pytest.mark.req("FRG-10")
def test_code_ends_at_the_time_limit_of_its_tool(walkable: HostileProject, environ: dict[str, str]) -> None:
    """Each call would take ten minutes."""
    root = walkable.root
    (root / "test_ok.py").write_text("def test_it():\n    import time; time.sleep(600)\n")
    (root / "slow.py").write_text("import time\ntime.sleep(600)\ndef plugin(version): ...\n")
    (root / "mypy.ini").write_text("[mypy]\nplugins = ./slow.py\n")
    traps.git(root, "config", "filter.slow.clean", "sleep 600; cat")
    (root / ".gitattributes").write_text("notes.txt filter=slow\n")
    (root / "notes.txt").write_text("changed\n")
    calls = {**CALLS, "run_shell_safe": {"command": "sleep 600"}, "run_lint": {"tools": ["mypy"]}}
    seconds = {**QUICK_TESTS.limits.seconds, **dict.fromkeys(CODE_TOOLS, 2.0)}
    with sides.in_process(root, with_limits(QUICK_TESTS, seconds=seconds), environ=environ) as side:
        for tool in CODE_TOOLS:
            answer = side.call(tool, **calls[tool])
            assert "2 s" in answer.text or "2 seconds" in answer.text, answer


@pytest.mark.req("FRG-10")
def test_code_is_refused_when_the_sessions_seconds_are_used_up(
    walkable: HostileProject, environ: dict[str, str]
) -> None:
    with sides.in_process(walkable.root, with_limits(session_seconds=0.5), environ=environ) as side:
        side.sh("sleep 60")
        for tool in CODE_TOOLS:
            answer = side.call(tool, **CALLS[tool])
            assert answer.is_error
            assert "session_seconds" in answer.text, answer
        assert not side.call("read_file", path="notes.txt").is_error
