"""Whatever a command, a test, a plugin of a linter or a filter of git tries: nothing outside is touched or told.

One script with every attempt is run by each tool that runs code, and each shows that it ran. What a repository's own
files name (programs, folders, environments, repositories) lies outside and stays there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parts import holes, sides
from parts.daemon import Home
from parts.holes import Ground, leaked
from parts.sides import PLAIN, Said, Side

pytestmark = [pytest.mark.req("FRG-9"), pytest.mark.slow, pytest.mark.usefixtures("bwrap")]

READ = """
cat {o}/secret.txt ../outside/secret.txt outdir/secret.txt out.txt chain1/secret.txt {o}/{name} {s}/secret.txt
cat /proc/1/root{o}/secret.txt /proc/self/root{o}/secret.txt /proc/self/cwd/../outside/secret.txt slash{o}/secret.txt
cat /proc/[0-9]*/environ | tr '\\0' '\\n'; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; cat self/environ
env; export -p; cat /etc/passwd /etc/shadow
ls -la {o} .. {s} outdir /proc/1/root/ /proc/1/cwd/ ../.. /tmp; stat {o}/big ../outside/deep; du -b {o}/big
find / -xdev -name '{name}' -o -xdev -size {size}c; echo {o}/* {s}/*
cat .toolcrib/runs/log.txt .toolcrib/runs/* runs/log.txt own/runs/log.txt; ls -la .toolcrib/runs; head -c 100 .toolcrib/*/*
for fd in /proc/self/fd/* /dev/fd/* fds/*; do head -c 200 $fd/secret.txt; head -c 200 $fd/../outside/secret.txt; done
ln -s {o}/secret.txt l1; cat l1; ln {o}/secret.txt l2; cat l2; ln -s {o} l3; ls l3/; cp -r {o} stolen; tar cf - {o}
mkdir m; mount --bind {o} m; ls m; unshare -Ur cat {o}/secret.txt; nsenter -t 1 -m cat {o}/secret.txt; chroot /proc/1/root ls
git --git-dir={o} status; git -C {o} status; git diff --no-index /dev/null {o}/secret.txt; grep -r . {o}; rg . {o}
exec 9<{o}/secret.txt && cat <&9; source {o}/secret.txt; . outdir/secret.txt; enable -f {o}/secret.txt x; mapfile x <{o}/secret.txt
"""
WRITE = """
echo x >> {o}/secret.txt; echo x > {o}/made; echo x > ../outside/made; echo x > outdir/made; echo x > out.txt; echo x > gone.txt
echo x > ../made; echo x > {s}/made; mkdir {o}/made ../made2; mkdir -p gonedir/x; touch {o}/big ../outside; chmod 777 {o} {o}/big outdir/deep
rm -rf {o}/deep ../outside/big outdir/deep; mv {o}/big .; mv notes.txt {o}/; ln notes.txt {o}/made; ln -s x {o}/made; ln -s x ../made
truncate -s 0 {o}/secret.txt out.txt; tee {o}/made updir/made < notes.txt; dd if=notes.txt of=outdir/secret.txt; sed -i s/C/D/ outdir/secret.txt
cd .. && echo x > made3; cd {o} && echo x > made; pushd /proc/1/root{o} && touch made; ( cd - && touch made )
git init {o}/made; git clone . {o}/made; git worktree add {o}/made; git archive -o {o}/made HEAD; git bundle create {o}/made HEAD
chown 1 {o} outdir; setfattr -n user.x -v y {o}/big; mkfifo {o}/made; mknod {o}/made c 1 3; kill -9 1
"""
RUN = """
{o}/marker; sh {o}/marker; ./marker; marker; PATH={o}:$PATH marker; exec -a x {o}/marker; outdir/marker; /proc/1/root{o}/marker
LD_PRELOAD={o}/marker true; BASH_ENV={o}/marker bash -c true; ENV={o}/marker sh -ic true; GIT_SSH={o}/marker git fetch ssh://x/y
GIT_EXTERNAL_DIFF={o}/marker git diff; GIT_PAGER={o}/marker git -p log; PYTHONSTARTUP={o}/marker python3 -c 1; python3 {o}/marker
hash -p {o}/marker git; git --version; alias ls={o}/marker; trap {o}/marker EXIT; coproc {o}/marker; at now -f {o}/marker; crontab {o}/marker
"""
OWN = """
mkdir -p .toolcrib .git/hooks
for f in {files}; do echo 'network: true' > .toolcrib/$f; echo x > own/$f; cp notes.txt .toolcrib/$f; mv l4 .toolcrib/$f; done
for f in {files}; do ln -s ../notes.txt .toolcrib/$f; ln notes.txt .toolcrib/$f; dd if=notes.txt of=.toolcrib/$f; done
for f in {files}; do sed -i s/a/b/ .toolcrib/$f; done; python3 -c "for f in '{files}'.split(): open('.toolcrib/'+f,'w').write('x')"
mv .toolcrib away; rm -rf .toolcrib; rmdir .toolcrib; mkdir t; mv -T t .toolcrib; ln -sfn t .toolcrib; mv .git away.git; rm -rf .git; ln -sfn t .git
umount .toolcrib; mount -o remount,rw .toolcrib; mount -t tmpfs x .toolcrib; python3 -c "import os; os.rename('.toolcrib','t2')"
for f in hooks/pre-commit config info/attributes HEAD index description commondir; do echo x > .git/$f; echo x >> hooks/pre-commit; done
git config core.fsmonitor {o}/marker; git config --worktree core.hooksPath {o}; git config --global x.y z; git add notes.txt; chmod +w .git .toolcrib
echo x > .toolcrib/runs/new; echo x > .toolcrib/output/new; mkdir -p .toolcrib/output/x; rename s/toolcrib/x/ .toolcrib; mv ../$(basename $PWD) ../moved
"""
SCRIPT = f"{READ}\n{WRITE}\n{RUN}\n{OWN}"
RUNNERS = ("run_shell_safe", "run_shell_safe, words", "run_tests", "run_lint", "project_diff")
PROOF = "THESCRIPTRAN"


FILES = "workspace.yml workspace.yaml workspace.json config.yml config.yaml config.json new"


def script(ground: Ground) -> str:
    """Each line in a shell of its own, so that none ends the others. It spells out nothing that must not turn up."""
    name, size = f"{holes.NAME[:-1]}?", f"$(({holes.SIZE - 1}+1))"
    lines = SCRIPT.format(o=ground.outside, s=ground.sibling, name=name, size=size, files=FILES).splitlines()
    attempts = "\n".join(f"( {line}\n)" for line in lines if line)
    return f"{{\n{attempts}\n}} 2>&1 | tee printed | tail -c 9000\ncd {ground.root}; touch ran-here\necho {PROOF}\n"


@pytest.fixture
def environ(toolcrib_home: Home) -> dict[str, str]:
    return toolcrib_home.environ({holes.SECRET_NAME: holes.SECRET})


@pytest.fixture
def ground(toolcrib_home: Home) -> Iterator[Ground]:
    laid = holes.lay(toolcrib_home.path / "g" if (toolcrib_home.path / "g").mkdir() is None else toolcrib_home.path)
    yield laid
    assert not laid.harm()


def told(said: Said) -> Said:
    assert not leaked(said.whole), f"{leaked(said.whole)}: {said}"
    return said


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
    holes.git(root, "config", "filter.evil.clean", f"[ $INSIDE ] || INSIDE=1 bash {root}/attempts.sh; cat")
    (root / ".gitattributes").write_text("notes.txt filter=evil\n")
    (root / "notes.txt").write_text("changed\n")
    return side.call("project_diff")


@pytest.mark.parametrize("runner", RUNNERS)
def test_code_that_tries_everything_gets_nowhere(ground: Ground, environ: dict[str, str], runner: str) -> None:
    with sides.in_process(ground.root, environ=environ) as side:
        assert not side.sh("true").is_error
        if runner == "project_diff":
            holes.git(ground.root, "config", "filter.evil.clean", "cat")
        own = (ground.root / ".toolcrib", ground.root / ".git" / "hooks", ground.root / ".git" / "config")
        before = [holes.seen(path) or path.read_bytes() for path in own[:2]]
        config = own[2].read_bytes()
        said = told(run_by(runner, side, ground))
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
    assert [holes.seen(path) for path in own[:2]] == before


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
    assert not os.path.lexists(laid.root / ".toolcrib"), holes.seen(laid.root / ".toolcrib")
    assert not os.path.lexists(laid.root / ".git"), holes.seen(laid.root / ".git")


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


def files_of_pytest(ground: Ground) -> dict[str, str]:
    outside = ground.outside
    return {
        "pytest.ini": f"[pytest]\naddopts = --rootdir={outside} --confcutdir={outside} --junitxml={outside}/made.xml "
        f"--basetemp={outside}/deep -o cache_dir={outside}/deep @{outside}/secret.txt\n"
        f"testpaths = {outside}\npythonpath = {outside}\n",
    }


def files_of_conftest(ground: Ground) -> dict[str, str]:
    outside = ground.outside
    return {
        "conftest.py": f"import sys\nsys.path.insert(0, {str(outside)!r})\npytest_plugins = ['test_secret']\n"
        f"collect_ignore = []\nopen({f'{outside}/secret.txt'!r}).read()\n",
        "pyproject.toml": f"[tool.pytest.ini_options]\ntestpaths = [{str(outside)!r}]\ncache_dir = {str(outside)!r}\n",
        "tox.ini": f"[pytest]\naddopts = -p {outside}/marker\n",
        "sitecustomize.py": f"import os\nos.system({str(ground.marker)!r})\n",
        "pytest.py": f"import os\nos.system({str(ground.marker)!r})\n",
    }


def files_of_linters(ground: Ground) -> dict[str, str]:
    outside = ground.outside
    return {
        "ruff.toml": f'extend = "{outside}/secret.txt"\ncache-dir = "{outside}/deep"\n',
        "mypy.ini": f"[mypy]\nplugins = {outside}/test_secret.py\npython_executable = {ground.marker}\n"
        f"cache_dir = {outside}/deep\nfiles = {outside}/test_secret.py\nmypy_path = {outside}\n"
        f"junit_xml = {outside}/made.xml\nany_exprs_report = {outside}/made\n",
        "ruff": f"#!/bin/sh\n{ground.marker}\n",
        "mypy.py": f"import os\nos.system({str(ground.marker)!r})\n",
    }


def files_of_git(ground: Ground) -> dict[str, str]:
    marker, outside = ground.marker, ground.outside
    return {
        ".git/config": f"""
[core]
    repositoryformatversion = 0
    fsmonitor = {marker}
    hooksPath = {outside}
    worktree = {outside}
    pager = {marker}
    editor = {marker}
    sshCommand = {marker}
    attributesFile = {outside}/secret.txt
    excludesFile = {outside}/secret.txt
    gitProxy = {marker}
[include]
    path = {outside}/secret.txt
[filter "x"]
    clean = {marker}
    smudge = {marker}
    process = {marker}
    required = true
[diff]
    external = {marker}
[diff "x"]
    textconv = {marker}
    command = {marker}
[alias]
    status = !{marker}
    diff = !{marker}
[credential]
    helper = !{marker}
[gpg]
    program = {marker}
[status]
    submoduleSummary = true
""",
        ".gitattributes": "* filter=x diff=x\n",
        ".gitmodules": f'[submodule "m"]\n    path = src\n    url = {outside}\n    update = !{marker}\n',
        ".git/objects/info/alternates": f"{outside}\n",
        ".git/hooks/post-index-change": f"#!/bin/sh\n{marker}\n",
    }


def files_of_a_pointer(ground: Ground) -> dict[str, str]:
    return {".git": f"gitdir: {ground.outside}/repo/.git\n"}


def files_of_an_environment(ground: Ground) -> dict[str, str]:
    marker, outside = ground.marker, ground.outside
    return {
        ".venv/pyvenv.cfg": f"home = {outside}\nexecutable = {marker}\ninclude-system-site-packages = true\n",
        ".venv/bin/python": f"-> {marker}",
        "venv": f"-> {outside}",
        "env/bin/python": f"#!{marker}\n",
        "env/pyvenv.cfg": f"home = {outside}\n",
        ".venv/lib/python3.11/site-packages/x.pth": f"import os; os.system('{marker}')\n{outside}\n",
    }


REPOSITORIES = {
    "pytest.ini": files_of_pytest,
    "conftest": files_of_conftest,
    "linters": files_of_linters,
    "git's configuration": files_of_git,
    "a pointer to a repository": files_of_a_pointer,
    "an environment": files_of_an_environment,
}


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_what_a_repository_names_is_neither_read_nor_run_nor_bound(
    ground: Ground, environ: dict[str, str], kind: str
) -> None:
    if kind == "a pointer to a repository":
        ground.root.joinpath(".git").rename(ground.outside / "repo.git")
        ground.outside.joinpath("repo").mkdir()
        ground.outside.joinpath("repo.git").rename(ground.outside / "repo" / ".git")
        (ground.root / "src" / holes.NAME).write_text(holes.WORD)
        holes.git(ground.outside / "repo", "--work-tree", str(ground.root), "add", f"src/{holes.NAME}")
        holes.git(ground.outside / "repo", "--work-tree", str(ground.root), "commit", "--quiet", "--message=second")
        (ground.root / "src" / holes.NAME).unlink()
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
    ground.before.update(holes.seen(ground.outside) | holes.seen(ground.sibling))
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
            words = [word for word in leaked(said.whole)]
            assert not words, f"{tool}: {words}: {said}"
    assert not ground.harm()
    assert not (ground.root / "ran").exists(), "the program outside ran where the folder is"


# ---- programs that the server itself starts


@pytest.mark.parametrize("entry", ["{root}/.venv/bin", ".", "{root}/linked"])
def test_the_server_starts_no_program_out_of_the_folder(ground: Ground, environ: dict[str, str], entry: str) -> None:
    """Whoever works in an environment of the project has its programs first on the path."""
    evil = f"#!/bin/sh\necho {holes.RAN} bubblewrap 0.8.0\ntouch {ground.outside}/ran\nexit 0\n"
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


# ---- doors of other processes


@contextlib.contextmanager
def listening(path: Path) -> Iterator[list[str]]:
    """A process of the person's that listens in the folder; says who came."""
    came: list[str] = []
    before = Path.cwd()
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        # A socket's whole path may have 107 bytes.
        os.chdir(path.parent)
        try:
            door.bind(path.name)
        finally:
            os.chdir(before)
        door.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    guest, _ = door.accept()
                    came.append(path.name)
                    guest.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield came
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join(10)


DOORS = {
    "beside the code": "app.sock",
    "in git's folder": ".git/fsmonitor--daemon.ipc",
    "deep down": "a/b/c/d/e/f/g/h/i/j/app.sock",
    "among packages": "node_modules/x/app.sock",
    "in toolcrib's output": ".toolcrib/output/app.sock",
}
KNOCK = """
import os, socket
def test_knock():
    os.chdir({folder!r})
    with socket.socket(socket.AF_UNIX) as door:
        door.connect({name!r})
"""


@pytest.mark.parametrize("where", DOORS)
@pytest.mark.parametrize("mode", ["writable", "read-only"])
def test_a_socket_in_the_folder_leads_to_nobody(ground: Ground, environ: dict[str, str], where: str, mode: str) -> None:
    """Behind it is a process of the person's, outside: a server under development, an agent of keys, git's own."""
    path = Path(DOORS[where])
    (ground.root / "test_knock.py").write_text(KNOCK.format(folder=str(path.parent), name=path.name))
    settings = replace(PLAIN, read_only=mode == "read-only")
    with listening(ground.root / path) as came, sides.in_process(ground.root, settings, environ=environ) as side:
        if mode == "read-only":
            said = side.call("run_tests", paths=["test_knock.py"])
            assert (said.data["failed"], said.data["passed"]) == (1, 0), said
        else:
            said = side.sh("python3 -c 'import test_knock; test_knock.test_knock()'")
            assert said.data["exit_code"] == 1, said
        assert not came


# ---- what others wrote into the folder


def test_a_command_does_not_write_through_a_hard_link(ground: Ground, environ: dict[str, str]) -> None:
    """Package managers link files of an environment to one store for all projects."""
    store = ground.root / ".venv" / "lib"
    store.mkdir(parents=True)
    os.link(ground.outside / "hard.txt", store / "package.py")
    ground.before.update(holes.seen(ground.outside))
    with sides.in_process(ground.root, environ=environ) as side:
        said = side.sh(
            "for f in hard.txt .venv/lib/package.py; do echo evil >> $f; chmod 777 $f; truncate -s 3 $f; done"
        )
        assert not ground.harm(), said


def test_logs_of_runs_stay_closed_in_a_project_within(ground: Ground, environ: dict[str, str]) -> None:
    with sides.in_process(ground.root, environ=environ) as side:
        told(side.sh("cat sub/.toolcrib/runs/*; grep -r . sub; ls -R sub"))


def test_settings_of_a_project_within_are_not_written_by_a_command(ground: Ground, environ: dict[str, str]) -> None:
    with sides.in_process(ground.root, environ=environ) as side:
        side.sh(
            "echo 'network: true' > sub/.toolcrib/workspace.yml; mkdir src/.toolcrib; echo x > src/.toolcrib/config.yml"
        )
    assert not (ground.root / "sub" / ".toolcrib" / "workspace.yml").exists()


@pytest.mark.parametrize("where", ["src", "new/folder"])
def test_a_repository_that_a_command_makes_does_not_run_code_outside_later(
    ground: Ground, environ: dict[str, str], where: str
) -> None:
    """Editors and prompts ask `git status` of every folder they show."""
    mark = ground.outside / "ran"
    with sides.in_process(ground.root, environ=environ) as side:
        said = side.sh(
            f"mkdir -p {where}; git init -q {where}; git -C {where} config core.fsmonitor 'touch {mark}; false'; "
            f"printf '#!/bin/sh\\ntouch {mark}\\n' > {where}/.git/hooks/post-index-change; chmod +x {where}/.git/hooks/*"
        )
    (ground.root / where).mkdir(exist_ok=True, parents=True)
    holes.git(ground.root / where, "status")
    assert not mark.exists(), said


@pytest.mark.parametrize("planted", ["links", "a link for the folder", "the largest number", "a folder"])
def test_names_of_kept_output_that_were_taken_before_harm_nothing(
    ground: Ground, environ: dict[str, str], planted: str
) -> None:
    place = ground.root / ".toolcrib" / "output"
    if planted == "a link for the folder":
        place.symlink_to(ground.outside)
    else:
        place.mkdir()
    if planted == "links":
        (place / ".gitignore").symlink_to(ground.outside / "made")
        for number in range(1, 6):
            (place / f"run_shell_safe-{number}.log").symlink_to(ground.outside / "secret.txt")
    if planted == "the largest number":
        for number in (999_999_999, 1_000_000_000):
            (place / f"run_shell_safe-{number}.log").write_text("mine\n")
    if planted == "a folder":
        (place / "run_shell_safe-1.log").mkdir()
    with sides.in_process(ground.root, environ=environ) as side:
        said = told(side.sh("yes 0123456789 | head -c 300000; echo THEEND"))
        assert "THEEND" in said.data["stdout"], said
        if kept := said.data.get("output_file"):
            assert "0123456789" in side.call("read_file", path=kept).text
    assert not ground.harm()
