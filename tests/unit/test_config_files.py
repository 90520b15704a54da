"""Configuration files in both formats, valid and invalid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib.config.layers import load
from toolcrib.config.model import Config, Problem, Severity
from toolcrib.config.paths import Paths

GOOD = '{"servers": {"good": {"command": "true"}}}'


def loaded(folder: Path) -> Config:
    return load(paths=Paths.of_user({"TOOLCRIB_HOME": str(folder)}), root=None, environ={})


def load_file(folder: Path, name: str, content: str | bytes) -> Config:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return loaded(folder)


def only_error(config: Config) -> Problem:
    (problem,) = [problem for problem in config.problems if problem.severity is Severity.ERROR]
    return problem


@pytest.mark.parametrize("name", ["config.yml", "config.yaml", "config.json"])
def test_each_file_name_is_read_and_an_empty_file_is_an_empty_configuration(tmp_path, name):
    empty = [loaded(tmp_path), *(load_file(tmp_path, name, content) for content in ("", " \n\n", "\ufeff"))]
    assert [(dict(config.servers), config.problems) for config in empty] == [({}, ())] * 4
    assert list(load_file(tmp_path, name, "\ufeff" + GOOD).servers) == ["good"]


def test_a_second_file_and_a_file_that_everyone_can_write_lead_to_a_warning(tmp_path):
    (tmp_path / "config.json").write_text(GOOD)
    config = load_file(tmp_path, "config.yml", "servers: {}")
    (problem,) = config.problems
    assert (problem.severity, "config.json" in problem.found) == (Severity.WARNING, True)
    assert config.servers == {}
    (tmp_path / "config.yml").unlink()
    (tmp_path / "config.json").chmod(0o666)
    (problem,) = loaded(tmp_path).problems
    assert (problem.severity, "chmod" in problem.suggestion) == (Severity.WARNING, True)


# fmt: off
INVALID_JSON = [
    ('{"servers": {\n  "a": {"command": "x",}}}', 2), ('{"servers":\n\n nonsense}', 3), (b'{"servers": {}}\n\xff', 2),
    ('{"port": NaN}', None), ('{"port": ' + "9" * 5000 + "}", None), ("[" * 100_000, None),
    ('{"a":\n' * 100 + "1" + "}" * 100, 65), ("[]", 1), ('"text"', 1),
]
INVALID_YAML = [
    ("servers:\n  a: [1, 2\n", 3), ("servers:\n\ta: 1\n", 2), (b"servers: {}\n# \xe9\n", 2), ("a: \x01", None),
    ("[" * 100_000, 1), ("- " * 100_000, 1), ("a: 1\n---\nb: 2\n", 2), ("- a\n- b\n", 1), ("just text\n", 1),
    ("servers:\n  a: !!python/object/apply:os.system ['true']\n", 2), ("a: *nowhere\n", 1), ("a: &a\n  b: *a\n", 2),
    ("? [a, b]\n: c\n", 1), ("a:\n  <<: 3\n", 2),
]
# fmt: on
INVALID = [("config.json", *row) for row in INVALID_JSON] + [("config.yml", *row) for row in INVALID_YAML]


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(("name", "content", "line"), INVALID)
def test_an_invalid_file_is_one_error_with_its_line(tmp_path, name, content, line):
    config = load_file(tmp_path, name, content)
    problem = only_error(config)
    assert (problem.file, problem.line) == (str(tmp_path / name), line)
    assert config.servers == {}


@pytest.mark.req("BNS-10")
@pytest.mark.timeout(20)
def test_aliases_are_limited_and_cheap(tmp_path):
    rows = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "values" in only_error(load_file(tmp_path, "config.yml", "\n".join(rows))).found
    assert "alias inside" in only_error(load_file(tmp_path, "config.yml", "a: &a\n  b: *a\n")).found
    text = "a: &a {x: [1, 2, 3]}\nb: [" + "*a, " * 6_000 + "*a]\nservers: {good: {command: x}}\n"
    assert list(load_file(tmp_path, "config.yml", text).servers) == ["good"]


def test_large_files_folders_and_pipes_are_refused_without_blocking(tmp_path):
    file = tmp_path / "config.yml"
    assert "too large" in only_error(load_file(tmp_path, file.name, b"#" * (1024 * 1024 + 1))).found
    file.unlink()
    file.mkdir()
    assert only_error(loaded(tmp_path)).expected == "a file"
    file.rmdir()
    os.mkfifo(file)
    assert "regular" in only_error(loaded(tmp_path)).found


TWICE_JSON = '{"servers": {\n"a": {"command": "x",\n"env": {"K": "1",\n"K": "2"}},\n"good": {"command": "true"}}}'
TWICE_YAML = "servers:\n  a:\n    env: {K: 1,\n      K: 2}\n    command: x\n  good: {command: 'true'}\n"
TWO_JSON = '{"servers": {"a": {"command": "first"},\n"a": {"command": "second"}}}'
TWO_YAML = "servers:\n  a: {command: first}\n  a: {command: second}\n"


@pytest.mark.req("BNS-3")
@pytest.mark.parametrize(
    ("name", "twice", "two"), [("config.json", TWICE_JSON, TWO_JSON), ("config.yml", TWICE_YAML, TWO_YAML)]
)
def test_a_duplicate_key_disables_its_server_and_the_first_of_two_servers_is_used(tmp_path, name, twice, two):
    config = load_file(tmp_path, name, twice)
    problem = only_error(config)
    assert (problem.key, problem.line, list(config.servers)) == ("servers.a.env.K", 4, ["good"])
    config = load_file(tmp_path, name, two)
    assert (only_error(config).key, config.servers["a"].command) == ("servers.a", "first")


def test_yaml_words_have_their_json_meaning_and_anchors_and_merge_keys_work(tmp_path):
    text = "servers: {a: {command: x, args: [yes, 22:22, 2020-01-01, 0x10, 007, 8080, true, 'null']}}"
    expected = ("yes", "22:22", "2020-01-01", "0x10", "007", "8080", "true", "null")
    assert load_file(tmp_path, "config.yml", text).servers["a"].args == expected
    one, two = '{command: npx, args: [one], env: {A: "1"}}', "{<<: *base, args: [two]}"
    server = load_file(tmp_path, "config.yml", f"servers:\n  one: &base {one}\n  two: {two}\n").servers["two"]
    assert (server.command, server.args, server.env) == ("npx", ("two",), {"A": "1"})


def test_json_with_tabs_and_unusual_spacing_has_correct_lines(tmp_path):
    text = '{\n\t"servers":\n\t{\n\t\t"a\\"{": {\n\t\t\t"command": 3}}}'
    problem = only_error(load_file(tmp_path, "config.json", text))
    assert (problem.line, problem.key) == (5, 'servers["a\\"{"].command')


def test_importing_the_package_loads_no_parser():
    script = (
        "import sys, toolcrib.config, toolcrib.config.paths, toolcrib.config.layers, toolcrib.config.edit;"
        "sys.exit(' '.join(sys.modules.keys() & {'yaml', 'pydantic', 'mcp', 'asyncio'}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
