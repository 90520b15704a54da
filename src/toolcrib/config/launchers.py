"""Recognizes programs that fetch a server or its dependencies before they run it, such as `npx` and `uv run`.

In: a command line. Out: a `PackageLaunch`, or None for any other program. `entries` gives such a server more time to
connect; `servers` shows that it is being installed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

INSTALL_LIMIT = 180.0
"""The default `connect_timeout` of a server that a launcher starts."""

_UV_RUN = ("uv", ("run",))
_SUBCOMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("npx", "uvx", "bunx", "pnpx"), ((),)),
    "uv": (("tool", "run"), ("run",)),
    "pipx": (("run",),),
    "bun": (("x",),),
    "npm": (("exec",), ("x",)),
    "pnpm": (("dlx",),),
    "yarn": (("dlx",),),
    **dict.fromkeys(("docker", "podman"), (("run",), ("container", "run"))),
}
"""Each launcher's subcommands that fetch and run something."""
_WITHOUT_VALUE = re.compile(
    r"-[yqsidt]+|--(?:yes|quiet|silent|verbose|offline|prefer-\w+|isolated|rm|init|interactive|tty|no-.+)"
)
"""For any other option without `=`, the next word counts as its value."""
_NAMES_PACKAGE = frozenset({"-p", "--package", "--from", "--spec", "--with"})


@dataclass(frozen=True)
class PackageLaunch:
    """Two starts with the same values fetch the same package."""

    launcher: str
    package: str


def launch_of(command: str, args: Sequence[str]) -> PackageLaunch | None:
    if PurePath(command).name == "env":
        command, *args = [*itertools.dropwhile(lambda word: "=" in word, _after_options(args)[0])] or [command]
    program = PurePath(command).name.removesuffix(".exe").removesuffix(".cmd")
    for subcommand in _SUBCOMMANDS.get(program, ()):
        rest = _after_options(args)[0] if subcommand else list(args)
        if tuple(rest[: len(subcommand)]) == subcommand:
            words, named = _after_options(rest[len(subcommand) :])
            # The folder and other options of `uv run` determine what it installs.
            package = args if (program, subcommand) == _UV_RUN else (*named, *words[:1])
            return PackageLaunch(" ".join((program, *subcommand)), " ".join(package))
    return None


def _after_options(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words from the first one that is no option, and the packages that options name."""
    words, packages = list(args), list[str]()
    while words and words[0].startswith("-"):
        option, sign, value = words.pop(0).partition("=")
        if option == "--":
            break
        if not sign and words and not _WITHOUT_VALUE.fullmatch(option):
            value = words.pop(0)
        if option in _NAMES_PACKAGE:
            packages.append(value)
    return words, packages
