"""The paths and words to try in a `HostileProject`, and the calls that take one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parts.traps import WORD, WRITTEN, HostileProject


def leading_out(project: HostileProject) -> dict[str, str]:
    """Paths to something outside. Every tool that takes a path must refuse them."""
    root, outside = project.root, project.outside
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
        "a sibling with the same prefix": f"../{project.sibling.name}/secret.txt",
        "the same, absolute": f"{project.sibling}/secret.txt",
        "the same, a folder": f"{project.sibling}",
        "the system's accounts": "/etc/passwd",
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
        "through a link to a missing folder": "gonedir/new.txt",
    }


def links_out(_: HostileProject) -> dict[str, str]:
    """Links that lead out. A tool may describe the link, but not its target."""
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
        "a link to a missing file": "gone.txt",
        "a link to a missing folder": "gonedir",
        "a link to a program": "marker",
        "a loop": "loop",
        "a link to the logs of runs": "runs",
    }


def run_logs(_: HostileProject) -> dict[str, str]:
    return {
        "a log": ".toolcrib/runs/log.txt",
        "the logs": ".toolcrib/runs",
        "a log, oddly spelled": "./src/..//.toolcrib/./runs/log.txt",
        "a log through a link": "runs/log.txt",
        "a log through a link above": "own/runs/log.txt",
        "a log of a project within": "sub/.toolcrib/runs/log.txt",
        "a name near a log's": ".toolcrib/runs/log.tx",
    }


def never_writable(_: HostileProject) -> dict[str, str]:
    """Also paths where nothing exists yet, because an attacker would create those first."""
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
        "git with an invisible letter": ".g\u200cit/config",
        "git with a wide letter": ".\uff47it/config",
        "git of a folder within": "src/.git/config",
        "git as a file": "src/.git",
        "a log": ".toolcrib/runs/log.txt",
        "a new log": ".toolcrib/runs/new.txt",
    }


def odd_words(project: HostileProject) -> dict[str, str]:
    """Words that a program could take for more than a name."""
    outside = project.outside
    return {
        "empty": "",
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
        "a command in backticks": "`cat ../outside/secret.txt`",
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


# ---- the calls that take a path or a word

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
"""They read, and take a path."""

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
"""They take a pattern, which is matched inside."""

CODE_FORMS: dict[str, tuple[str, Form]] = {
    "project_diff": ("project_diff", lambda path: {"path": path}),
    "run_tests": ("run_tests", lambda path: {"paths": [path], "seconds": 20}),
    "run_tests, the second": ("run_tests", lambda path: {"paths": ["test_ok.py", path], "seconds": 20}),
    "run_tests, one test": ("run_tests", lambda path: {"paths": [f"{path}::test_{WORD[:3]}"], "seconds": 20}),
    "run_lint": ("run_lint", lambda path: {"paths": [path], "seconds": 20}),
    "run_lint, the second": ("run_lint", lambda path: {"paths": ["src/a.py", path], "seconds": 20}),
    "run_shell_safe in": ("run_shell_safe", lambda path: {"command": "ls -la; cat secret.txt", "cwd": path}),
}
"""They run code, and take a path."""

WORD_FORMS: dict[str, tuple[str, Form]] = {
    "project_diff from": ("project_diff", lambda word: {"base": word}),
    "run_tests by name": ("run_tests", lambda word: {"paths": ["test_ok.py"], "select": word, "seconds": 20}),
    "run_tests by mark": ("run_tests", lambda word: {"paths": ["test_ok.py"], "marker": word, "seconds": 20}),
    "run_shell_safe, a program": ("run_shell_safe", lambda word: {"argv": [word], "seconds": 5}),
    "run_shell_safe, an argument": ("run_shell_safe", lambda word: {"argv": ["cat", word], "seconds": 5}),
    "run_shell_safe, read": ("run_shell_safe", lambda word: {"command": "cat; echo", "stdin": word}),
}
"""They run code, and take a word."""

CALLS: dict[str, dict[str, Any]] = {
    "read_file": {"path": "notes.txt"},
    "write_file": {"path": "written.txt", "content": "x"},
    "edit_file": {"path": "notes.txt", "old": "plain", "new": "x"},
    "list_dir": {},
    "stat_file": {"path": "notes.txt"},
    "find_files": {"glob": ["*"]},
    "search_text": {"pattern": "plain"},
    "run_tests": {"paths": ["test_ok.py"]},
    "run_lint": {"paths": ["src"]},
    "run_shell_safe": {"command": "echo x > made; echo plain"},
    "project_diff": {},
    "project_structure": {},
}
"""One harmless call of every tool."""
