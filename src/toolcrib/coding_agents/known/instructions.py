"""A project's instructions (`AGENTS.md` and similar), for programs that must not read the files themselves.

In: a run's folder, file names. Out: the files' text, which goes before the prompt in Codex's format. In an untrusted
project, Codex ignores both settings and instructions, although only the settings are dangerous. Claude Code and Gemini
CLI would also read every file that the instructions import. Used by each program's `launch`.
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
"""Only the first existing file of each folder counts."""
_MAX_SIZE = 32 * 1024
"""Bytes of all files together; the rest is cut off."""
_END = re.compile(r"</(?=\s*INSTRUCTIONS\s*>)", re.IGNORECASE)


def before_prompt(workdir: Path, settings: Iterable[Mapping[str, Any]]) -> str:
    """Empty if the project has no instructions. `settings`: as Codex reads them; later ones override earlier ones."""
    names, size = _NAMES, _MAX_SIZE
    for layer in settings:
        names = _names(layer.get("project_doc_fallback_filenames"), names)
        size = _size(layer.get("project_doc_max_bytes"), size)
    text = project_text(workdir, names, size)
    if not text:
        return ""
    # The project's text must not pose as the prompt.
    text = _END.sub(r"<\\/", text)
    return f"# AGENTS.md instructions for {workdir.resolve()}\n\n<INSTRUCTIONS>\n{text}\n</INSTRUCTIONS>\n\n"


def project_text(workdir: Path, names: tuple[str, ...], size: int = _MAX_SIZE) -> str:
    """The text of these files from the project's root down to the folder; only the first of each folder."""
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
    """The file with links resolved; None if it doesn't exist or is outside the project. A link's target must have the
    same suffix (`CLAUDE.md` to `AGENTS.md`)."""
    try:
        real = file.resolve(strict=True)
        return real if real.is_relative_to(root) and real.suffix == file.suffix and real.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _start(file: Path, size: int) -> bytes:
    """Empty if it cannot be read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            return opened.read(size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
