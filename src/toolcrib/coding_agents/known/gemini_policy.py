"""What Gemini CLI may do by its own hands below `all`, as rules in a file of ours.

In: the tools that it is given, other names of the folders that are kept from it. Out: the file's text. The rules stand
above the person's own and any approval mode; of a file's path they see what the model wrote, and not where it leads.
`gemini_launch` is above.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from toolcrib.coding_agents.client import SERVER_NAME
from toolcrib.coding_agents.links import Aliases, aliases_of
from toolcrib.config.paths import PROJECT_FOLDER

EDITS = ("replace", "write_file")
KEPT_FROM_IT = (PROJECT_FOLDER, ".gemini")
"""Where it is settled what the workspace may do, and what Gemini CLI does in later runs."""
_NOT_INTO = (".git", "node_modules")
"""Gemini CLI writes nothing there itself; but through a link there, elsewhere."""


def aliases(workdir: Path) -> Aliases:
    """Links by which it would write where it may not. Raises UsageError."""
    return aliases_of(KEPT_FROM_IT, workdir, not_into=_NOT_INTO)


def policy(own: tuple[str, ...], links: Collection[str], guarded: Collection[str] = ()) -> str:
    """`links`: names that count as those of the kept folders. `guarded`: names of what it does not write either."""
    rules = (
        f'mcpName = "{SERVER_NAME}"\ntoolName = "*"\ndecision = "allow"\npriority = 999\n',
        *(_never(pattern) for pattern in (_NAMES_THEM, *_name_these((*_NOT_INTO, "HEAD", *guarded, *sorted(links))))),
        f'toolName = {json.dumps(own)}\ndecision = "allow"\npriority = 998\n',
        'toolName = "*"\ndecision = "deny"\npriority = 997\n',
    )
    return "\n".join(f"[[rule]]\n{rule}" for rule in rules)


def _never(pattern: str) -> str:
    return f"toolName = {json.dumps(EDITS)}\nargsPattern = '{pattern}'\ndecision = \"deny\"\npriority = 999\n"


def _name_these(names: Iterable[str]) -> Iterator[str]:
    """One pattern each: a long one would be passed over."""
    for name in names:
        # The disk may take two ways to write an accent for the same.
        for written in sorted({unicodedata.normalize(form, name) for form in ("NFC", "NFD")}):
            yield rf'"file_path":"(|[^"\\]*[/@]){_either_case(written)}[/"]'


def _either_case(name: str) -> str:
    return "".join(_character(letter) for letter in name)


def _character(letter: str) -> str:
    forms = {form for form in (letter, letter.lower(), letter.upper()) if len(form) == 1}
    written = sorted(map(_escaped, forms))
    return written[0] if len(written) == 1 else f"[{''.join(written)}]"


def _escaped(letter: str) -> str:
    """As JavaScript's patterns have it, and so that nothing in it ends the text that it stands in."""
    if letter.isascii() and letter.isalnum():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


_NAMES_THEM = r'"file_path":"[^"\\]*(\\|%[0-9a-fA-F][0-9a-fA-F]|({})[/"])'.format(
    "|".join(_either_case(name) for name in KEPT_FROM_IT)
)
"""Arguments with one of these folders, however the disk takes small letters; or with what may be one in a writing that
only Gemini CLI undoes."""
