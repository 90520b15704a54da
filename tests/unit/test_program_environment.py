"""The environment of a run's program: yours, without the variables of Toolcrib and its servers."""

from __future__ import annotations

import os
import re
import string
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.tool_context import make_files
from toolcrib.coding_agents import program_environment as environment
from toolcrib.coding_agents.program_environment import ProgramEnvironment, program_environment, without_proxy
from toolcrib.config.masking import Masker
from toolcrib.errors import UsageError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-11")

USERS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/me",
    "EDITOR": "vi",
    "OPENAI_API_KEY": "sk-openai-1",
    "ANTHROPIC_API_KEY": "sk-anthropic-1",
    "GITHUB_TOKEN": "ghp_0123456789",
    "TOOLCRIB_HOME": "/home/me/crib",
    "TOOLCRIB_CHILD": "an outer one",
    "TOOLCRIB_TOKEN": "tcb_owner",
}


def claudes(environ: dict[str, str] | None = None, **given: Any) -> ProgramEnvironment:
    """Claude's environment."""
    usual = {"workdir": Path("/nowhere"), "own_tools": OwnTools.EDIT, "withheld": (), "named": (), "file": None}
    return program_environment(
        USERS if environ is None else environ, keeps=("ANTHROPIC_", "CLAUDE_"), **(usual | given)
    )


def refused(reason: str, **given: Any) -> UsageError:
    """The error, which must not contain the values."""
    with pytest.raises(UsageError, match=re.escape(reason)) as caught:
        claudes(**given)
    assert "sesame" not in caught.value.text()
    return caught.value


def env_file(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "vars.env"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    file.chmod(mode)
    return file


def test_variables_of_toolcrib_and_its_servers_are_left_out():
    seen = claudes(withheld={"GITHUB_TOKEN", "NOT_SET"})
    left_out = ("GITHUB_TOKEN", "TOOLCRIB_CHILD", "TOOLCRIB_HOME", "TOOLCRIB_TOKEN")
    assert dict(seen.environ) == {name: value for name, value in USERS.items() if name not in left_out}
    assert (seen.left_out, seen.secrets, seen.warnings) == (left_out, frozenset(), ())


def test_a_program_keeps_its_own_variables_the_home_and_the_path_even_if_a_server_uses_them():
    seen = claudes(withheld={"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HOME", "PATH"})
    assert "OPENAI_API_KEY" not in seen.environ
    for name in ("ANTHROPIC_API_KEY", "HOME", "PATH"):
        assert seen.environ[name] == USERS[name]
    assert seen.secrets == {"sk-anthropic-1"}


def test_a_withheld_variable_that_you_name_is_passed_on_and_masked():
    seen = claudes(withheld={"GITHUB_TOKEN"}, named=["GITHUB_TOKEN", "EDITOR"])
    assert seen.environ["GITHUB_TOKEN"] == "ghp_0123456789"
    assert Masker(seen.secrets).known("ghp_0123456789 in vi") == "**** in vi", "short values are not masked"
    assert "GITHUB_TOKEN" not in seen.left_out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NOT_SET", "NOT_SET is not set"),
        ("KEY=sesame-open", "takes only a name (KEY)"),
        ("=sesame-open", "takes only a name,"),
        ("", "not a valid variable name"),
        ("two words", "not a valid variable name"),
        ("9LIVES", "not a valid variable name"),
        ("TOOLCRIB_HOME", "belongs to Toolcrib"),
    ],
)
def test_an_invalid_name_is_refused_without_its_value(name: str, reason: str):
    assert refused(reason, named=[name]).remedy


def test_relative_folders_are_removed_from_path():
    seen = claudes({"PATH": "./node_modules/.bin:/usr/bin::.:bin:/bin"})
    assert seen.environ["PATH"] == "/usr/bin:/bin"
    assert len(seen.warnings) == 1
    assert claudes({"PATH": "."}).environ["PATH"] == os.defpath, "an empty PATH is the working folder"
    assert claudes({}).environ == {"PATH": os.defpath}, "a project's file could set it"


@pytest.mark.parametrize("own_tools", [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT])
def test_below_all_the_projects_folders_are_removed_from_path_with_a_warning(tmp_path: Path, own_tools: OwnTools):
    project = tmp_path / "project"
    make_files(project, {"sub/x": "", ".git/HEAD": "ref: refs/heads/main\n"})
    (tmp_path / "way").symlink_to(project)
    (tmp_path / "round").symlink_to("round")
    own = [f"{project}/node_modules/.bin", f"{tmp_path}/way/.venv/bin", f"{tmp_path}/x/../project", f"{project}/sub"]
    path = os.pathsep.join([own[0], "/usr/bin", *own[1:], f"{tmp_path}/project-2/bin", f"{tmp_path}/round"])
    environ = {"PATH": path, "HOME": str(tmp_path / "home")}
    seen = claudes(environ, workdir=project / "sub", own_tools=own_tools)
    assert seen.environ["PATH"] == f"/usr/bin:{tmp_path}/project-2/bin:{tmp_path}/round"
    assert len(seen.warnings) == 1
    assert all(folder in seen.warnings[0] for folder in own)
    everything = claudes(environ, workdir=project / "sub", own_tools=OwnTools.ALL)
    assert (everything.environ["PATH"], everything.warnings) == (path, ())
    only = claudes({"PATH": f"{project}/bin", "HOME": "/home/me"}, workdir=project, own_tools=own_tools)
    assert only.environ["PATH"] == os.defpath


@pytest.mark.parametrize(
    ("given_proxy", "upper", "lower"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy:1", "NO_PROXY": ""}, "127.0.0.1", "127.0.0.1"),
        ({"NO_PROXY": "a,b"}, "a,b,127.0.0.1", "a,b,127.0.0.1"),
        ({"no_proxy": "c"}, "c,127.0.0.1", "c,127.0.0.1"),
        ({"NO_PROXY": "a", "no_proxy": "c"}, "a,127.0.0.1", "c,127.0.0.1"),
        ({"NO_PROXY": "*"}, "*", "*"),
    ],
)
def test_no_proxy_is_used_for_toolcrib(given_proxy: dict[str, str], upper: str, lower: str):
    environ = USERS | given_proxy
    assert without_proxy(environ, "http://127.0.0.1:4911/mcp") == environ | {"NO_PROXY": upper, "no_proxy": lower}
    assert without_proxy(environ, "") == environ


FILE = """\ufeff# a comment\r
\n   \t
OPENAI_API_KEY=from-the-file\r
export SINGLE='a # b \\n $HOME'   # comment
  DOUBLE = "say \\"hi\\"\\nsecond line \\\\ \\$ \\q"
PLAIN= with blanks within   # comment
HASH=#no-comment#either
EMPTY=
COMMENTED= # nothing
URL=postgres://u:p@h/db?x=1=2
TWICE=first
TWICE=second
LAST=x'y"z"""


def test_values_of_a_file_override_others_and_are_masked(tmp_path: Path):
    environ = {"PATH": "/bin", "OPENAI_API_KEY": "from-the-shell"}
    seen = claudes(environ, named=["OPENAI_API_KEY"], file=env_file(tmp_path, FILE))
    assert dict(seen.environ) == {
        "PATH": "/bin",
        "OPENAI_API_KEY": "from-the-file",
        "SINGLE": "a # b \\n $HOME",
        "DOUBLE": 'say "hi"\nsecond line \\ $ \\q',
        "PLAIN": "with blanks within",
        "HASH": "#no-comment#either",
        "EMPTY": "",
        "COMMENTED": "",
        "URL": "postgres://u:p@h/db?x=1=2",
        "TWICE": "second",
        "LAST": "x'y\"z",
    }
    printed = ["from-the-file", "postgres://u:p@h/db?x=1=2", "second line \\ $ \\q", 'say "hi"']
    assert [Masker(seen.secrets).known(line) for line in printed] == ["****"] * 4
    assert seen.warnings == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"sesame", "it has no ="),
        (b"se same=x", "not a valid variable name"),
        (b"=sesame", "not a valid variable name"),
        (b"A='sesame", "a quote is not closed"),
        (b'A="sesame\\"', "a quote is not closed"),
        (b'A="sesame" sesame', "text after the closing quote"),
        (b"A=sesame\0sesame", "a null character"),
        (b"A=sesame\xff", "not UTF-8"),
        (b"TOOLCRIB_HOME=sesame", "Toolcrib's variables"),
    ],
)
def test_a_mistake_in_a_file_names_file_and_line_but_not_the_content(tmp_path: Path, line: bytes, reason: str):
    file = env_file(tmp_path, b"# one\nGOOD=1\n" + line + b"\nMORE=2\n")
    error = refused(reason, file=file)
    assert f"{file}, line 3: " in error.message
    assert error.__cause__ is None


def test_a_file_that_every_user_can_read_or_change_causes_a_warning(tmp_path: Path):
    for mode, reported in ((0o600, ""), (0o640, ""), (0o644, "read"), (0o666, "change")):
        seen = claudes(file=env_file(tmp_path, "A=1", mode))
        assert bool(seen.warnings) == bool(reported)
        assert all(f"can {reported} {tmp_path}" in warning for warning in seen.warnings)


def test_a_missing_folder_like_or_too_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for file in (tmp_path / "none", tmp_path, Path("a\0b"), tmp_path / ("x" * 300)):
        refused("cannot be read", file=file)
    monkeypatch.setattr(environment, "MAX_FILE_SIZE", 100)
    assert claudes({}, file=env_file(tmp_path, "A=" + "x" * 98)).environ["A"] == "x" * 98
    refused("larger than", file=env_file(tmp_path, "A=" + "x" * 99))
    refused("larger than", file=Path("/dev/zero"))


def test_a_pipe_keeps_secrets_off_the_disk(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    writer = threading.Thread(target=fifo.write_text, args=("A=one\nB=two\n",), daemon=True)
    writer.start()
    assert claudes({"PATH": "/bin"}, file=fifo).environ == {"PATH": "/bin", "A": "one", "B": "two"}
    writer.join(60)


letters = string.ascii_letters + "_"
names = st.builds(str.__add__, st.sampled_from(letters), st.text(letters + string.digits, max_size=20)).filter(
    lambda name: not name.startswith("TOOLCRIB")
)
values = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=("Cs",)), max_size=60)
plain_values = st.text(letters + string.digits + "./:@%+,=-", max_size=40)


@given(
    quoted=st.dictionaries(names, values, max_size=8),
    plain=st.dictionaries(names, plain_values, max_size=5),
    before=st.sampled_from(["", "export ", "  ", "export\t"]),
)
def test_quoted_and_plain_values_are_read_unchanged(quoted: dict[str, str], plain: dict[str, str], before: str):
    content = "".join(f"{name}={value}\n" for name, value in plain.items())
    for name, value in quoted.items():
        escaped = re.sub(r'(["\\])', r"\\\1", value)
        content += f'{before}{name}="{escaped}"  # it\n'
    assert environment._parsed(content.encode(), Path("f")) == plain | quoted


@given(st.binary(max_size=300) | st.text("AB='\"\\# \t\r\nexport$", max_size=80).map(str.encode))
def test_any_file_gives_usable_variables_or_an_error_with_a_line(content: bytes):
    try:
        found = environment._parsed(content, Path("f"))
    except UsageError as error:
        assert re.match(r"f, line \d+: ", error.message)
        return
    for name, value in found.items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        assert "\0" not in name + value


def test_a_shell_reads_quotes_the_same(tmp_path: Path):
    file = env_file(tmp_path, 'A=\'it is # so\'\nexport B="a \\"b\\" \\\\ \\$HOME"\nC=plain#word # comment\nD=\nE=#x\n')
    ours = claudes({}, file=file).environ
    script = f'. "{file}"; for v in "$A" "$B" "$C" "$D" "$E"; do printf "%s\\n" "$v"; done'
    output = subprocess.check_output(["/bin/sh", "-c", script], text=True, env={}, timeout=60)
    assert output.split("\n")[:-1] == [ours[name] for name in "ABCDE"]
