"""A run's program sees the person's environment without what is Toolcrib's and its servers' alone."""

from __future__ import annotations

import os
import re
import string
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.coding_agents import program_environment as environment
from toolcrib.coding_agents.program_environment import ProgramEnvironment, program_environment, without_proxy
from toolcrib.config.masking import Masker
from toolcrib.errors import UsageError
from toolcrib.policy.profile import OwnTools

pytestmark = pytest.mark.req("FRG-11")

PERSONS = {
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


def given_to_claude(
    environ: dict[str, str] | None = None,
    *,
    withheld: Iterable[str] = (),
    named: Iterable[str] = (),
    file: Path | None = None,
    workdir: Path = Path("/nowhere"),
    own_tools: OwnTools = OwnTools.EDIT,
) -> ProgramEnvironment:
    return program_environment(
        PERSONS if environ is None else environ,
        workdir=workdir,
        own_tools=own_tools,
        keeps=("ANTHROPIC_", "CLAUDE_"),
        withheld=withheld,
        named=named,
        file=file,
    )


def env_file(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "vars.env"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    file.chmod(mode)
    return file


def test_the_person_s_environment_comes_without_what_is_ours_and_our_servers() -> None:
    seen = given_to_claude(withheld={"GITHUB_TOKEN", "NOT_SET"})
    assert dict(seen.environ) == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/me",
        "EDITOR": "vi",
        "OPENAI_API_KEY": "sk-openai-1",
        "ANTHROPIC_API_KEY": "sk-anthropic-1",
    }
    assert seen.left_out == ("GITHUB_TOKEN", "TOOLCRIB_CHILD", "TOOLCRIB_HOME", "TOOLCRIB_TOKEN")
    assert seen.secrets == frozenset()
    assert seen.warnings == ()


def test_the_program_keeps_its_own_variables_although_a_server_uses_them_and_they_are_masked() -> None:
    seen = given_to_claude(withheld={"ANTHROPIC_API_KEY", "OPENAI_API_KEY"})
    assert seen.environ["ANTHROPIC_API_KEY"] == "sk-anthropic-1"
    assert "OPENAI_API_KEY" not in seen.environ
    assert seen.secrets == {"sk-anthropic-1"}


def test_a_server_that_refers_to_the_home_or_path_does_not_take_them_from_the_program() -> None:
    seen = given_to_claude(withheld={"HOME", "PATH"})
    assert seen.environ["HOME"] == "/home/me"
    assert seen.environ["PATH"] == "/usr/bin:/bin"
    assert seen.secrets == frozenset()


def test_a_withheld_variable_that_was_named_is_passed_on_and_masked() -> None:
    seen = given_to_claude(withheld={"GITHUB_TOKEN"}, named=["GITHUB_TOKEN", "EDITOR"])
    assert seen.environ["GITHUB_TOKEN"] == "ghp_0123456789"
    masked = Masker(seen.secrets).known("ghp_0123456789 in vi")
    assert masked == "**** in vi", "what is too short to be a secret would spoil every text"
    assert "GITHUB_TOKEN" not in seen.left_out


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NOT_SET", "NOT_SET is not set"),
        ("KEY=sesame-open", "takes only a name, here KEY"),
        ("=sesame-open", "takes only a name:"),
        ("", "not a valid variable name"),
        ("two words", "not a valid variable name"),
        ("9LIVES", "not a valid variable name"),
        ("TOOLCRIB_HOME", "belongs to Toolcrib"),
    ],
)
def test_what_cannot_be_passed_on_by_name_is_refused_without_its_value(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as refused:
        given_to_claude(named=[name])
    assert "sesame" not in refused.value.text()
    assert refused.value.remedy


def test_folders_in_path_that_would_be_the_project_s_are_not_passed_on() -> None:
    seen = given_to_claude({"PATH": "./node_modules/.bin:/usr/bin::.:bin:/bin"})
    assert seen.environ["PATH"] == "/usr/bin:/bin"
    assert len(seen.warnings) == 1
    assert given_to_claude({"PATH": "."}).environ["PATH"] == os.defpath, "an empty one would be the working folder"
    assert given_to_claude({}).environ == {"PATH": os.defpath}, "a file of the project's may name it otherwise"


@pytest.mark.parametrize("own_tools", [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT])
def test_below_all_the_projects_folders_are_removed_from_path_with_a_warning(
    tmp_path: Path, own_tools: OwnTools
) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "way").symlink_to(project)
    (tmp_path / "round").symlink_to("round")
    own = [f"{project}/node_modules/.bin", f"{tmp_path}/way/.venv/bin", f"{tmp_path}/x/../project", f"{project}/sub"]
    path = os.pathsep.join([own[0], "/usr/bin", *own[1:], f"{tmp_path}/project-2/bin", f"{tmp_path}/round"])
    environ = {"PATH": path, "HOME": str(tmp_path / "home")}
    seen = given_to_claude(environ, workdir=project / "sub", own_tools=own_tools)
    assert seen.environ["PATH"] == f"/usr/bin:{tmp_path}/project-2/bin:{tmp_path}/round"
    assert len(seen.warnings) == 1
    assert all(folder in seen.warnings[0] for folder in own)
    everything = given_to_claude(environ, workdir=project / "sub", own_tools=OwnTools.ALL)
    assert (everything.environ["PATH"], everything.warnings) == (path, ())


def test_a_path_with_the_project_s_folders_alone_becomes_the_usual_one(tmp_path: Path) -> None:
    seen = given_to_claude({"PATH": f"{tmp_path}/bin", "HOME": "/home/me"}, workdir=tmp_path)
    assert seen.environ["PATH"] == os.defpath


@pytest.mark.parametrize(
    ("output", "upper", "lower"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy:1", "NO_PROXY": ""}, "127.0.0.1", "127.0.0.1"),
        ({"NO_PROXY": "a,b"}, "a,b,127.0.0.1", "a,b,127.0.0.1"),
        ({"no_proxy": "c"}, "c,127.0.0.1", "c,127.0.0.1"),
        ({"NO_PROXY": "a", "no_proxy": "c"}, "a,127.0.0.1", "c,127.0.0.1"),
        ({"NO_PROXY": "*"}, "*", "*"),
    ],
)
def test_no_proxy_is_used_for_toolcrib(output: dict[str, str], upper: str, lower: str) -> None:
    wanted = {**PERSONS, **output, "NO_PROXY": upper, "no_proxy": lower}
    assert without_proxy({**PERSONS, **output}, "http://127.0.0.1:4911/mcp") == wanted
    assert without_proxy({**PERSONS, **output}, "") == {**PERSONS, **output}


def test_a_file_s_values_win_and_are_masked(tmp_path: Path) -> None:
    file = env_file(
        tmp_path,
        "\ufeff# a comment\r\n"
        "\n"
        "   \t\n"
        "OPENAI_API_KEY=from-the-file\r\n"
        "export SINGLE='a # b \\n $HOME'   # comment\n"
        '  DOUBLE = "say \\"hi\\"\\nsecond line \\\\ \\$ \\q"\n'
        "PLAIN= with blanks within   # comment\n"
        "HASH=#no-comment#either\n"
        "EMPTY=\n"
        "COMMENTED= # nothing\n"
        "URL=postgres://u:p@h/db?x=1=2\n"
        "TWICE=first\n"
        "TWICE=second\n"
        "LAST=x'y\"z",
    )
    given = {"PATH": "/bin", "OPENAI_API_KEY": "from-the-shell"}
    seen = given_to_claude(given, named=["OPENAI_API_KEY"], file=file)
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
    ("line", "why"),
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
def test_a_mistake_in_a_file_names_file_and_line_but_not_the_content(tmp_path: Path, line: bytes, why: str) -> None:
    file = env_file(tmp_path, b"# one\nGOOD=1\n" + line + b"\nMORE=2\n")
    with pytest.raises(UsageError, match=re.escape(why)) as refused:
        given_to_claude(file=file)
    assert f"{file}, line 3: " in refused.value.message
    assert "sesame" not in refused.value.text()
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(("mode", "reported"), [(0o600, ""), (0o640, ""), (0o644, "read"), (0o666, "change")])
def test_a_file_that_every_user_can_read_or_change_is_warned_of(tmp_path: Path, mode: int, reported: str) -> None:
    seen = given_to_claude(file=env_file(tmp_path, "A=1", mode))
    assert bool(seen.warnings) == bool(reported)
    assert all(f"can {reported} {tmp_path}" in warning for warning in seen.warnings)


def test_a_file_that_is_missing_a_folder_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (tmp_path / "none", tmp_path, Path("a\0b"), tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match="cannot be read"):
            given_to_claude(file=file)
    monkeypatch.setattr(environment, "MAX_FILE_SIZE", 100)
    assert given_to_claude({}, file=env_file(tmp_path, "A=" + "x" * 98)).environ["A"] == "x" * 98
    with pytest.raises(UsageError, match="larger than"):
        given_to_claude(file=env_file(tmp_path, "A=" + "x" * 99))
    with pytest.raises(UsageError, match="larger than"):
        given_to_claude(file=Path("/dev/zero"))


def test_a_pipe_will_do_so_that_secrets_need_not_lie_on_the_disk(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    writer = threading.Thread(target=fifo.write_text, args=("A=one\nB=two\n",), daemon=True)
    writer.start()
    assert given_to_claude({"PATH": "/bin"}, file=fifo).environ == {"PATH": "/bin", "A": "one", "B": "two"}
    writer.join(60)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: not name.startswith("TOOLCRIB")
)
values = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=("Cs",)), max_size=60)


def quoted(value: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


@given(st.dictionaries(names, values, max_size=8), st.sampled_from(["", "export ", "  ", "export\t"]))
def test_what_is_quoted_comes_out_as_it_went_in(entries: dict[str, str], before: str) -> None:
    content = "".join(f"{before}{name}={quoted(value)}  # it\n" for name, value in entries.items())
    assert environment._parsed(content.encode(), Path("f")) == entries


@given(st.dictionaries(names, st.text(string.ascii_letters + string.digits + "_./:@%+,=-", max_size=40), max_size=5))
def test_plain_values_mean_the_same_as_in_a_shell(entries: dict[str, str]) -> None:
    content = "".join(f"{name}={value}\n" for name, value in entries.items())
    assert environment._parsed(content.encode(), Path("f")) == entries


@given(st.binary(max_size=300) | st.text("AB='\"\\# \t\r\nexport$", max_size=80).map(str.encode))
def test_whatever_a_file_holds_gives_usable_variables_or_an_error_with_a_line(content: bytes) -> None:
    try:
        found = environment._parsed(content, Path("f"))
    except UsageError as error:
        assert re.match(r"f, line \d+: ", error.message)
        return
    for name, value in found.items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        assert "\0" not in name + value


def test_a_shell_reads_a_file_with_quotes_as_we_do(tmp_path: Path) -> None:
    file = env_file(tmp_path, 'A=\'it is # so\'\nexport B="a \\"b\\" \\\\ \\$HOME"\nC=plain#word # comment\nD=\nE=#x\n')
    ours = given_to_claude({}, file=file).environ
    script = f'. "{file}"; for v in "$A" "$B" "$C" "$D" "$E"; do printf "%s\\n" "$v"; done'
    output = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, env={}, timeout=60, check=True)
    assert output.stdout.split("\n")[:-1] == [ours[name] for name in "ABCDE"]
