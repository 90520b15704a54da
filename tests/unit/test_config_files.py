"""Files as they come: two formats, every way of being broken, always with the place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib.config.layers import load
from toolcrib.config.model import Config, Problem, Severity
from toolcrib.config.paths import Paths

GOOD = '{"servers": {"good": {"command": "true"}}}'


def load_file(folder: Path, name: str, content: str | bytes) -> Config:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return load(paths=Paths.of_user({"TOOLCRIB_HOME": str(folder)}), root=None, environ={})


def only_error(config: Config) -> Problem:
    (problem,) = [problem for problem in config.problems if problem.severity is Severity.ERROR]
    return problem


def test_no_file_is_an_empty_configuration_without_problems(tmp_path: Path) -> None:
    config = load(paths=Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)}), root=None, environ={})
    assert (dict(config.servers), config.problems) == ({}, ())


@pytest.mark.parametrize("name", ["config.yml", "config.yaml", "config.json"])
@pytest.mark.parametrize("content", ["", " \n\n", "\ufeff"])
def test_an_empty_file_is_an_empty_configuration(tmp_path: Path, name: str, content: str) -> None:
    config = load_file(tmp_path, name, content)
    assert (dict(config.servers), config.problems) == ({}, ())


@pytest.mark.parametrize("name", ["config.yml", "config.yaml", "config.json"])
def test_each_file_name_is_read(tmp_path: Path, name: str) -> None:
    assert list(load_file(tmp_path, name, "\ufeff" + GOOD).servers) == ["good"]


def test_a_second_file_beside_the_first_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(GOOD)
    config = load_file(tmp_path, "config.yml", "servers: {}")
    (problem,) = config.problems
    assert (problem.severity, "config.json" in problem.found) == (Severity.WARNING, True)
    assert config.servers == {}


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("config.json", '{"servers": {\n  "a": {"command": "x",}}}', 2),
        ("config.json", '{"servers":\n\n nonsense}', 3),
        ("config.json", b'{"servers": {}}\n\xff', 2),
        ("config.json", '{"port": NaN}', None),
        ("config.json", '{"port": ' + "9" * 5000 + "}", None),
        ("config.json", "[" * 100_000, None),
        ("config.json", '{"a":\n' * 100 + "1" + "}" * 100, 65),
        ("config.json", "[]", 1),
        ("config.json", '"text"', 1),
        ("config.yml", "servers:\n  a: [1, 2\n", 3),
        ("config.yml", "servers:\n\ta: 1\n", 2),
        ("config.yml", b"servers: {}\n# \xe9\n", 2),
        ("config.yml", "a: \x01", None),
        ("config.yml", "[" * 100_000, 1),
        ("config.yml", "- " * 100_000, 1),
        ("config.yml", "a: 1\n---\nb: 2\n", 2),
        ("config.yml", "- a\n- b\n", 1),
        ("config.yml", "just text\n", 1),
        ("config.yml", "servers:\n  a: !!python/object/apply:os.system ['true']\n", 2),
        ("config.yml", "a: *nowhere\n", 1),
        ("config.yml", "a: &a\n  b: *a\n", 2),
        ("config.yml", "? [a, b]\n: c\n", 1),
        ("config.yml", "a:\n  <<: 3\n", 2),
    ],
)
def test_a_file_that_cannot_be_used_is_one_error_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, line: int | None
) -> None:
    config = load_file(tmp_path, name, content)
    problem = only_error(config)
    assert (problem.file, problem.line) == (str(tmp_path / name), line)
    assert config.servers == {}


@pytest.mark.req("BNS-10")
def test_aliases_that_multiply_are_stopped(tmp_path: Path) -> None:
    rows = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "values" in only_error(load_file(tmp_path, "config.yml", "\n".join(rows))).found


@pytest.mark.req("BNS-10")
def test_an_alias_inside_what_it_names_is_told_as_such(tmp_path: Path) -> None:
    assert "alias inside" in only_error(load_file(tmp_path, "config.yml", "a: &a\n  b: *a\n")).found


@pytest.mark.req("BNS-10")
@pytest.mark.timeout(20)
def test_many_aliases_cost_little(tmp_path: Path) -> None:
    text = "a: &a {x: [1, 2, 3]}\nb: [" + "*a, " * 6_000 + "*a]\nservers: {good: {command: x}}\n"
    assert list(load_file(tmp_path, "config.yml", text).servers) == ["good"]


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    assert "too large" in only_error(load_file(tmp_path, "config.yml", b"#" * (1024 * 1024 + 1))).found


def test_a_folder_or_a_pipe_in_the_file_s_place_is_an_error_and_no_wait(tmp_path: Path) -> None:
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    (tmp_path / "config.yml").mkdir()
    assert only_error(load(paths=paths, root=None, environ={})).expected == "a file"
    (tmp_path / "config.yml").rmdir()
    os.mkfifo(tmp_path / "config.yml")
    assert "regular" in only_error(load(paths=paths, root=None, environ={})).found


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "config.json",
            '{"servers": {\n"a": {"command": "x",\n"env": {"K": "1",\n"K": "2"}},\n"good": {"command": "true"}}}',
        ),
        (
            "config.yml",
            "servers:\n  a:\n    env: {K: 1,\n      K: 2}\n    command: x\n  good: {command: 'true'}\n",
        ),
    ],
)
def test_a_key_that_stands_twice_leaves_its_server_out_and_no_other(tmp_path: Path, name: str, content: str) -> None:
    config = load_file(tmp_path, name, content)
    problem = only_error(config)
    assert (problem.key, problem.line) == ("servers.a.env.K", 4)
    assert list(config.servers) == ["good"]


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", '{"servers": {"a": {"command": "first"},\n"a": {"command": "second"}}}'),
        ("config.yml", "servers:\n  a: {command: first}\n  a: {command: second}\n"),
    ],
)
def test_of_two_servers_with_one_name_the_first_stands(tmp_path: Path, name: str, content: str) -> None:
    config = load_file(tmp_path, name, content)
    assert only_error(config).key == "servers.a"
    assert config.servers["a"].command == "first"


def test_yaml_words_mean_what_they_mean_in_json(tmp_path: Path) -> None:
    text = "servers: {a: {command: x, args: [yes, 22:22, 2020-01-01, 0x10, 007, 8080, true, 'null']}}"
    assert load_file(tmp_path, "config.yml", text).servers["a"].args == (
        *("yes", "22:22", "2020-01-01", "0x10", "007", "8080", "true", "null"),
    )


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = """
servers:
  one: &base {command: npx, args: [one], env: {A: "1"}}
  two: {<<: *base, args: [two]}
"""
    two = load_file(tmp_path, "config.yml", text).servers["two"]
    assert (two.command, two.args, two.env) == ("npx", ("two",), {"A": "1"})


def test_tabs_and_odd_spacing_in_json_keep_their_lines(tmp_path: Path) -> None:
    text = '{\n\t"servers":\n\t{\n\t\t"a\\"{": {\n\t\t\t"command": 3}}}'
    problem = only_error(load_file(tmp_path, "config.json", text))
    assert (problem.line, problem.key) == (5, 'servers["a\\"{"].command')


@pytest.mark.req("BNS-10")
def test_a_file_that_everybody_may_write_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(GOOD)
    (tmp_path / "config.json").chmod(0o666)
    config = load(paths=Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)}), root=None, environ={})
    (problem,) = config.problems
    assert problem.severity is Severity.WARNING
    assert "chmod" in problem.suggestion


def test_importing_the_package_loads_no_parser() -> None:
    script = (
        "import sys, toolcrib.config, toolcrib.config.paths, toolcrib.config.layers, toolcrib.config.edit;"
        "sys.exit(' '.join(sys.modules.keys() & {'yaml', 'pydantic', 'mcp', 'asyncio'}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
