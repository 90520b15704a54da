"""The tools' definitions, and what every call goes through: arguments, switches, limits, time, failures."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.audit.row import count_tokens
from toolcrib.errors import ConfigError, WorkspaceError
from toolcrib.workspace import tool as arguments
from toolcrib.workspace import workspace
from toolcrib.workspace.serving.transports import MAX_MESSAGE_SIZE, open_token, split_messages
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import DEFAULTS, TOOL_NAMES, WRITING_TOOLS, WorkspaceSettings
from toolcrib.workspace.tool import SchemaFor, ToolContext, ToolNeeds, ToolResult, WorkspaceTool, schema_of
from toolcrib.workspace.tools import BY_NAME, TOOLS, tool_definition
from toolcrib.workspace.workspace import Workspace

LIMIT = 60.0
PLAIN = {"object", "array", "string", "integer", "number", "boolean"}


# ---- definitions


def places(schema: Any) -> list[dict[str, Any]]:
    """Every schema in a schema."""
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    below += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return [schema, *(place for part in below for place in places(part))]


@pytest.mark.req("FRG-1")
def test_the_twelve_tools_are_those_that_settings_know() -> None:
    assert tuple(sorted(BY_NAME)) == tuple(sorted(TOOL_NAMES))
    assert len(TOOLS) == 12


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_definition_is_what_every_provider_takes(tool: WorkspaceTool) -> None:
    made = json.loads(tool_definition(tool, DEFAULTS))
    assert set(made) == {"name", "title", "description", "inputSchema", "outputSchema", "annotations"}
    for schema in (made["inputSchema"], made["outputSchema"]):
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        assert schema["type"] == "object"
        assert not {"$ref", "$defs", "title", "anyOf", "oneOf"} & {key for place in places(schema) for key in place}
    for place in places(made["inputSchema"]):
        assert place["type"] in PLAIN
        if place["type"] == "object":
            assert place["additionalProperties"] is False
        if place["type"] == "array":
            assert "items" in place


@pytest.mark.req("FRG-1")
def test_annotations_say_what_a_tool_can_do() -> None:
    hints = {tool.name: json.loads(tool_definition(tool, DEFAULTS))["annotations"] for tool in TOOLS}
    reading = {name for name, said in hints.items() if said["readOnlyHint"]}
    assert reading == {
        *("read_file", "list_dir", "stat_file", "find_files", "search_text", "project_diff", "project_structure")
    }
    assert all(not hints[name]["destructiveHint"] and hints[name]["idempotentHint"] for name in reading)
    assert {name for name, said in hints.items() if said["destructiveHint"]} == {*WRITING_TOOLS, "run_tests"}
    assert not any(said["openWorldHint"] for said in hints.values())


@pytest.mark.req("FRG-1")
def test_only_what_runs_code_reaches_the_world_and_only_where_the_network_is_on() -> None:
    online = dataclasses.replace(DEFAULTS, network=True)
    reaching = {
        tool.name for tool in TOOLS if json.loads(tool_definition(tool, online))["annotations"]["openWorldHint"]
    }
    assert reaching == {"run_tests", "run_lint", "run_shell_safe"}


@pytest.mark.req("FRG-1")
def test_the_definitions_are_cheap() -> None:
    told = [json.loads(tool_definition(tool, DEFAULTS)) for tool in TOOLS]
    seen = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in told]
    tokens = count_tokens(json.dumps(seen, separators=(",", ":")).encode())
    assert tokens is not None
    assert not tokens.estimated
    assert tokens.tokens < 2000


# ---- schemas

KINDS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([str, int, float, bool]),
    lambda inner: inner.map(lambda kind: list[kind]) | inner.map(lambda kind: dict[str, kind]),  # type: ignore[valid-type]
    max_leaves=3,
)
NUMBERS = itertools.count()
NAMES = st.sampled_from(["title", "description", "default", "properties", "items", "path", "type", "enum"])


@st.composite
def structs(draw: st.DrawFn, *, depth: int = 1) -> type[msgspec.Struct]:
    """Any struct that a tool may have, with fields named like the words of JSON Schema too."""
    fields: list[Any] = []
    for name in draw(st.lists(NAMES, unique=True, max_size=5)):
        kind = draw(KINDS)
        if depth and draw(st.booleans()):
            kind = draw(structs(depth=depth - 1))
        match draw(st.sampled_from(["needed", "optional", "default"])):
            case "needed":
                fields.append((name, kind))
            case "optional":
                fields.append((name, kind | None, None))
            case _:
                fields.append((name, kind, msgspec.field(default_factory=lambda kind=kind: example(kind))))
    return msgspec.defstruct(f"Made{next(NUMBERS)}", fields, kw_only=True, forbid_unknown_fields=True)


def example(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{field.name: example(field.type) for field in msgspec.structs.fields(kind) if field.required})
    made = {str: "x", int: 3, float: 1.5, bool: True}
    if kind in made:
        return made[kind]
    return [] if kind.__origin__ is list else {}


def given_by_a_model(value: Any) -> Any:
    """It leaves out what is null."""
    if isinstance(value, dict):
        return {name: given_by_a_model(part) for name, part in value.items() if part is not None}
    return value


@given(struct=structs())
def test_any_schema_is_valid_lean_and_true_of_what_it_describes(struct: type[msgspec.Struct]) -> None:
    value = json.loads(msgspec.json.encode(example(struct)))
    needed = {
        name: given_by_a_model(value[name]) for name in schema_of(struct, SchemaFor.ARGUMENTS).get("required", ())
    }
    for of in SchemaFor:
        schema = schema_of(struct, of)
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        assert not {"$ref", "title", "anyOf"} & {key for place in places(schema) for key in place}
    jsonschema_rs.validate(schema_of(struct, SchemaFor.RESULT), value)
    jsonschema_rs.validate(schema_of(struct, SchemaFor.ARGUMENTS), needed)
    assert not jsonschema_rs.is_valid(schema_of(struct, SchemaFor.ARGUMENTS), {**needed, "never heard of": 1})


# ---- arguments


class Sought(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    depth: int = 1
    kinds: list[str] = []


def tool_of(do: Callable[[ToolContext, Any], Any], name: str = "list_dir", **more: Any) -> WorkspaceTool:
    return WorkspaceTool(name=name, title="", description="", parameters=Sought, result=Sought, do=do, **more)


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize(
    ("given_arguments", "told"),
    [
        ({"pth": "x"}, "list_dir has no argument 'pth'. Did you mean 'path'?"),
        ({"zzz": "x"}, "list_dir has no argument 'zzz'."),
        ({}, "list_dir needs the argument 'path'."),
        ({"path": 3}, "list_dir: 'path' is wrong: expected str, got int."),
        ({"path": "x", "kinds": ["a", 1]}, "list_dir: 'kinds[1]' is wrong: expected str, got int."),
        ({"path": None}, "list_dir: 'path' is wrong: expected str, got null."),
    ],
)
@pytest.mark.parametrize("as_bytes", [True, False], ids=["bytes", "mapping"])
def test_wrong_arguments_are_named_with_what_would_be_right(
    given_arguments: dict[str, Any], told: str, as_bytes: bool
) -> None:
    tool = tool_of(lambda _scene, _given: None)
    with pytest.raises(WorkspaceError) as caught:
        arguments.decode_arguments(tool, json.dumps(given_arguments).encode() if as_bytes else given_arguments)
    assert caught.value.message.replace("`None`", "null").replace("None", "null") == told
    assert caught.value.remedy == ("list_dir takes: path (string, required), depth (integer), kinds (list of strings).")


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize(
    ("name", "given_arguments", "told"),
    [
        ("read_file", {"file_path": "x"}, "read_file has no argument 'file_path'. Did you mean 'path'?"),
        ("edit_file", {"path": "x", "old_string": "a"}, "edit_file has no argument 'old_string'. Did you mean 'old'?"),
        (
            "edit_file",
            {"path": "x", "old": "a", "new": "b", "more": [{"old": "a", "new_string": "b"}]},
            "edit_file has no argument 'more[0].new_string'. Did you mean 'new'?",
        ),
        ("find_files", {"pattern": "*.py"}, "find_files has no argument 'pattern'. Did you mean 'glob'?"),
        ("write_file", {"path": "x", "text": "y"}, "write_file has no argument 'text'. Did you mean 'content'?"),
        ("run_shell_safe", {"cmd": "ls"}, "run_shell_safe has no argument 'cmd'. Did you mean 'command'?"),
        ("run_tests", {"path": "x"}, "run_tests has no argument 'path'. Did you mean 'paths'?"),
    ],
)
def test_words_of_other_tools_are_known(name: str, given_arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkspaceError) as caught:
        arguments.decode_arguments(BY_NAME[name], given_arguments)
    assert caught.value.message == told


@pytest.mark.req("FRG-1")
def test_every_word_of_other_tools_leads_to_an_argument_of_some_tool() -> None:
    known = {name for tool in TOOLS for name in schema_of(tool.parameters, SchemaFor.ARGUMENTS)["properties"]}
    assert {meant for words in arguments._ELSEWHERE.values() for meant in words} <= known


@pytest.mark.req("FRG-1")
def test_a_linter_that_is_not_known_is_answered_with_those_that_are() -> None:
    with pytest.raises(WorkspaceError, match="flake8") as caught:
        arguments.decode_arguments(BY_NAME["run_lint"], {"tools": ["flake8"]})
    assert "'mypy', 'ruff'" in caught.value.remedy


@pytest.mark.req("FRG-1")
@pytest.mark.parametrize("as_bytes", [True, False], ids=["bytes", "mapping"])
def test_one_word_for_a_list_and_a_number_in_quotes_are_taken(as_bytes: bool) -> None:
    def taken(name: str, **given_arguments: Any) -> Any:
        return arguments.decode_arguments(
            BY_NAME[name], json.dumps(given_arguments).encode() if as_bytes else given_arguments
        )

    assert taken("find_files", glob="*.py", limit="3") == taken("find_files", glob=["*.py"], limit=3)
    assert taken("run_tests", paths="a", seconds="1.5") == taken("run_tests", paths=["a"], seconds=1.5)
    assert taken("run_lint", tools="ruff") == taken("run_lint", tools=["ruff"])
    more = [{"old": "a", "new": "3", "expected": 2}]
    quoted = [{"old": "a", "new": "3", "expected": "2"}]
    assert taken("edit_file", path="a", old="1", new="2", more=quoted) == taken(
        "edit_file", path="a", old="1", new="2", more=more
    )
    for wrong in ({"path": "x", "depth": "three"}, {"path": "x", "depth": "1.5"}, {"path": "x", "ignored": "true"}):
        with pytest.raises(WorkspaceError, match="is wrong"):
            taken("list_dir", **wrong)
    with pytest.raises(WorkspaceError, match=">= 1"):
        taken("read_file", path="x", lines="0")


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"null"])
def test_what_is_no_object_is_refused_in_words(raw: bytes) -> None:
    with pytest.raises(WorkspaceError, match="list_dir"):
        arguments.decode_arguments(tool_of(lambda _scene, _given: None), raw)


# ---- calls


@dataclasses.dataclass
class Bench:
    """A workspace whose `list_dir` is the test's own."""

    workspace: Workspace
    session: WorkspaceSession

    async def call(self, name: str = "list_dir", told: list[Any] | None = None, **given_arguments: Any) -> Any:
        answer = await self.workspace.call(
            name,
            given_arguments or {"path": "."},
            session=self.session,
            on_progress=told.append if told is not None else None,
        )
        return json.loads(answer)


Start = Callable[..., Bench]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Workspace] = []

    def begin(
        do: Callable[[ToolContext, Any], Any] | None = None,
        settings: WorkspaceSettings = DEFAULTS,
        environ: dict[str, str] | None = None,
        unsafe: bool = False,
        **more: Any,
    ) -> Bench:
        tools = TOOLS
        if do is not None:
            tools = (tool_of(do, **more),)
        made = Workspace(tmp_path, settings, environ=environ or {}, unsafe_no_sandbox=unsafe, tools=tools)
        started.append(made)
        return Bench(made, WorkspaceSession(settings.limits))

    yield begin
    for made in started:
        await made.close()


def seconds(limit: float) -> WorkspaceSettings:
    limits = dataclasses.replace(DEFAULTS.limits, seconds={**DEFAULTS.limits.seconds, "list_dir": limit})
    return dataclasses.replace(DEFAULTS, limits=limits)


def text(result: Any) -> str:
    said: str = result["content"][0]["text"]
    return said


@pytest.mark.req("FRG-1")
async def test_a_result_has_short_text_and_structured_content(start: Start) -> None:
    result = await start(lambda _scene, _given: ToolResult(Sought(path="a", depth=2), "one folder")).call()
    assert result == {
        "content": [{"type": "text", "text": "one folder"}],
        "structuredContent": {"path": "a", "depth": 2, "kinds": []},
        "isError": False,
    }


VARIED: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "plain.txt"}),
    ("read_file", {"path": "plain.txt", "start_line": 2, "lines": 1}),
    ("read_file", {"path": "plain.txt", "offset": 1, "length": 2}),
    ("read_file", {"path": "empty"}),
    ("read_file", {"path": "binary"}),
    ("read_file", {"path": "binary", "encoding": "binary"}),
    ("read_file", {"path": "crlf.txt"}),
    ("read_file", {"path": "link"}),
    ("write_file", {"path": "a/b/c.txt", "content": "x"}),
    ("write_file", {"path": "plain.txt", "content": "more\n", "mode": "append"}),
    ("edit_file", {"path": "crlf.txt", "old": "one", "new": "1"}),
    ("edit_file", {"path": "a/b/c.txt", "old": "x", "new": "y", "more": [{"old": "y", "new": "z"}]}),
    ("list_dir", {}),
    ("list_dir", {"depth": 5, "glob": "*.txt", "ignored": True, "limit": 1}),
    ("stat_file", {"path": "."}),
    ("stat_file", {"path": "link"}),
    ("stat_file", {"path": ".git"}),
    ("find_files", {"glob": ["*.txt", "!crlf*"]}),
    ("find_files", {"glob": "*", "sort": "newest", "limit": 1}),
    ("search_text", {"pattern": "one", "context": 1}),
    ("search_text", {"pattern": "absent", "case": "ignore", "glob": ["*.txt"]}),
    ("project_structure", {}),
    ("project_structure", {"depth": 1, "limit": 10}),
]


@pytest.mark.req("FRG-1")
async def test_every_result_fits_the_schema_that_was_promised(start: Start, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "crlf.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (tmp_path / "link").symlink_to("plain.txt")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / ".git").mkdir()
    bench = start()
    promised = {tool["name"]: tool["outputSchema"] for tool in map(json.loads, bench.workspace.tools)}
    for name, given_arguments in VARIED:
        answer = await bench.workspace.call(name, given_arguments, session=bench.session)
        result = json.loads(answer)
        assert not result["isError"], (name, given_arguments, text(result))
        assert text(result)
        jsonschema_rs.validate(promised[name], result["structuredContent"])


@pytest.mark.req("FRG-1")
async def test_a_path_that_is_not_there_is_answered_with_where_such_a_name_is(start: Start, tmp_path: Path) -> None:
    for name in ("tests/test_sums.py", "src/deep/sums.py", "build/only.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("build/\n")
    bench = start()
    for tool in ("read_file", "stat_file"):
        assert text(await bench.call(tool, path="test_sums.py")).endswith("Did you mean tests/test_sums.py?")
    assert text(await bench.call("read_file", path="lib/sums.py")).endswith("Did you mean src/deep/sums.py?")
    told = text(await bench.call("edit_file", path="sums.py", old="a", new="b"))
    assert told.endswith("Did you mean src/deep/sums.py?")
    assert "only.py?" not in text(await bench.call("read_file", path="only.py"))


@pytest.mark.req("FRG-1")
async def test_what_a_model_can_act_on_is_a_result_with_the_remedy(start: Start) -> None:
    def refuse(_scene: ToolContext, _given: Any) -> ToolResult:
        raise WorkspaceError("a.py is not there.", remedy="Did you mean b.py?")

    result = await start(refuse).call()
    assert result == {"content": [{"type": "text", "text": "a.py is not there. Did you mean b.py?"}], "isError": True}


async def test_a_fault_of_our_own_tells_no_internals_and_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_scene: ToolContext, _given: Any) -> ToolResult:
        raise RuntimeError("at /secret/place")

    result = await start(fail).call()
    assert result["isError"]
    assert "a bug in the workspace" in text(result)
    assert "secret" not in text(result)
    assert "at /secret/place" in caplog.text


async def test_a_result_that_is_far_too_large_is_refused(start: Start) -> None:
    huge = "x" * (64 * 1024 * 1024)
    result = await start(lambda _scene, _given: ToolResult(Sought(path=huge), "")).call()
    assert result["isError"]
    assert "too large" in text(result)


@pytest.mark.req("FRG-10")
async def test_a_tool_that_hangs_is_answered_for_in_time(start: Start) -> None:
    let_go = threading.Event()
    deadlines: list[float] = []

    def hang(scene: ToolContext, _given: Any) -> ToolResult:
        deadlines.append(scene.deadline - time.monotonic())
        let_go.wait(LIMIT)
        return ToolResult(Sought(path=""), "")

    bench = start(hang, seconds(0.2))
    try:
        result = await bench.call()
        assert result["isError"]
        assert "longer than 0.2 s" in text(result)
        assert 0 < deadlines[0] <= 0.2
    finally:
        let_go.set()


@pytest.mark.req("FRG-10")
async def test_hanging_tools_take_no_more_threads_than_there_are(start: Start) -> None:
    let_go = threading.Event()
    at_work: list[int] = []

    def hang(_scene: ToolContext, _given: Any) -> ToolResult:
        at_work.append(1)
        let_go.wait(LIMIT)
        return ToolResult(Sought(path=""), "")

    bench = start(hang, seconds(0.5))
    try:
        results = await asyncio.gather(*(bench.call() for _ in range(3 * workspace.THREADS)))
    finally:
        let_go.set()
    assert all(result["isError"] for result in results)
    assert len(at_work) == workspace.THREADS


@pytest.mark.req("FRG-10")
async def test_a_session_that_used_its_calls_gets_no_more(start: Start) -> None:
    few = dataclasses.replace(DEFAULTS, limits=dataclasses.replace(DEFAULTS.limits, session_calls=2))
    bench = start(lambda _scene, _given: ToolResult(Sought(path=""), ""), few)
    assert [(await bench.call())["isError"] for _ in range(3)] == [False, False, True]
    assert not (await dataclasses.replace(bench, session=WorkspaceSession(few.limits)).call())["isError"]


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize(
    ("settings", "environ", "gone", "told"),
    [
        (dataclasses.replace(DEFAULTS, off=frozenset({"list_dir"})), {}, {"list_dir"}, "switched off"),
        (dataclasses.replace(DEFAULTS, read_only=True), {}, set(WRITING_TOOLS), "read-only"),
        (DEFAULTS, {"CI": "true"}, {"run_shell_safe"}, "CI is set"),
        (dataclasses.replace(DEFAULTS, forbid_shell_in_ci=False), {"CI": "true"}, set(), ""),
    ],
    ids=["off", "read-only", "ci", "ci-allowed"],
)
async def test_a_tool_that_is_off_is_not_listed_and_says_why(
    start: Start, settings: WorkspaceSettings, environ: dict[str, str], gone: set[str], told: str
) -> None:
    bench = start(None, settings, environ)
    assert {json.loads(tool)["name"] for tool in bench.workspace.tools} == set(BY_NAME) - gone
    for name in gone:
        result = await bench.call(name, path=".", command="touch made", content="x")
        assert result["isError"]
        assert told in text(result)
    assert not list(bench.workspace.root.iterdir())


@pytest.mark.req("FRG-12")
async def test_no_tool_works_while_the_settings_cannot_be_understood(start: Start) -> None:
    bench = start(None, dataclasses.replace(DEFAULTS, broken="line 3 is nonsense"))
    for tool in TOOLS:
        assert "line 3 is nonsense" in text(await bench.call(tool.name))


async def test_an_unknown_tool_suggests_a_near_one(start: Start) -> None:
    assert text(await start().call("list_dirs")) == "There is no tool 'list_dirs'. Did you mean list_dir?"


async def test_progress_is_numbered_upwards_and_told_in_the_loops_thread(start: Start) -> None:
    here = threading.get_ident()
    threads: list[int] = []
    told: list[Any] = []

    def work(scene: ToolContext, _given: Any) -> ToolResult:
        assert scene.progress is not None
        for step in range(50):
            scene.progress(f"step {step}")
        return ToolResult(Sought(path=""), "")

    bench = start(work)
    answer = await bench.workspace.call(
        "list_dir",
        {"path": "."},
        session=bench.session,
        on_progress=lambda said: (told.append(said), threads.append(threading.get_ident())),  # type: ignore[func-returns-value]
    )
    assert not json.loads(answer)["isError"]
    assert told == [{"progress": step + 1, "message": f"step {step}"} for step in range(50)]
    assert set(threads) == {here}


async def test_nobody_is_told_of_progress_after_the_answer(start: Start) -> None:
    let_go, over = threading.Event(), threading.Event()

    def work(scene: ToolContext, _given: Any) -> ToolResult:
        assert scene.progress is not None
        let_go.wait(LIMIT)
        scene.progress("too late")
        over.set()
        return ToolResult(Sought(path=""), "")

    told: list[Any] = []
    result = await start(work, seconds(0.1)).call(told=told)
    let_go.set()
    assert await asyncio.to_thread(over.wait, LIMIT)
    await asyncio.sleep(0)
    assert result["isError"]
    assert told == []


class FakeSandbox:
    """Holds one command until it is called off."""

    def __init__(self, refusal: WorkspaceError | None = None) -> None:
        self.refusal = refusal
        self.began = asyncio.Event()
        self.called_off = False
        self.closed = False

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.called_off = True
            raise

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> FakeSandbox:
    made = FakeSandbox()

    async def open_it(*_words: Any, **_more: Any) -> FakeSandbox:
        return made

    monkeypatch.setattr(workspace.Sandbox, "open", open_it)
    return made


@pytest.mark.req("FRG-10")
async def test_a_call_that_is_taken_back_ends_what_it_runs(start: Start, sandbox: FakeSandbox) -> None:
    async def run(scene: ToolContext, _given: Any) -> ToolResult:
        await (await scene.sandbox()).run()  # type: ignore[call-arg, func-returns-value]
        return ToolResult(Sought(path=""), "")

    call = asyncio.ensure_future(start(run, needs=ToolNeeds.SANDBOX).call())
    await asyncio.wait_for(sandbox.began.wait(), LIMIT)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, LIMIT)
    assert sandbox.called_off


@pytest.mark.req("FRG-9")
async def test_code_is_refused_with_the_sandboxs_reason_and_files_are_not(start: Start, sandbox: FakeSandbox) -> None:
    sandbox.refusal = WorkspaceError("No bubblewrap here.", remedy="apt install bubblewrap")
    ran: list[int] = []

    async def run(_scene: ToolContext, _given: Any) -> ToolResult:
        ran.append(1)
        return ToolResult(Sought(path=""), "")

    assert text(await start(run, needs=ToolNeeds.SANDBOX).call()) == "No bubblewrap here. apt install bubblewrap"
    assert not ran
    assert not (await start(run).call())["isError"]


@pytest.mark.req("FRG-9")
async def test_what_runs_without_a_sandbox_is_told_in_the_result_and_in_the_log(
    start: Start, sandbox: FakeSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(_scene: ToolContext, _given: Any) -> ToolResult:
        return ToolResult(Sought(path=""), "done")

    with caplog.at_level(logging.WARNING):
        result = await start(run, unsafe=True, needs=ToolNeeds.SANDBOX).call(path="rm -rf x")
    assert text(result) == f"{workspace.UNSAFE}\ndone"
    assert 'unsandboxed: list_dir {"path":"rm -rf x"' in caplog.text


@pytest.mark.req("FRG-9")
async def test_without_a_sandbox_no_tool_that_runs_code_is_called_harmless(start: Start) -> None:
    """git alone runs what a repository's settings say."""
    hints = {found["name"]: found["annotations"] for found in map(json.loads, start(unsafe=True).workspace.tools)}
    assert {name for name, hint in hints.items() if hint["readOnlyHint"]} == {
        "read_file", "list_dir", "stat_file", "find_files", "search_text", "project_structure"
    }  # fmt: skip
    assert hints["project_diff"]["destructiveHint"]
    sandboxed = {found["name"]: found["annotations"] for found in map(json.loads, start().workspace.tools)}
    assert sandboxed["project_diff"]["readOnlyHint"]


@pytest.mark.req("FRG-9")
async def test_read_only_without_a_sandbox_runs_no_code(start: Start, sandbox: FakeSandbox) -> None:
    ran: list[int] = []

    async def run(_scene: ToolContext, _given: Any) -> ToolResult:
        ran.append(1)
        return ToolResult(Sought(path=""), "done")

    read_only = dataclasses.replace(DEFAULTS, read_only=True)
    bench = start(settings=read_only, unsafe=True)
    code = {"run_tests", "run_lint", "project_diff", "run_shell_safe"}
    assert not code & {json.loads(tool)["name"] for tool in bench.workspace.tools}
    assert "which needs a sandbox" in str(bench.workspace.why_not("project_diff"))
    result = await start(run, settings=read_only, unsafe=True, needs=ToolNeeds.SANDBOX).call()
    assert result["isError"]
    assert not ran
    assert not (await start(run, settings=read_only, needs=ToolNeeds.SANDBOX).call())["isError"]
    assert ran


async def test_closing_ends_the_sandbox(start: Start, sandbox: FakeSandbox) -> None:
    bench = start()
    await bench.workspace.sandbox()
    await bench.workspace.close()
    assert sandbox.closed


# ---- pipes and tokens


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))),
    cuts=st.lists(st.integers(0, 300), max_size=10),
)
def test_lines_come_out_whole_however_the_pipe_cuts_them(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(edges)]
    assert list(split_messages(pieces)) == [line.strip() for line in lines if line.strip()]


def test_a_line_beyond_the_limit_is_dropped_and_the_next_is_not() -> None:
    piece = b"x" * (1024 * 1024)
    long = [piece] * (MAX_MESSAGE_SIZE // len(piece)) + [b"x\nnext\n"]
    assert list(split_messages(long)) == [b"next"]


@pytest.mark.req("FRG-2")
@pytest.mark.parametrize(
    ("content", "mode"),
    [("s" * 40, 0o644), ("s" * 40, 0o620), ("short", 0o600), ("s" * 40 + " " + "s", 0o600), ("", 0o600)],
)
def test_a_token_that_others_know_or_can_guess_is_refused(tmp_path: Path, content: str, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigError), open_token({}, file, tmp_path / "other"):
        pass


@pytest.mark.req("FRG-2")
def test_a_token_that_was_made_is_private_and_ends_with_the_server(tmp_path: Path) -> None:
    with open_token({}, None, tmp_path / "made") as made:
        assert (tmp_path / "made").read_text().strip() == made.value
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
        assert made.value not in made.where
    assert not (tmp_path / "made").exists()
    with open_token({}, tmp_path / "kept", tmp_path / "made") as first:
        pass
    with open_token({}, tmp_path / "kept", tmp_path / "made") as second:
        assert second == first


def test_a_scene_without_a_limit_has_no_deadline() -> None:
    assert {field.name: field.default for field in dataclasses.fields(ToolContext)}["deadline"] == math.inf


@pytest.mark.req("FRG-2")
def test_importing_the_room_costs_next_to_nothing() -> None:
    words = "import sys, toolcrib.workspace; print(sorted({'mcp', 'yaml', 'pathspec', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", words], capture_output=True, text=True, timeout=30, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"
