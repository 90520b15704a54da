"""Which of the server's variables may be passed on to commands.

In: a name. Out: why not, or nothing. The values are the person's own; what is refused here would change which code
runs, also in the parts that build the sandbox, or would hand out what is Toolcrib's.
"""

from __future__ import annotations

_OURS = ("TOOLCRIB_",)
_LOADERS = ("LD_", "DYLD_", "PYTHON", "BASH_FUNC_", "GLIBC_", "MALLOC_")
_RUNS_CODE = frozenset(
    {
        "BASHOPTS",
        "BASH_ENV",
        "ENV",
        "GCONV_PATH",
        "IFS",
        "LOCPATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "PERL5LIB",
        "PERL5OPT",
        "PROMPT_COMMAND",
        "PS4",
        "RUBYLIB",
        "RUBYOPT",
        "SHELLOPTS",
    }
)
_SET_INSIDE = frozenset({"HOME", "LOGNAME", "PATH", "PWD", "SHELL", "TEMP", "TMP", "TMPDIR", "USER"})
_GIT_PLAIN = ("GIT_AUTHOR_", "GIT_COMMITTER_")


def why_not_passed(name: str) -> str:
    if name.upper().startswith(_OURS):
        return "What begins with TOOLCRIB_ stays with Toolcrib."
    if name.upper().startswith(_LOADERS) or name.upper() in _RUNS_CODE:
        return "It decides which code programs load."
    if name.startswith("GIT_") and not name.startswith(_GIT_PLAIN):
        return "It decides what git runs; GIT_AUTHOR_* and GIT_COMMITTER_* may be passed on."
    if name in _SET_INSIDE:
        return "The sandbox sets it itself."
    return ""
