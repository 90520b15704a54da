"""A folder full of traps, and what lies outside of it that no tool may touch.

In: an empty place. Out: a `Ground`: a small project with links, pipes and odd names that lead out, and outside of it
things that can be told when they turn up in an answer: words in files, a file's name, its size, its time, a program
that says that it ran. `holes` has the paths that are tried.
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
"""A file outside that no hostile path spells out: it shows only where a folder was listed."""
SIZE = 7_354_133
"""Of a file outside."""
MOMENT = 1_111_111_111
DAYS = ("2005-03-18", "Mar 18  2005")
"""When the things outside were last changed; nothing inside is so old."""
RAN = "MARKERRAN5E2D"
"""What the program outside prints."""
SECRET_NAME = "HOLES_SECRET"
SECRET = "SECRETENV31C4"
"""A variable of the server's."""
RUN_LOG = "RUNLOGLINE88D1"
"""In a log of Toolcrib's runs."""
PASSWD = "root:x:0:0"
"""In /etc/passwd, of which commands get another one."""
WRITTEN = "INTRUDER"
_MOST_COMPARED = 100_000
LEAKS = (WORD, NAME, str(SIZE), *DAYS, RAN, SECRET, RUN_LOG, PASSWD)


@dataclass(frozen=True, kw_only=True)
class Ground:
    root: Path
    outside: Path
    before: dict[str, str] = field(default_factory=dict)

    @property
    def marker(self) -> Path:
        """A program outside; if it runs there, a file shows it."""
        return self.outside / "marker"

    @property
    def sibling(self) -> Path:
        return self.root.with_name(f"{self.root.name}-evil")

    def harm(self) -> list[str]:
        """What is new, gone or different outside."""
        now = seen(self.outside) | seen(self.sibling)
        return sorted(path for path in self.before.keys() | now.keys() if self.before.get(path) != now.get(path))


def leaked(said: str) -> list[str]:
    return [word for word in LEAKS if word in said]


def seen(top: Path) -> dict[str, str]:
    """Everything in a folder, byte for byte, with modes and times; links as they are."""
    found = {}
    for folder, folders, files in os.walk(top):
        for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
            there = path.lstat()
            what = [stat.filemode(there.st_mode), str(there.st_uid), str(there.st_nlink)]
            if stat.S_ISREG(there.st_mode):
                what += [str(there.st_mtime_ns), str(there.st_size)]
                what.append(path.read_bytes().hex() if there.st_size < _MOST_COMPARED else "")
            elif stat.S_ISDIR(there.st_mode):
                what.append(str(there.st_mtime_ns))
            elif stat.S_ISLNK(there.st_mode):
                what.append(str(path.readlink()))
            found[str(path)] = " ".join(what)
    return found


def lay(place: Path, *, name: str = "p") -> Ground:
    """`place/p` is the project, beside it lie `p-evil` and `outside`."""
    ground = Ground(root=place / name, outside=place / "outside")
    ground.root.mkdir(exist_ok=True)
    _lay_outside(ground)
    _lay_project(ground.root)
    _lay_links(ground)
    _lay_odd_files(ground)
    ground.before.update(seen(ground.outside) | seen(ground.sibling))
    return ground


def _lay_outside(ground: Ground) -> None:
    (ground.outside / "deep").mkdir(parents=True)
    ground.sibling.mkdir()
    for folder in (ground.outside, ground.outside / "deep", ground.sibling):
        (folder / "secret.txt").write_text(f"{WORD}\n")
        (folder / "test_secret.py").write_text(f'def test_{WORD}():\n    raise RuntimeError("{WORD}")\n')
        (folder / NAME).write_text(WORD)
        with (folder / "big").open("wb") as big:
            big.truncate(SIZE)
    ground.marker.write_text(f"#!/bin/sh\necho {RAN}\ntouch {ground.outside}/ran {ground.root}/ran\n")
    ground.marker.chmod(0o755)
    for path in (*ground.outside.rglob("*"), *ground.sibling.rglob("*"), ground.outside, ground.sibling):
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
    """As a person would, with nothing of this machine's own configuration."""
    who = ("-c", "user.name=A Person", "-c", "user.email=person@localhost")
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", *who, *words], cwd=root, env=env, check=True, capture_output=True, timeout=30)


def _lay_links(ground: Ground) -> None:
    outside = ground.outside
    links = {
        "out.txt": outside / "secret.txt",
        "up.txt": "../outside/secret.txt",
        "src/up.py": "../../outside/test_secret.py",
        "test_out.py": outside / "test_secret.py",
        "outdir": outside,
        "updir": "../outside",
        "evil": ground.sibling,
        "chain1": "chain2",
        "chain2": "src/chain3",
        "src/chain3": "../updir",
        "loop": "loop",
        "slash": "/",
        "self": "/proc/self",
        "fds": "/dev/fd",
        "stdin": "/dev/stdin",
        "gone.txt": outside / "not-there.txt",
        "gonedir": outside / "not-there",
        "runs": ".toolcrib/runs",
        "own": ".toolcrib",
        "hooks": ".git/hooks",
        "marker": ground.marker,
    }
    for name, target in links.items():
        (ground.root / name).symlink_to(target)


def _lay_odd_files(ground: Ground) -> None:
    (ground.outside / "hard.txt").write_text("as it was\n")
    os.link(ground.outside / "hard.txt", ground.root / "hard.txt")
    os.mkfifo(ground.root / "pipe")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(ground.root / "door"))
    if os.geteuid() == 0:
        # Without end, for whoever reads it. Some containers forbid making one.
        with contextlib.suppress(PermissionError):
            os.mknod(ground.root / "zeros", stat.S_IFCHR | 0o666, os.makedev(1, 5))
