"""What a project tells a program by its `AGENTS.md` or the like, where the program itself must not read it.

In: the folder of a run, names of files. Out: their text, to be put before the prompt in Codex's form. Codex leaves out
the instructions of a project that it does not trust together with the project's settings, but only these are hostile.
Claude Code and Gemini CLI would also read every file that such instructions import. Each program's `launch` is above.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.paths import project_of

_NAMES: tuple[str, ...] = ("AGENTS.override.md", "AGENTS.md")
"""In each folder the first that is there counts alone."""
_BYTES = 32 * 1024
"""Of all of them; the rest is cut off."""
_END = re.compile(r"</(?=\s*INSTRUCTIONS\s*>)", re.IGNORECASE)


def before_prompt(workdir: Path, settings: Iterable[Mapping[str, Any]]) -> str:
    """Empty where the project tells nothing. `settings`: those that Codex will read; later ones stand above earlier
    ones."""
    names, size = _NAMES, _BYTES
    for one in settings:
        names = _names(one.get("project_doc_fallback_filenames"), names)
        size = _size(one.get("project_doc_max_bytes"), size)
    text = project_text(workdir, names, size)
    if not text:
        return ""
    # What the project says must not look as if it were the prompt.
    said = _END.sub(r"<\\/", text)
    return f"# AGENTS.md instructions for {workdir.resolve()}\n\n<INSTRUCTIONS>\n{said}\n</INSTRUCTIONS>\n\n"


def project_text(workdir: Path, names: tuple[str, ...], size: int = _BYTES) -> str:
    """Of the files of these names from the project's root down to the folder; of each folder's the first alone."""
    texts, left = [], size
    for file in _files(workdir, names):
        content = _start(file, left)
        text = content.decode(errors="replace")
        if text.strip():
            texts.append(text)
            left -= len(content)
    return "\n\n".join(texts)


def _names(given: object, before: tuple[str, ...]) -> tuple[str, ...]:
    more = [name for name in given if isinstance(name, str) and name] if isinstance(given, list) else None
    return before if more is None else (*_NAMES, *more)


def _size(given: object, before: int) -> int:
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else before


def _files(workdir: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """From the project's root down to the folder."""
    root, here = project_of(workdir), workdir.resolve()
    for folder in reversed((here, *here.parents)):
        if folder.is_relative_to(root):
            found = (inside(folder / name, root) for name in names)
            yield from [file for file in found if file is not None][:1]


def inside(file: Path, root: Path) -> Path | None:
    """The file itself, whatever links lead there; None if there is none, or not in the project. A link may lead to
    another text of this kind (`CLAUDE.md` to `AGENTS.md`), but to no other file."""
    try:
        real = file.resolve(strict=True)
        return real if real.is_relative_to(root) and real.suffix == file.suffix and real.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _start(file: Path, size: int) -> bytes:
    """Empty where it cannot be read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            return opened.read(size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
