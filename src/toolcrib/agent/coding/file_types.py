"""Kinds of files by the names that ripgrep has for them.

In: a name such as `py`. Out: globs. `grep` asks.
"""

from __future__ import annotations

from types import MappingProxyType

from toolcrib.errors import WorkspaceError

_ENDINGS = {
    "c": "c h",
    "cpp": "cc cpp cxx c++ hh hpp hxx h inl",
    "cs": "cs",
    "css": "css scss",
    "dart": "dart",
    "elixir": "ex exs eex heex",
    "go": "go",
    "haskell": "hs lhs",
    "html": "htm html ejs",
    "java": "java jsp",
    "js": "js jsx mjs cjs vue",
    "json": "json",
    "kotlin": "kt kts",
    "lua": "lua",
    "md": "md mdx markdown mkd",
    "php": "php phtml",
    "py": "py pyi",
    "r": "R r Rmd",
    "ruby": "rb gemspec rbw",
    "rust": "rs",
    "scala": "scala sbt",
    "sh": "sh bash zsh ksh",
    "sql": "sql",
    "svelte": "svelte",
    "swift": "swift",
    "toml": "toml",
    "ts": "ts tsx mts cts",
    "txt": "txt",
    "vue": "vue",
    "xml": "xml xsd xsl svg",
    "yaml": "yaml yml",
    "zig": "zig",
}
_ALSO = {
    "bash": "sh",
    "c++": "cpp",
    "csharp": "cs",
    "javascript": "js",
    "kt": "kotlin",
    "markdown": "md",
    "python": "py",
    "rb": "ruby",
    "rs": "rust",
    "shell": "sh",
    "tsx": "ts",
    "typescript": "ts",
    "jsx": "js",
    "yml": "yaml",
}
TYPES = MappingProxyType({name: tuple(f"*.{ending}" for ending in text.split()) for name, text in _ENDINGS.items()})


def globs_of(name: str) -> tuple[str, ...]:
    """Of no kind: all files."""
    if not name:
        return ()
    known = TYPES.get(_ALSO.get(name.lower(), name.lower()))
    if known is None:
        raise WorkspaceError(
            f"There is no file type {name[:40]!r}.", remedy=f"Known are {', '.join(TYPES)}; glob takes any other."
        )
    return known
