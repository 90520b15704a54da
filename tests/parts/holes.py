"""A folder full of traps, and what lies outside of it that no tool may touch.

In: an empty place. Out: a `Ground`: a small project with links, pipes and odd names that lead out, and outside of it
things that can be told when they turn up in an answer: words in files, a file's name, its size, its time, a program
that says that it ran. The tables say which paths are tried, and where each tool takes one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        "pyproject.toml": "[tool.ruff]\nline-length = 100\n[tool.pytest.ini_options]\nnorecursedirs = ['slash', 'self', 'fds']\n",
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
    git(root, "add", "pyproject.toml", "src", "test_ok.py", "notes.txt")
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


# ---- paths


def leading_out(ground: Ground) -> dict[str, str]:
    """Paths that lead to something outside, by what is tried. Each must be refused wherever a path is meant."""
    root, outside = ground.root, ground.outside
    return {
        "absolute": f"{outside}/secret.txt",
        "absolute folder": f"{outside}",
        "absolute, doubled slash": f"//{outside}/secret.txt",
        "dots": "../outside/secret.txt",
        "dots to a folder": "../outside",
        "only dots": "..",
        "dots after a folder": "src/../../outside/secret.txt",
        "dots after a missing folder": "missing/../../outside/secret.txt",
        "many dots": f"{'../' * 40}{str(outside)[1:]}/secret.txt",
        "the root, then dots": f"{root}/../outside/secret.txt",
        "a sibling that begins alike": f"../{ground.sibling.name}/secret.txt",
        "the same, absolute": f"{ground.sibling}/secret.txt",
        "the same, a folder": f"{ground.sibling}",
        "the system's users": "/etc/passwd",
        "the top": "/",
        "variables of the server": "/proc/self/environ",
        "the root of a process": f"/proc/self/root{outside}/secret.txt",
        "the folder of a process": "/proc/self/cwd/../outside/secret.txt",
        "a descriptor": "/dev/fd/0",
        "standard input": "/dev/stdin",
        "through a link": "outdir/secret.txt",
        "through a link, deeper": "outdir/deep/secret.txt",
        "through a link, a test": "outdir/test_secret.py",
        "through a link, something new": "outdir/made/new.txt",
        "through a link, something near": "outdir/secret.tx",
        "through a link that goes up": "updir/secret.txt",
        "through a link to the sibling": "evil/secret.txt",
        "through a chain of links": "chain1/secret.txt",
        "through a link to the top": f"slash{outside}/secret.txt",
        "through a link to a process": "self/environ",
        "its root": f"self/root{outside}/secret.txt",
        "its folder": "self/cwd/../outside/secret.txt",
        "its descriptors": "self/fd/0",
        "through a link to descriptors": "fds/0",
        "through a link to nothing yet": "gonedir/new.txt",
    }


def links_out(_: Ground) -> dict[str, str]:
    """Links of which the last name leads out: there is something to tell of the link, and nothing of its target."""
    return {
        "a link": "out.txt",
        "a link that goes up": "up.txt",
        "a link among tests": "test_out.py",
        "a link to a folder": "outdir",
        "a chain of links": "chain1",
        "a link to the top": "slash",
        "a link to a process": "self",
        "a link to descriptors": "fds",
        "a link to standard input": "stdin",
        "a link to nothing yet": "gone.txt",
        "a link to a folder that is not there yet": "gonedir",
        "a link to a program": "marker",
        "a loop": "loop",
        "a link to the logs of runs": "runs",
    }


def run_logs(_: Ground) -> dict[str, str]:
    return {
        "a log": ".toolcrib/runs/log.txt",
        "the logs": ".toolcrib/runs",
        "a log, oddly spelled": "./src/..//.toolcrib/./runs/log.txt",
        "a log through a link": "runs/log.txt",
        "a log through a link above": "own/runs/log.txt",
        "a log of a project within": "sub/.toolcrib/runs/log.txt",
        "a name near a log's": ".toolcrib/runs/log.tx",
    }


def never_writable(_: Ground) -> dict[str, str]:
    """Also where nothing is yet: what is missing is the first thing somebody would make."""
    return {
        "settings": ".toolcrib/workspace.yml",
        "settings, another name": ".toolcrib/workspace.yaml",
        "settings as JSON": ".toolcrib/workspace.json",
        "configuration": ".toolcrib/config.yml",
        "a folder of Toolcrib's": ".toolcrib/new/file",
        "settings in capitals": ".TOOLCRIB/workspace.yml",
        "settings with a dot": ".toolcrib./workspace.yml",
        "settings with a space": ".toolcrib /workspace.yml",
        "settings by a short name": "TOOLCR~1/workspace.yml",
        "settings through a link": "own/workspace.yml",
        "settings of a project within": "sub/.toolcrib/workspace.yml",
        "a hook": ".git/hooks/pre-commit",
        "git's configuration": ".git/config",
        "git's attributes": ".git/info/attributes",
        "a hook through a link": "hooks/pre-commit",
        "git in capitals": ".GIT/config",
        "git in some capitals": ".Git/hooks/pre-commit",
        "git with a dot": ".git./config",
        "git with a space": ".git /config",
        "git by a short name": "GIT~1/config",
        "git as a stream": ".git::$INDEX_ALLOCATION/config",
        "git with a letter that does not show": ".g\u200cit/config",
        "git with a wide letter": ".\uff47it/config",
        "git of a folder within": "src/.git/config",
        "git as a file": "src/.git",
        "a log": ".toolcrib/runs/log.txt",
        "a new log": ".toolcrib/runs/new.txt",
    }


def odd_words(ground: Ground) -> dict[str, str]:
    """Words that something down the line might take for more than a name."""
    outside = ground.outside
    return {
        "nothing": "",
        "NUL": "src/a.py\0../../outside/secret.txt",
        "a newline": "src/a.py\n../outside/secret.txt",
        "a newline and a line of a file": f"x\n{outside}/secret.txt\n",
        "too long": "a/" * 3000,
        "a name too long": "n" * 300,
        "backslashes": "..\\outside\\secret.txt",
        "percent signs": "..%2foutside%2fsecret.txt",
        "dots of another width": "\uff0e\uff0e/outside/secret.txt",
        "a URL": f"file://{outside}/secret.txt",
        "a home": "~/secret.txt",
        "a variable": "$HOLES_SECRET",
        "a command": "$(cat ../outside/secret.txt)",
        "a command, the old way": "`cat ../outside/secret.txt`",
        "two commands": f"; cat {outside}/secret.txt",
        "an option": "-rf",
        "the end of options": "--",
        "help": "--help",
        "an output file": f"--output={outside}/made",
        "an output file of git": f"--output={outside}/secret.txt",
        "no index": "--no-index",
        "another repository": f"--git-dir={outside}",
        "another configuration": f"--config={outside}/secret.txt",
        "another root": f"--rootdir={outside}",
        "a plugin": "-pmarker",
        "a report": f"--junitxml={outside}/made.xml",
        "a base folder": f"--basetemp={outside}/deep",
        "a confcutdir": f"--confcutdir={outside}",
        "a file of arguments": f"@{outside}/secret.txt",
        "a file of arguments inside": "@out.txt",
        "a preprocessor": f"--pre={outside}/marker",
        "follow links": "--follow",
        "files of patterns": f"--file={outside}/secret.txt",
        "git's magic": ":(top)../outside",
        "git's magic, all": ":/",
        "git's magic, exclude": ":!src",
        "git's attributes": ":(attr:x)",
        "an upload program": f"--upload-pack={outside}/marker",
        "a node": "test_ok.py::--help",
        "a node outside": f"{outside}/test_secret.py::test_x",
        "a node after dots": "test_ok.py::../outside/test_secret.py::test_x",
        "a glob up": "../**",
        "an absolute glob": f"{outside}/**",
        "everything": "**",
        "braces": "{../outside,src}/*",
        "a class": "[.][.]/outside/*",
    }


# ---- where tools take a path


Arguments = Mapping[str, Any]
Form = Callable[[str], Arguments]

FILE_FORMS: dict[str, tuple[str, Form]] = {
    "read_file": ("read_file", lambda path: {"path": path}),
    "read_file as bytes": ("read_file", lambda path: {"path": path, "encoding": "binary"}),
    "read_file from a byte": ("read_file", lambda path: {"path": path, "offset": 0, "length": 10}),
    "list_dir": ("list_dir", lambda path: {"path": path}),
    "list_dir, all": ("list_dir", lambda path: {"path": path, "depth": 20, "ignored": True}),
    "stat_file": ("stat_file", lambda path: {"path": path}),
    "find_files": ("find_files", lambda path: {"path": path, "glob": ["*"], "ignored": True}),
    "find_files, newest": ("find_files", lambda path: {"path": path, "glob": ["**"], "sort": "newest"}),
    "search_text": ("search_text", lambda path: {"path": path, "pattern": "."}),
    "search_text, all": (
        "search_text",
        lambda path: {"path": path, "pattern": WORD[:6], "ignored": True, "context": 2},
    ),
    "project_structure": ("project_structure", lambda path: {"path": path, "depth": 20}),
}
"""Each reads, and takes the path as a path."""

WRITE_FORMS: dict[str, tuple[str, Form]] = {
    "write_file": ("write_file", lambda path: {"path": path, "content": WRITTEN}),
    "write_file, create": ("write_file", lambda path: {"path": path, "content": WRITTEN, "mode": "create"}),
    "write_file, append": ("write_file", lambda path: {"path": path, "content": WRITTEN, "mode": "append"}),
    "write_file, no folders": ("write_file", lambda path: {"path": path, "content": WRITTEN, "make_dirs": False}),
    "write_file, bytes": ("write_file", lambda path: {"path": path, "content": "SU5U", "encoding": "binary"}),
    "edit_file": ("edit_file", lambda path: {"path": path, "old": WORD[:6], "new": WRITTEN}),
    "edit_file, all": ("edit_file", lambda path: {"path": path, "old": "a", "new": WRITTEN, "all": True}),
}

PATTERN_FORMS: dict[str, tuple[str, Form]] = {
    "list_dir by glob": ("list_dir", lambda word: {"glob": word, "depth": 20}),
    "find_files by glob": ("find_files", lambda word: {"glob": [word]}),
    "find_files by another glob": ("find_files", lambda word: {"glob": ["*.none", word, f"!{word}"]}),
    "search_text by pattern": ("search_text", lambda word: {"pattern": word or "x"}),
    "search_text, literal": ("search_text", lambda word: {"pattern": word or "x", "literal": True}),
    "search_text by glob": ("search_text", lambda word: {"pattern": ".", "glob": [word]}),
    "search_text by another glob": ("search_text", lambda word: {"pattern": ".", "glob": ["*.py", word]}),
}
"""Each takes a word that is no path; what it is matched with lies inside."""

CODE_FORMS: dict[str, tuple[str, Form]] = {
    "project_diff": ("project_diff", lambda path: {"path": path}),
    "run_tests": ("run_tests", lambda path: {"paths": [path], "seconds": 20}),
    "run_tests, the second": ("run_tests", lambda path: {"paths": ["test_ok.py", path], "seconds": 20}),
    "run_tests, one test": ("run_tests", lambda path: {"paths": [f"{path}::test_{WORD[:3]}"], "seconds": 20}),
    "run_lint": ("run_lint", lambda path: {"paths": [path], "seconds": 20}),
    "run_lint, the second": ("run_lint", lambda path: {"paths": ["src/a.py", path], "seconds": 20}),
    "run_shell_safe in": ("run_shell_safe", lambda path: {"command": "ls -la; cat secret.txt", "cwd": path}),
}
"""Each runs something, and takes the path as a path."""

WORD_FORMS: dict[str, tuple[str, Form]] = {
    "project_diff from": ("project_diff", lambda word: {"base": word}),
    "run_tests by name": ("run_tests", lambda word: {"paths": ["test_ok.py"], "select": word, "seconds": 20}),
    "run_tests by mark": ("run_tests", lambda word: {"paths": ["test_ok.py"], "marker": word, "seconds": 20}),
    "run_shell_safe, a program": ("run_shell_safe", lambda word: {"argv": [word], "seconds": 5}),
    "run_shell_safe, an argument": ("run_shell_safe", lambda word: {"argv": ["cat", word], "seconds": 5}),
    "run_shell_safe, read": ("run_shell_safe", lambda word: {"command": "cat; echo", "stdin": word}),
}
"""Each runs something, and takes a word."""
