"""Finds the words of a server's command line that decide which code runs.

In: the command line and variables of an entry in the user's own configuration. Out: the places where the project's
folder would choose the code (`misplaced`), the same command line with safe-path settings (`safe_launch`), and the words
that `toolcrib add` stores for those that a user typed (`portable_words`). `entries` and `servers.stdio` use it.

An unknown program counts as self-contained: only its name decides which code runs, and its arguments can be anything.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from toolcrib.config.model import WORKSPACE_FOLDER, KeyPath

NEEDS_PROJECT = frozenset({"mcp-server-git", "mcp_server_git", "mcp-server-sqlite", "mcp_server_sqlite"})
"""Popular servers that resolve their files relative to the folder they start in."""

_KEEPS_SESSION = frozenset(
    name
    for names in (
        "@playwright/mcp playwright/mcp mcp/playwright playwright-mcp playwright-mcp-server mcp-server-playwright",
        "@executeautomation/playwright-mcp-server chrome-devtools-mcp @browserbasehq/mcp browser-use mcp-browser-use",
        "@modelcontextprotocol/server-puppeteer mcp-server-puppeteer puppeteer-mcp-server mcp/puppeteer",
        "@browserbasehq/mcp-server-browserbase @browsermcp/mcp mcp-server-browsermcp @agentdeskai/browser-tools-mcp",
    )
    for name in names.split()
)
"""Popular servers that keep a session for their caller, such as a browser with its pages: each agent needs its own."""

_SERVES_FOLDERS = frozenset({"@modelcontextprotocol/server-filesystem", "mcp-server-filesystem"})
"""Servers whose arguments are all folders."""


class _Kind(enum.Enum):
    INTERPRETER = enum.auto()
    """Its first argument is the script to run."""
    PACKAGE = enum.auto()
    """Its first argument is the package to run."""
    SHELL = enum.auto()
    WRAPPER = enum.auto()
    """Runs the rest of the command line."""
    BUILDER = enum.auto()
    """Runs what a folder's files define, such as a Makefile."""


_KINDS = {
    name: kind
    for kind, names in (
        (
            _Kind.INTERPRETER,
            "python pypy node nodejs ruby perl php lua java tsx ts-node deno bun Rscript pwsh powershell osascript "
            "julia elixir nodemon electron jbang fastmcp mcp",
        ),
        (_Kind.PACKAGE, "npx uvx uv pipx bunx pnpx pnpm yarn npm"),
        (_Kind.SHELL, "sh bash dash zsh fish ksh"),
        (
            _Kind.WRAPPER,
            "env nice ionice nohup timeout setsid stdbuf sudo doas time xvfb-run dotenv busybox conda mamba micromamba "
            "xargs flock unshare chroot strace",
        ),
        (
            _Kind.BUILDER,
            "make just task rake cargo go dotnet gradle mvn poetry hatch pdm pipenv bundle composer docker-compose "
            "direnv mise nix nix-shell swift",
        ),
    )
    for name in names.split()
}
_OBEYS_ITS_FOLDER = frozenset(["bun", "bunx", "deno", "pnpm", "pnpx", "yarn"])
"""They run or read files of the folder they start in (`bunfig.toml`, `.pnpmfile.cjs`, `.yarnrc.yml`)."""
_LOOSE_OPTIONS = frozenset(["npm", "pnpm", "yarn"])
"""They accept their own options even after the name of the package or script."""
_SUBCOMMANDS = frozenset(["run", "tool", "exec", "x", "dlx"])
_FLAGS = {
    "python": re.compile(r"-[uIEsSBbPOvqxdi]+"),
    "node": re.compile(r"--(?:enable-source-maps|trace-[\w-]+|experimental-strip-types|use-system-ca|inspect)"),
    "npx": re.compile(r"-[yqs]|--(?:yes|quiet|silent|offline|prefer-offline|prefer-online)"),
    "uv": re.compile(r"-[qvsn]|--(?:quiet|verbose|script|offline|isolated|refresh|frozen|locked|active|exact)"),
}
"""Options without a value. For any other option, the next word counts as its value, which errs on the safe side."""
_RUNNERS = frozenset(["cProfile", "profile", "trace", "pdb", "runpy", "coverage", "debugpy", "fastmcp", "mcp"])
"""Python modules that run the script or module in their next argument."""
_NO_VALUE = re.compile(r"--no-[\w-]+|--[\w-]+=.*", re.DOTALL)
_MODULE = re.compile(r"-[A-Za-z]*m|--module")
_CODE = re.compile(r"-[A-Za-z]*[ce]|--eval|--print")
_LOADS = re.compile(r"-[rIC]|--(?:require|import|loader|experimental-loader|preload|env-file|eval|print|config)|-[ep]")
_CODE_VARIABLES = re.compile(
    r"(?:PATH|HOME|USERPROFILE|ENV|BASH_ENV|ZDOTDIR|CLASSPATH|_JAVA_OPTIONS|GOFLAGS|SHELL|EDITOR|VISUAL|PAGER|BROWSER)"
    r"|(?:LD_|DYLD_|PYTHON|NODE_|NPM_CONFIG_|UV_|PIP_|RUBY|GEM_|BUNDLE_|PERL5|PHP|LUA_|XDG_|DENO_|BUN_|VIRTUAL_ENV).*"
    r"|(?:JAVA_|JDK_|MAVEN_|CARGO_|DOTNET_|CORECLR_|JULIA_|CONDA_|R_PROFILE|OPENSSL_).*|.*_EXECUTABLE(?:_PATH)?"
    # Not every GIT_ variable: servers use names such as GIT_BASE_DIR for the folder to work on.
    r"|GIT_(?:DIR|COMMON_DIR|CONFIG|EXEC_PATH|TEMPLATE|SSH|PROXY|ASKPASS|PAGER|EXTERNAL|.*EDITOR).*",
    re.IGNORECASE,
)
_PATH_VARIABLES = re.compile(
    r"PATH|LD_\w+|PYTHON(?:PATH|HOME|STARTUP)|NODE_PATH|RUBYLIB|PERL5LIB|CLASSPATH|(?:BASH_)?ENV"
)


def misplaced(words: Sequence[str], env: Mapping[str, str], *, in_project: bool) -> Iterator[tuple[KeyPath, str]]:
    """The places where the project's folder decides which code runs. `in_project`: the server starts in that folder."""
    zone = words[: _code_words(words)]
    for position, word in enumerate(zone):
        if WORKSPACE_FOLDER in word:
            yield _place(position), f"{WORKSPACE_FOLDER} where it decides what code runs"
        elif in_project and _is_of_the_folder(zone, position):
            yield _place(position), "code that is searched for in the project's folder"
            break
    for name, value in env.items():
        if _CODE_VARIABLES.fullmatch(name) and WORKSPACE_FOLDER in value:
            yield ("env", name), f"{WORKSPACE_FOLDER} in a variable that decides what code runs"
        elif in_project and _PATH_VARIABLES.fullmatch(name) and not all(map(os.path.isabs, value.split(os.pathsep))):
            yield ("env", name), "a relative path in a variable that decides what code runs"


def _place(position: int) -> KeyPath:
    return ("args", position - 1) if position else ("command",)


def _is_of_the_folder(zone: Sequence[str], position: int) -> bool:
    """Whether a word that decides what code runs points into the folder that the program starts in."""
    word, before = zone[position], zone[position - 1] if position else ""
    name = _name(word)
    if position == 0 and (_kind(zone) is _Kind.BUILDER or (os.sep in word and not Path(word).is_absolute())):
        return True
    if name in _OBEYS_ITS_FOLDER or (name == "uv" and _runs_by_name(zone, position) and not _names_its_project(zone)):
        return True
    if _is_found_by_name(zone, position) and not Path(word).is_absolute():
        return True
    option, _, value = word.partition("=")
    if word.startswith(".") or value.startswith("."):
        return True
    interpreter = _interpreter(zone[:position])
    if interpreter and interpreter not in ("python", "pypy"):
        loads = _LOADS.fullmatch(before) or (value and _LOADS.fullmatch(option))
    else:
        loads = None
    return bool(loads or _is_script(zone, position)) and not Path(value or word).is_absolute()


def _interpreter(words: Sequence[str]) -> str:
    """The last interpreter or shell among the words, or an empty string."""
    found = [name for name in map(_name, words) if _KINDS.get(name) in (_Kind.INTERPRETER, _Kind.SHELL)]
    return found[-1] if found else ""


def _is_script(zone: Sequence[str], position: int) -> bool:
    before = zone[position - 1] if position else ""
    is_last = position == len(zone) - 1 and not _MODULE.fullmatch(before) and not _CODE.fullmatch(before)
    return is_last and bool(_interpreter(zone[:position]))


def _names_its_project(zone: Sequence[str]) -> bool:
    return bool({"--project", "--directory"} & _options(zone))


def _options(zone: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in zone}


def _runs_by_name(words: Sequence[str], place: int) -> bool:
    """Whether the words from there are `uv run` or `pipx run`."""
    return _name(words[place]) in ("uv", "pipx") and "run" in words[place:] and "tool" not in words[place:]


def _is_found_by_name(words: Sequence[str], position: int) -> bool:
    """Whether `uv run` or `pipx run` runs this word: both look for a file or folder of that name first."""
    if {"--directory", "--spec"} & _options(words) or _MODULE.fullmatch(words[position - 1] if position else ""):
        return False
    return any(_runs_by_name(words, place) and _program(words, place) == position for place in range(position))


def _code_words(words: Sequence[str]) -> int:
    """How many words, counted from the first, decide what code runs; all of them if that is unknown."""
    known = _known_code_words(words)
    return len(words) if known is None else known


def _known_code_words(words: Sequence[str]) -> int | None:
    start = 0
    while True:
        kind = _kind(words[start:])
        if kind is None:
            return start + 1
        if kind is _Kind.BUILDER or (kind is _Kind.SHELL and any(_CODE.fullmatch(word) for word in words[start:])):
            return None
        found = _wrapped(words, start) if kind is _Kind.WRAPPER else _program(words, start)
        if found is None:
            return None
        if kind in (_Kind.INTERPRETER, _Kind.SHELL):
            return None if words[found] in _RUNNERS else found + 1
        start = found


def _kind(words: Sequence[str]) -> _Kind | None:
    name = _name(words[0])
    if name in _LOOSE_OPTIONS and not {"exec", "x", "dlx"} & set(words):
        return _Kind.BUILDER
    return _Kind.BUILDER if name == "docker" and "compose" in words else _KINDS.get(name)


def _name(word: str) -> str:
    """`/usr/bin/python3.12` is `python`, `tsx@4` is `tsx`; `@playwright/mcp` stays as it is."""
    name = re.sub(r"(?<=.)@.*|\.exe$|\.cmd$", "", word if word.startswith("@") else Path(word).name)
    return re.sub(r"(?<=^python)[\d.]+$|(?<=^pypy)[\d.]+$", "", name)


def _wrapped(words: Sequence[str], start: int) -> int | None:
    return next((place for place in range(start + 1, len(words)) if _name(words[place]) in _KINDS), None)


def _program(words: Sequence[str], start: int) -> int | None:
    """The position of the script, module or package that `words[start]` runs. None if it could be any of the words."""
    name = _name(words[start])
    flags = _FLAGS.get("uv" if name == "uvx" else name)
    takes_code = _KINDS[name] is _Kind.INTERPRETER
    before = ""
    for place in range(start + 1, len(words)):
        word = words[place]
        if before == "--" or _MODULE.fullmatch(before) or (takes_code and _CODE.fullmatch(before)):
            return place
        has_none = _NO_VALUE.fullmatch(before) or (flags is not None and flags.fullmatch(before))
        is_value = before.startswith("-") and not has_none
        before = word
        if word.startswith("-") or is_value or word in _SUBCOMMANDS:
            continue
        if name not in _LOOSE_OPTIONS:
            return place
    return None


def safe_launch(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and variables that keep known launchers from loading code from the folder they start in."""
    safe, env = list(words), {}
    zone = words[: _code_words(words)]
    if {"python", "pypy", "uv", "uvx", "pipx"} & set(map(_name, zone)):
        # With the variable, a script could not import the modules beside it.
        is_script = _is_script(zone, len(zone) - 1) and not zone[-1].startswith("-")
        env = {} if is_script else {"PYTHONSAFEPATH": "1"}
    for place, word in enumerate(zone):
        if _name(word) in ("npx", "npm"):
            # An option, because npm has no variable for it.
            safe.insert(place + 1, f"--prefix={os.sep}")
            break
    return safe, env


def portable_words(words: Sequence[str], folder: Path, root: Path) -> tuple[list[str], list[str]]:
    """The words as typed in `folder`, adapted to work from any folder, and a sentence about each change.

    Relative paths of programs, scripts and files become absolute. Paths of folders in the project at `root` start with
    `${workspaceFolder}`, except where they decide what code runs.
    """
    settled, changes = [], []
    zone = words[: _code_words(words)]
    for place, word in enumerate(words):
        option, sign, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
        is_last = place in (0, len(zone) - 1) and not _is_script(zone, place)
        # A program on PATH, a module or a package.
        is_name = is_last and os.sep not in value and not value.startswith(".")
        is_name = is_name and not (_is_found_by_name(zone, place) and (folder / value).is_file())
        changed = value if is_name else _settled(value, folder, root, is_code=place < len(zone))
        settled.append(f"{option}{sign}{changed}")
        if changed != value:
            each = ", the folder of each project" if changed.startswith(WORKSPACE_FOLDER) else ""
            changes.append(f"{value} is written as {changed}{each}.")
    return settled, changes


def _settled(word: str, folder: Path, root: Path, *, is_code: bool) -> str:
    path = Path(os.path.normpath(folder / word))
    # pathlib raises for a name that is too long, such as a program's text after -c.
    if not word or Path(word).is_absolute() or not os.path.exists(path):  # noqa: PTH110
        return word
    if not is_code and path.is_dir() and path.is_relative_to(root):
        return str(Path(WORKSPACE_FOLDER) / path.relative_to(root))
    return str(path)


def needs_project(words: Sequence[str]) -> bool:
    """Whether it is a server that must start in the project's folder."""
    names = {_unversioned(word) for word in words[: _code_words(words)]}
    return bool(NEEDS_PROJECT & (names | {name.rpartition(os.sep)[2] for name in names}))


def keeps_session(words: Sequence[str]) -> bool:
    """Whether it is a server of `_KEEPS_SESSION`, by its package, image or program, or installed in a folder of that
    name."""
    code = words if _name(words[0]) in ("docker", "podman") else words[: _code_words(words)]
    return any(f"/{known}/" in f"/{_unversioned(word)}/" for word in code for known in _KEEPS_SESSION)


_PIECES = re.compile(r"[\s=,;'\"]+")
_FOLDER_VARIABLES = re.compile(r".*(?:DIR|FOLDER|PATH|ROOT|WORKSPACE|VAULT|REPO).*", re.IGNORECASE)
_MOST_WORDS = 1000
_LONGEST_FILE_NAME = 255


def names_folders(words: Sequence[str], env: Mapping[str, str], start: Path | None) -> bool:
    """Whether an entry tells its server which folders to work on: with a path after the words that decide what code
    runs, or in a variable. A file's path counts too, because a path doesn't show what it is.

    A word without a slash counts if it is a folder in `start`, where the server starts; that reads the disk.
    """
    known = _known_code_words(words)
    rest = words[1 if known is None else known :]
    if known is not None and any(_unversioned(word) in _SERVES_FOLDERS for word in words[:known]):
        return any(not word.startswith("-") for word in rest)
    if len(rest) > _MOST_WORDS or any(_has_path(word) or _is_folder_in(start, word) for word in rest):
        return True
    chosen = [name for name in env if _FOLDER_VARIABLES.fullmatch(name) and not _CODE_VARIABLES.fullmatch(name)]
    return any(_has_path(env[name]) for name in chosen)


def _has_path(text: str) -> bool:
    if WORKSPACE_FOLDER in text or "file:" in text.lower():
        return True
    addresses_removed = (piece for piece in _PIECES.split(text) if "://" not in piece and not piece.startswith("@"))
    parts = (part for piece in addresses_removed for part in piece.split(":"))
    return any(part in (".", "..", "~") or os.sep in part for part in parts)


def _is_folder_in(start: Path | None, word: str) -> bool:
    if start is None or not word or word.startswith("-") or len(word) > _LONGEST_FILE_NAME or "\0" in word:
        return False
    return (start / word).is_dir()


def _unversioned(word: str) -> str:
    return re.sub(r"(?<=.)@[^/]*$|==.*|(?<=[\w-]):[\w.-]+$", "", word)
