"""Properties of every configuration."""

import json
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.sizes import sized
from toolcrib.config.edit import add_server, remove_server
from toolcrib.config.keys import SERVER_KEYS
from toolcrib.config.layers import load
from toolcrib.config.masking import mask_args, mask_spelling, mask_text
from toolcrib.config.model import Config, Flags, ServerConfig
from toolcrib.config.paths import Paths
from toolcrib.config.show import mask
from toolcrib.config.values import expand

ENVIRON = {"HOME": "/home/u", "A": "one", "SECRET": "hunter2hunter2"}

SAMPLES = ["${A}", "${SECRET}", "${UNSET}", "${", "${A:-x}", "http://h/", "ws://h", "npx", "stdio", "sse", "bearer"]
texts = st.text(max_size=20) | st.sampled_from([*SAMPLES, "\0", "~/x"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
keys = st.sampled_from([*SERVER_KEYS, "verifySsl", "serverName", "token", "apiKey", "comand", "maxAttempts"]) | texts
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5), max_leaves=25
)
entries = st.dictionaries(keys, documents, max_size=6) | documents


def load_bytes(name: str, content: bytes, *flags: str, **environ: str) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        paths, variables = Paths.of_user({"TOOLCRIB_HOME": folder}), {**ENVIRON, **environ}
        given = Flags(mcp_servers=flags)
        return load(paths=paths, root=Path(folder), environ=variables, flags=given, is_trusted=lambda *_: True)


def check(config: Config) -> None:
    """Every part of it can be used and shown."""
    for name, server in config.servers.items():
        assert isinstance(server, ServerConfig)
        assert (server.name, bool(server.command) != bool(server.url)) == (name, True)
        assert len(server.identity) == 32
    assert all(str(problem).isprintable() for problem in config.problems)
    json.dumps(mask(config), allow_nan=False).encode()


@pytest.mark.req("BNS-10", "BNS-3")
@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["config.yml", "config.json", ".mcp.json"]))
def test_any_bytes_result_in_a_configuration(content, name):
    check(load_bytes(name, content))


@pytest.mark.req("BNS-10", "BNS-3")
@settings(deadline=None)
@given(st.text(st.sampled_from("ab:{}[]-&*!<>|?#'\"\\,\n \t%@`0.~"), max_size=80))
def test_any_text_similar_to_yaml_results_in_a_configuration(text):
    check(load_bytes("config.yml", text.encode()))


@pytest.mark.req("BNS-10", "BNS-3")
@settings(max_examples=sized(60, 1000), deadline=None)
@given(st.dictionaries(st.sampled_from(["servers", "mcpServers", "port", "names", "x"]) | texts, documents, max_size=4))
def test_any_data_results_in_a_configuration(data):
    content = json.dumps(data).encode()
    for name in ("config.json", "config.yml", ".mcp.json"):
        check(load_bytes(name, content))
    check(load_bytes("none", b"", TOOLCRIB_SERVERS=content.decode()))


@pytest.mark.req("BNS-10", "BNS-3")
@settings(max_examples=sized(60, 1000), deadline=None)
@given(st.dictionaries(texts, entries, max_size=4), st.lists(texts, max_size=2))
def test_a_valid_server_is_not_affected_by_its_neighbours(neighbours, flags):
    good = {"command": "npx", "args": ["${A}"], "env": {"K": "v"}}
    context = {name: entry for name, entry in neighbours.items() if name.lower() != "good"}
    content = json.dumps({"servers": {**context, "good": good}}).encode()
    config = load_bytes("config.json", content, *flags)
    check(config)
    server = config.servers["good"]
    assert (server.command, server.args, server.env) == ("npx", ("one",), {"K": "v"})


@settings(deadline=None)
@given(st.text() | st.lists(texts).map("".join))
def test_any_text_can_be_expanded_and_text_without_references_stays(text):
    expansion = expand(text, ENVIRON.get)
    assert expansion.complete == (not expansion.missing and not expansion.malformed)
    if "${" not in text:
        assert expansion.text == text


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="${}")), st.text(st.characters(exclude_characters="${}")))
def test_a_reference_becomes_exactly_its_value(before, value):
    assert expand(f"{before}${{X}}{before}", {"X": value}.get).text == f"{before}{value}{before}"
    assert expand(f"{before}$${{X}}", {"X": value}.get).text == f"{before}${{X}}"
    assert expand(f"${{X:-{value}}}", {}.get).text == value


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_arguments_can_be_masked_and_the_result_is_printable(args):
    masked = mask_args(args)
    assert len(masked) == len(args)
    assert all(arg.isprintable() for arg in masked)
    assert all(mask_text(arg).isprintable() for arg in args)
    assert all(mask_spelling(arg).isprintable() for arg in args)


names = st.text(string.ascii_letters + string.digits + "-_./ é", min_size=1, max_size=20).filter(
    lambda name: name == name.strip() and name.lower() not in ("crib", "kept")
)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0$"), max_size=30)
BEFORE = {
    "config.yml": ["", "servers:\n  kept: {command: x} # why\n", "port: 1\nservers: {kept: {command: x}}\n"],
    "config.json": ["", '{"servers": {"kept": {"command": "x"}}}', '{\n "port": 1\n}\n'],
}


@pytest.mark.req("BNS-3")
@settings(deadline=None)
@given(
    names,
    st.fixed_dictionaries({"args": st.lists(words, max_size=4)}, optional={"env": st.dictionaries(names, words)}),
    st.sampled_from([(name, text) for name, texts in BEFORE.items() for text in texts]),
)
def test_an_added_server_is_loaded_unchanged_and_removing_it_undoes_it(name, entry, before):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / before[0]
        path.write_text(before[1])
        paths = Paths.of_user({"TOOLCRIB_HOME": folder})
        old = load(paths=paths, root=None, environ={})
        add_server(path, {"name": name, "command": "npx", **entry})
        config = load(paths=paths, root=None, environ={})
        assert config.problems == old.problems
        server = config.servers[name]
        assert (server.command, list(server.args), dict(server.env)) == ("npx", entry["args"], entry.get("env", {}))
        remove_server(path, name)
        assert load(paths=paths, root=None, environ={}) == old
