"""A hostile project, and files outside of it that no tool may touch.

In: an empty folder. Out: a `HostileProject`, with links, pipes and odd names that lead out. The files outside can be
recognised in an answer by their words, names, sizes and times, and a program there leaves a mark when it runs.
`holes` has the paths to try.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

WORD = "CANARYWORD7F3A"
"""In every file outside."""
NAME = "canaryname9b1c"
"""A file outside that no hostile path names, so only a listing shows it."""
SIZE = 7_354_133
"""The size of a file outside."""
MOMENT = 1_111_111_111
DAYS = ("2005-03-18", "Mar 18  2005")
"""The last change of everything outside. Nothing inside is so old."""
RAN = "MARKERRAN5E2D"
"""Printed by the program outside."""
SECRET_NAME = "HOLES_SECRET"
SECRET = "SECRETENV31C4"
"""A variable of the server."""
RUN_LOG = "RUNLOGLINE88D1"
"""In a log of Toolcrib's runs."""
PASSWD = "root:x:0:0"
"""In /etc/passwd. Commands get a different one."""
WRITTEN = "INTRUDER"
_MAX_COMPARED = 100_000
LEAKS = (WORD, NAME, str(SIZE), *DAYS, RAN, SECRET, RUN_LOG, PASSWD)


@dataclass(frozen=True, kw_only=True)
class HostileProject:
    root: Path
    outside: Path
    before: dict[str, str] = field(default_factory=dict)

    @property
    def marker(self) -> Path:
        """A program outside that creates a file when it runs."""
        return self.outside / "marker"

    @property
    def sibling(self) -> Path:
        return self.root.with_name(f"{self.root.name}-evil")

    def remember(self) -> None:
        self.before.clear()
        self.before.update(snapshot(self.outside) | snapshot(self.sibling))

    def changes_outside(self) -> list[str]:
        now = snapshot(self.outside) | snapshot(self.sibling)
        return sorted(path for path in self.before.keys() | now.keys() if self.before.get(path) != now.get(path))


def leaks_in(text: str) -> list[str]:
    return [word for word in LEAKS if word in text]


def snapshot(*tops: Path) -> dict[str, str]:
    """Everything in these folders: content, modes, times and links."""
    found = {}
    for folder, folders, files in (entry for top in tops for entry in os.walk(top)):
        for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
            status = path.lstat()
            facts = [stat.filemode(status.st_mode), str(status.st_uid), str(status.st_nlink)]
            if stat.S_ISREG(status.st_mode):
                facts += [str(status.st_mtime_ns), str(status.st_size)]
                facts.append(path.read_bytes().hex() if status.st_size < _MAX_COMPARED else "")
            elif stat.S_ISDIR(status.st_mode):
                facts.append(str(status.st_mtime_ns))
            elif stat.S_ISLNK(status.st_mode):
                facts.append(str(path.readlink()))
            found[str(path)] = " ".join(facts)
    return found


def lay_traps(place: Path, *, name: str = "p") -> HostileProject:
    """`place/p` is the project, next to `p-evil` and `outside`."""
    place.mkdir(exist_ok=True)
    project = HostileProject(root=place / name, outside=place / "outside")
    project.root.mkdir(exist_ok=True)
    _lay_outside(project)
    _lay_project(project.root)
    _lay_links(project)
    _lay_odd_files(project)
    project.remember()
    return project


def _lay_outside(project: HostileProject) -> None:
    (project.outside / "deep").mkdir(parents=True)
    project.sibling.mkdir()
    for folder in (project.outside, project.outside / "deep", project.sibling):
        (folder / "secret.txt").write_text(f"{WORD}\n")
        (folder / "test_secret.py").write_text(f'def test_{WORD}():\n    raise RuntimeError("{WORD}")\n')
        (folder / NAME).write_text(WORD)
        with (folder / "big").open("wb") as big:
            big.truncate(SIZE)
    project.marker.write_text(f"#!/bin/sh\necho {RAN}\ntouch {project.outside}/ran {project.root}/ran\n")
    project.marker.chmod(0o755)
    for path in (*project.outside.rglob("*"), *project.sibling.rglob("*"), project.outside, project.sibling):
        os.utime(path, (MOMENT, MOMENT))


def _lay_project(root: Path) -> None:
    files = {
        "ruff.toml": "line-length = 100\n",
        "pytest.ini": "[pytest]\nnorecursedirs = slash self fds\n",
        "src/a.py": "import os\nhere = 1\n",
        "src/b.py": "there = 2\n",
        "test_ok.py": "def test_ok():\n    pass\n",
        "notes.txt": "plain notes\n",
        ".toolcrib/runs/log.txt": f"{RUN_LOG}\n",
        ".toolcrib/runs/test_log.py": f'raise RuntimeError("{RUN_LOG}")\n',
        "sub/.toolcrib/runs/log.txt": f"{RUN_LOG}\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "ruff.toml", "pytest.ini", "src", "test_ok.py", "notes.txt")
    git(root, "commit", "--quiet", "--message=first")
    (root / "src" / "b.py").write_text("there = 3\n")


def git(root: Path, *words: str) -> None:
    """The user's git, without this machine's configuration."""
    user = ("-c", "user.name=A Person", "-c", "user.email=person@localhost")
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", *user, *words], cwd=root, env=env, check=True, capture_output=True, timeout=30)


def _lay_links(project: HostileProject) -> None:
    outside = project.outside
    links: dict[str, str | Path] = {
        "out.txt": outside / "secret.txt",
        "up.txt": "../outside/secret.txt",
        "src/up.py": "../../outside/test_secret.py",
        "test_out.py": outside / "test_secret.py",
        "outdir": outside,
        "updir": "../outside",
        "evil": project.sibling,
        "chain1": "chain2",
        "chain2": "src/chain3",
        "src/chain3": "../updir",
        "loop": "loop",
        "slash": "/",
        "self": "/proc/self",
        "fds": "/dev/fd",
        "stdin": "/dev/stdin",
        "gone.txt": outside / "missing.txt",
        "gonedir": outside / "missing",
        "runs": ".toolcrib/runs",
        "own": ".toolcrib",
        "hooks": ".git/hooks",
        "marker": project.marker,
    }
    for name, target in links.items():
        (project.root / name).symlink_to(target)


def _lay_odd_files(project: HostileProject) -> None:
    (project.outside / "hard.txt").write_text("as it was\n")
    os.link(project.outside / "hard.txt", project.root / "hard.txt")
    os.mkfifo(project.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(project.root / "door"))
    if os.geteuid() == 0:
        # Reading it never ends. Some containers forbid making one.
        with contextlib.suppress(PermissionError):
            os.mknod(project.root / "zeros", stat.S_IFCHR | 0o666, os.makedev(1, 5))
