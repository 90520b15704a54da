"""What Gemini CLI's `.env` files would add to its environment.

In: an `Order`, the person's home. Out: variables for the run: the person's own file as it is, the project's emptied.
Gemini CLI reads a project's as in a folder that is trusted, and it may name another address for the person's key. A
variable that is there already, be it empty, is left alone. `gemini_launch` is above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from toolcrib.coding_agents.headless import Order
from toolcrib.errors import ConfigError

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What JavaScript takes for blank, in which Gemini CLI is written; Python has other ones."""
_BLANK = f"[{_BLANKS}]"
_BEGIN, _END = "(?<![^\n\u2028\u2029])", "(?![^\n\u2028\u2029])"
_VARIABLE = re.compile(
    rf"{_BEGIN}{_BLANK}*(?:export{_BLANK}+)?([\w.-]+)(?:{_BLANK}*={_BLANK}*?|:{_BLANK}+?)"
    rf"""({_BLANK}*'(?:\\'|[^'])*'|{_BLANK}*"(?:\\"|[^"])*"|{_BLANK}*`(?:\\`|[^`])*`|[^#\r\n]+)?"""
    rf"{_BLANK}*(?:#[^\n\r\u2028\u2029]*)?{_END}",
    re.ASCII,
)
_AROUND = re.compile(rf"^{_BLANK}+|{_BLANK}+\Z")
_QUOTED = re.compile(rf"{_BEGIN}(['\"`])(.*)\1{_END}", re.DOTALL)
_NAMED = re.compile(r"(?<![\w.-])[\w.-]++(?=[^\w.=:-]*+[=:])", re.ASCII)
"""Whatever may be a variable's name, and more: between it and its sign may stand what anybody takes for blank."""
_LARGEST = 1024 * 1024
_MOST = 64 * 1024
"""Characters of names; a program with many more in its environment could not be started."""


def settled(order: Order, home: Path) -> dict[str, str]:
    """Raises ConfigError where a file is too large to be looked through."""
    said = _variables(_text(home / ".gemini" / ".env") or _text(home / ".env"))
    named = {name for file in _of_projects(order.workdir.resolve(), home) for name in _named(file)}
    if sum(map(len, named)) > _MOST:
        raise ConfigError(
            f"The .env files in and above {order.workdir} name too many variables.",
            remedy="Gemini CLI would take them all: move the files out of the way.",
        )
    return {name: value for name, value in {**dict.fromkeys(named, ""), **said}.items() if name not in order.environ}


def _of_projects(workdir: Path, home: Path) -> Iterator[Path]:
    for folder in (workdir, *workdir.parents):
        if folder != home:
            yield folder / ".gemini" / ".env"
            yield folder / ".env"


def _named(file: Path) -> list[str]:
    return _NAMED.findall(_text(file))


def _text(file: Path) -> str:
    """Empty where it cannot be read: Gemini CLI cannot either, and goes on."""
    try:
        if not file.is_file():
            return ""
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"{file} is too large.", remedy="Gemini CLI would read it: move it out of the way.")
        # Unlike `read_text`, which takes some ends of lines for others.
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _variables(text: str) -> dict[str, str]:
    """What a `.env` file says, as Gemini CLI understands it."""
    found = {}
    for name, written in _VARIABLE.findall(re.sub("\r\n?", "\n", text)):
        value = _AROUND.sub("", written)
        bare = _QUOTED.sub(r"\2", value)
        found[name] = bare.replace("\\n", "\n").replace("\\r", "\r") if value.startswith('"') else bare
    return found
