"""The tools' definitions, and the path of every call: arguments, switches, limits, time, errors."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.tool_context import make_files, refused, settings_with
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

pytestmark = pytest.mark.req("FRG-1")

LIMIT = 60.0
SCHEMA = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
READING = {"read_file", "list_dir", "stat_file", "find_files", "search_text", "project_structure"}


def schemas_in(schema: Any) -> list[dict[str, Any]]:
    """A schema and every schema within it."""
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    below += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return [schema, *(found for part in below for found in schemas_in(part))]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_definition_is_accepted_by_every_provider(tool: WorkspaceTool):
    made = json.loads(tool_definition(tool, DEFAULTS))
    assert set(made) == {"name", "title", "description", "inputSchema", "outputSchema", "annotations"}
    for schema in (made["inputSchema"], made["outputSchema"]):
        jsonschema_rs.meta.validate(SCHEMA | schema)
        assert schema["type"] == "object"
        assert not {"$ref", "$defs", "title", "anyOf", "oneOf"} & {key for part in schemas_in(schema) for key in part}
    for part in schemas_in(made["inputSchema"]):
        assert part["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert part["type"] != "object" or part["additionalProperties"] is False
        assert part["type"] != "array" or "items" in part


def test_the_definitions_have_true_annotations_and_cost_few_tokens():
    assert sorted(BY_NAME) == sorted(TOOL_NAMES)
    assert len(TOOLS) == 12
    definitions = [json.loads(tool_definition(tool, DEFAULTS)) for tool in TOOLS]
    hints = {made["name"]: made["annotations"] for made in definitions}
    reading = {name for name, hint in hints.items() if hint["readOnlyHint"]}
    assert reading == READING | {"project_diff"}
    assert all(not hints[name]["destructiveHint"] and hints[name]["idempotentHint"] for name in reading)
    assert {name for name, hint in hints.items() if hint["destructiveHint"]} == {*WRITING_TOOLS, "run_tests"}
    assert not any(hint["openWorldHint"] for hint in hints.values())
    online = [json.loads(tool_definition(tool, settings_with(network=True))) for tool in TOOLS]
    open_world = {made["name"] for made in online if made["annotations"]["openWorldHint"]}
    assert open_world == {"run_tests", "run_lint", "run_shell_safe"}
    seen = [{key: made[key] for key in ("name", "description", "inputSchema")} for made in definitions]
    tokens = count_tokens(json.dumps(seen, separators=(",", ":")).encode())
    assert tokens is not None
    assert not tokens.estimated
    assert tokens.tokens < 2000


KINDS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([str, int, float, bool]),
    lambda inner: inner.map(lambda kind: list[kind]) | inner.map(lambda kind: dict[str, kind]),  # type: ignore[valid-type]
    max_leaves=3,
)
NUMBERS = itertools.count()
NAMES = st.sampled_from(["title", "description", "default", "properties", "items", "path", "type", "enum"])


@st.composite
def structs(draw: st.DrawFn, *, depth: int = 1) -> type[msgspec.Struct]:
    """Any struct that a tool may have, including fields named like keywords of JSON Schema."""
    fields: list[Any] = []
    for name in draw(st.lists(NAMES, unique=True, max_size=5)):
        kind = draw(structs(depth=depth - 1)) if depth and draw(st.booleans()) else draw(KINDS)
        default = msgspec.field(default_factory=lambda kind=kind: example(kind))
        fields.append(draw(st.sampled_from([(name, kind), (name, kind | None, None), (name, kind, default)])))
    return msgspec.defstruct(f"Made{next(NUMBERS)}", fields, kw_only=True, forbid_unknown_fields=True)


def example(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{field.name: example(field.type) for field in msgspec.structs.fields(kind) if field.required})
    made = {str: "x", int: 3, float: 1.5, bool: True}
    if kind in made:
        return made[kind]
    return [] if kind.__origin__ is list else {}


def without_nulls(value: Any) -> Any:
    """As a model sends it."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return value


@given(struct=structs())
def test_any_schema_is_valid_lean_and_matches_the_struct(struct: type[msgspec.Struct]):
    value = json.loads(msgspec.json.encode(example(struct)))
    for of in SchemaFor:
        schema = schema_of(struct, of)
        jsonschema_rs.meta.validate(SCHEMA | schema)
        assert not {"$ref", "title", "anyOf"} & {key for part in schemas_in(schema) for key in part}
    jsonschema_rs.validate(schema_of(struct, SchemaFor.RESULT), value)
    schema = schema_of(struct, SchemaFor.ARGUMENTS)
    required = {name: without_nulls(value[name]) for name in schema.get("required", ())}
    jsonschema_rs.validate(schema, required)
    assert not jsonschema_rs.is_valid(schema, {**required, "unknown name": 1})


class Sought(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    depth: int = 1
    kinds: list[str] = []


EMPTY = ToolResult(Sought(path=""), "done")


def tool_of(do: Callable[[ToolContext, Any], Any], name: str = "list_dir", **more: Any) -> WorkspaceTool:
    return WorkspaceTool(name=name, title="", description="", parameters=Sought, result=Sought, do=do, **more)


LIST_DIR = tool_of(lambda *_: None)


@pytest.mark.parametrize(
    ("given_arguments", "message"),
    [
        ({"pth": "x"}, "list_dir has no argument 'pth'. Did you mean 'path'?"),
        ({"zzz": "x"}, "list_dir has no argument 'zzz'."),
        ({}, "list_dir needs the argument 'path'."),
        ({"path": 3}, "list_dir: 'path' is wrong: expected str, got int."),
        ({"path": "x", "kinds": ["a", 1]}, "list_dir: 'kinds[1]' is wrong: expected str, got int."),
        ({"path": None}, "list_dir: 'path' is wrong: expected str, got null."),
    ],
)
def test_the_error_for_wrong_arguments_names_them_and_the_right_ones(given_arguments: Any, message: str):
    for form in (json.dumps(given_arguments).encode(), given_arguments):
        error = refused("", arguments.decode_arguments, LIST_DIR, form)
        assert error.message.replace("`None`", "null").replace("None", "null") == message
        assert error.remedy == "list_dir takes: path (string, required), depth (integer), kinds (list of strings)."


def test_argument_names_of_other_products_lead_to_the_right_name():
    for raw in (b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"null"):
        refused("list_dir", arguments.decode_arguments, LIST_DIR, raw)
    nested = {"path": "x", "old": "a", "new": "b", "more": [{"old": "a", "new_string": "b"}]}
    for tool, given_arguments, wrong, right in (
        ("read_file", {"file_path": "x"}, "file_path", "path"),
        ("edit_file", {"path": "x", "old_string": "a"}, "old_string", "old"),
        ("edit_file", nested, "more[0].new_string", "new"),
        ("find_files", {"pattern": "*.py"}, "pattern", "glob"),
        ("write_file", {"path": "x", "text": "y"}, "text", "content"),
        ("run_shell_safe", {"cmd": "ls"}, "cmd", "command"),
        ("run_tests", {"path": "x"}, "path", "paths"),
    ):
        error = refused("", arguments.decode_arguments, BY_NAME[tool], given_arguments)
        assert error.message == f"{tool} has no argument '{wrong}'. Did you mean '{right}'?"
    known = {name for tool in TOOLS for name in schema_of(tool.parameters, SchemaFor.ARGUMENTS)["properties"]}
    assert {meant for words in arguments._ELSEWHERE.values() for meant in words} <= known
    error = refused("flake8", arguments.decode_arguments, BY_NAME["run_lint"], {"tools": ["flake8"]})
    assert "'mypy', 'ruff'" in error.remedy


@pytest.mark.parametrize("form", [lambda given: json.dumps(given).encode(), dict], ids=["bytes", "mapping"])
def test_one_word_for_a_list_and_a_quoted_number_are_accepted(form: Callable[[Any], Any]):
    def decoded(name: str, **given_arguments: Any) -> Any:
        return arguments.decode_arguments(BY_NAME[name], form(given_arguments))

    assert decoded("find_files", glob="*.py", limit="3") == decoded("find_files", glob=["*.py"], limit=3)
    assert decoded("run_tests", paths="a", seconds="1.5") == decoded("run_tests", paths=["a"], seconds=1.5)
    assert decoded("run_lint", tools="ruff") == decoded("run_lint", tools=["ruff"])
    edits = [
        decoded("edit_file", path="a", old="1", new="2", more=[{"old": "a", "new": "3", "expected": expected}])
        for expected in (2, "2")
    ]
    assert edits[0] == edits[1]
    for wrong in ({"depth": "three"}, {"depth": "1.5"}, {"ignored": "true"}):
        refused("is wrong", decoded, "list_dir", path="x", **wrong)
    refused(">= 1", decoded, "read_file", path="x", lines="0")


@dataclasses.dataclass
class Calls:
    """Calls of a workspace, in one session."""

    workspace: Workspace
    session: WorkspaceSession

    async def __call__(self, name: str = "list_dir", on_progress: Any = None, **given_arguments: Any) -> Any:
        given_arguments = given_arguments or {"path": "."}
        answer = await self.workspace.call(name, given_arguments, session=self.session, on_progress=on_progress)
        return json.loads(answer)

    async def error(self, name: str = "list_dir", **given_arguments: Any) -> str:
        """The text of a call that must fail."""
        result = await self(name, **given_arguments)
        assert result["isError"]
        return text(result)

    @property
    def hints(self) -> dict[str, Any]:
        return {found["name"]: found["annotations"] for found in map(json.loads, self.workspace.tools)}


Start = Callable[..., Calls]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a workspace; with `do`, its only tool is a `list_dir` that does this."""
    started: list[Workspace] = []

    def begin(
        do: Callable[[ToolContext, Any], Any] | None = None,
        settings: WorkspaceSettings = DEFAULTS,
        environ: dict[str, str] | None = None,
        unsafe: bool = False,
        **more: Any,
    ) -> Calls:
        tools = TOOLS if do is None else (tool_of(do, **more),)
        made = Workspace(tmp_path, settings, environ=environ or {}, unsafe_no_sandbox=unsafe, tools=tools)
        started.append(made)
        return Calls(made, WorkspaceSession(settings.limits))

    yield begin
    for made in started:
        await made.close()


def time_limit(limit: float) -> WorkspaceSettings:
    return settings_with(seconds={**DEFAULTS.limits.seconds, "list_dir": limit})


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


async def test_a_result_has_text_and_structured_content_and_an_error_its_remedy(start: Start):
    assert await start(lambda *_: ToolResult(Sought(path="a", depth=2), "one folder"))() == {
        "content": [{"type": "text", "text": "one folder"}],
        "structuredContent": {"path": "a", "depth": 2, "kinds": []},
        "isError": False,
    }

    def refuse(*_: Any) -> ToolResult:
        raise WorkspaceError("a.py is not there.", remedy="Did you mean b.py?")

    message = "a.py is not there. Did you mean b.py?"
    assert await start(refuse)() == {"content": [{"type": "text", "text": message}], "isError": True}
    assert await start().error("list_dirs") == "There is no tool 'list_dirs'. Did you mean list_dir?"


VARIED: dict[str, list[dict[str, Any]]] = {
    "read_file": [
        {"path": "plain.txt"}, {"path": "plain.txt", "start_line": 2, "lines": 1}, {"path": "empty"},
        {"path": "plain.txt", "offset": 1, "length": 2}, {"path": "binary"}, {"path": "crlf.txt"}, {"path": "link"},
        {"path": "binary", "encoding": "binary"},
    ],
    "write_file": [
        {"path": "a/b/c.txt", "content": "x"}, {"path": "plain.txt", "content": "more\n", "mode": "append"},
    ],
    "edit_file": [
        {"path": "crlf.txt", "old": "one", "new": "1"},
        {"path": "a/b/c.txt", "old": "x", "new": "y", "more": [{"old": "y", "new": "z"}]},
    ],
    "list_dir": [{}, {"depth": 5, "glob": "*.txt", "ignored": True, "limit": 1}],
    "stat_file": [{"path": "."}, {"path": "link"}, {"path": ".git"}],
    "find_files": [{"glob": ["*.txt", "!crlf*"]}, {"glob": "*", "sort": "newest", "limit": 1}],
    "search_text": [
        {"pattern": "one", "context": 1}, {"pattern": "absent", "case": "ignore", "glob": ["*.txt"]},
    ],
    "project_structure": [{}, {"depth": 1, "limit": 10}],
}  # fmt: skip


async def test_every_result_matches_its_output_schema(start: Start, tmp_path: Path):
    files = {"plain.txt": "one\ntwo\nthree\n", "empty": "", "crlf.txt": "\ufeffone\r\ntwo\r\n"}
    make_files(tmp_path, files | {"pyproject.toml": "[project]\nname = 'x'\n"})
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "link").symlink_to("plain.txt")
    (tmp_path / ".git").mkdir()
    calls = start()
    schemas = {tool["name"]: tool["outputSchema"] for tool in map(json.loads, calls.workspace.tools)}
    for name, given_arguments in ((name, given_one) for name, many in VARIED.items() for given_one in many):
        result = json.loads(await calls.workspace.call(name, given_arguments, session=calls.session))
        assert not result["isError"], (name, given_arguments, text(result))
        assert text(result)
        jsonschema_rs.validate(schemas[name], result["structuredContent"])


async def test_the_error_for_a_missing_path_names_a_file_of_that_name_elsewhere(start: Start, tmp_path: Path):
    make_files(tmp_path, ("tests/test_sums.py", "src/deep/sums.py", "build/only.py"))
    make_files(tmp_path, {".gitignore": "build/\n"})
    calls = start()
    for tool in ("read_file", "stat_file"):
        assert (await calls.error(tool, path="test_sums.py")).endswith("Did you mean tests/test_sums.py?")
    assert (await calls.error("read_file", path="lib/sums.py")).endswith("Did you mean src/deep/sums.py?")
    message = await calls.error("edit_file", path="sums.py", old="a", new="b")
    assert message.endswith("Did you mean src/deep/sums.py?")
    assert "only.py?" not in await calls.error("read_file", path="only.py")


async def test_internal_errors_are_logged_without_details_for_the_caller(
    start: Start, caplog: pytest.LogCaptureFixture
):
    def fail(*_: Any) -> ToolResult:
        raise RuntimeError("at /secret/place")

    message = await start(fail).error()
    assert "a bug in the workspace" in message
    assert "secret" not in message
    assert "at /secret/place" in caplog.text
    huge = ToolResult(Sought(path="x" * (64 * 1024 * 1024)), "")
    assert "too large" in await start(lambda *_: huge).error()


@pytest.mark.req("FRG-10")
async def test_hanging_calls_are_answered_at_the_time_limit_and_use_a_fixed_number_of_threads(start: Start):
    let_go = threading.Event()
    deadlines: list[float] = []

    def hang(context: ToolContext, _given: Any) -> ToolResult:
        deadlines.append(context.deadline - time.monotonic())
        let_go.wait(LIMIT)
        return EMPTY

    calls = start(hang, time_limit(0.5))
    try:
        messages = await asyncio.gather(*(calls.error() for _ in range(3 * workspace.THREADS)))
    finally:
        let_go.set()
    assert all("longer than 0.5 s" in message for message in messages)
    assert 0 < deadlines[0] <= 0.5
    assert len(deadlines) == workspace.THREADS


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize(
    ("settings", "environ", "off", "message"),
    [
        (settings_with(off=frozenset({"list_dir"})), {}, {"list_dir"}, "switched off"),
        (settings_with(read_only=True), {}, set(WRITING_TOOLS), "read-only"),
        (DEFAULTS, {"CI": "true"}, {"run_shell_safe"}, "CI is set"),
        (settings_with(forbid_shell_in_ci=False), {"CI": "true"}, set(), ""),
    ],
    ids=["off", "read-only", "ci", "ci-allowed"],
)
async def test_a_tool_that_is_off_is_not_listed_and_its_error_has_the_reason(
    start: Start, settings: WorkspaceSettings, environ: dict[str, str], off: set[str], message: str
):
    calls = start(None, settings, environ)
    assert set(calls.hints) == set(BY_NAME) - off
    for name in off:
        assert message in await calls.error(name, path=".", command="touch made", content="x")
    assert not list(calls.workspace.root.iterdir())


@pytest.mark.req("FRG-12")
async def test_every_tool_refuses_while_the_settings_are_broken(start: Start):
    calls = start(None, settings_with(broken="line 3 is nonsense"))
    for tool in TOOLS:
        assert "line 3 is nonsense" in await calls.error(tool.name)


async def test_progress_is_numbered_sent_in_the_loops_thread_and_never_after_the_answer(start: Start):
    sent: list[Any] = []
    let_go, over = threading.Event(), threading.Event()

    def work(context: ToolContext, _given: Any) -> ToolResult:
        assert context.progress is not None
        for step in range(50):
            context.progress(f"step {step}")
        return EMPTY

    def work_late(context: ToolContext, _given: Any) -> ToolResult:
        assert context.progress is not None
        let_go.wait(LIMIT)
        context.progress("too late")
        over.set()
        return EMPTY

    def on_progress(params: Any) -> None:
        sent.append((threading.get_ident(), params))

    assert not (await start(work)(on_progress=on_progress))["isError"]
    steps = [{"progress": step + 1, "message": f"step {step}"} for step in range(50)]
    assert sent == [(threading.get_ident(), step) for step in steps]
    sent.clear()
    result = await start(work_late, time_limit(0.1))(on_progress=on_progress)
    let_go.set()
    assert await asyncio.to_thread(over.wait, LIMIT)
    await asyncio.sleep(0)
    assert result["isError"]
    assert sent == []


class FakeSandbox:
    """Runs one command until it is cancelled."""

    def __init__(self) -> None:
        self.refusal: WorkspaceError | None = None
        self.began = asyncio.Event()
        self.cancelled = False
        self.closed = False

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
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


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def run(ran: list[int]) -> Callable[..., Any]:
    async def run(*_: Any) -> ToolResult:
        ran.append(1)
        return EMPTY

    return run


@pytest.mark.req("FRG-10")
async def test_cancelling_a_call_ends_its_command_and_closing_ends_the_sandbox(start: Start, sandbox: FakeSandbox):
    async def run(context: ToolContext, _given: Any) -> ToolResult:
        await (await context.sandbox()).run()  # type: ignore[call-arg, func-returns-value]
        return EMPTY

    calls = start(run, needs=ToolNeeds.SANDBOX)
    call = asyncio.ensure_future(calls())
    await asyncio.wait_for(sandbox.began.wait(), LIMIT)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, LIMIT)
    assert sandbox.cancelled
    await calls.workspace.close()
    assert sandbox.closed


@pytest.mark.req("FRG-9")
async def test_a_sandbox_that_refuses_stops_commands_but_not_file_tools(
    start: Start, sandbox: FakeSandbox, run: Any, ran: list[int]
):
    sandbox.refusal = WorkspaceError("No bubblewrap here.", remedy="apt install bubblewrap")
    assert await start(run, needs=ToolNeeds.SANDBOX).error() == "No bubblewrap here. apt install bubblewrap"
    assert not ran
    assert not (await start(run)())["isError"]


@pytest.mark.req("FRG-9")
@pytest.mark.usefixtures("sandbox")
async def test_a_command_without_a_sandbox_is_marked_in_the_result_the_log_and_the_annotations(
    start: Start, run: Any, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        result = await start(run, unsafe=True, needs=ToolNeeds.SANDBOX)(path="rm -rf x")
    assert text(result) == f"{workspace.UNSAFE}\ndone"
    assert 'unsandboxed: list_dir {"path":"rm -rf x"' in caplog.text
    hints = start(unsafe=True).hints
    assert {name for name, hint in hints.items() if hint["readOnlyHint"]} == READING
    assert hints["project_diff"]["destructiveHint"], "git runs programs that a repository's configuration names"
    assert start().hints["project_diff"]["readOnlyHint"]


@pytest.mark.req("FRG-9")
@pytest.mark.usefixtures("sandbox")
async def test_a_read_only_workspace_without_a_sandbox_runs_no_code(start: Start, run: Any, ran: list[int]):
    read_only = settings_with(read_only=True)
    calls = start(settings=read_only, unsafe=True)
    assert not {"run_tests", "run_lint", "project_diff", "run_shell_safe"} & set(calls.hints)
    assert "which needs a sandbox" in str(calls.workspace.why_not("project_diff"))
    await start(run, settings=read_only, unsafe=True, needs=ToolNeeds.SANDBOX).error()
    assert not ran
    assert not (await start(run, settings=read_only, needs=ToolNeeds.SANDBOX)())["isError"]
    assert ran


@pytest.mark.req("FRG-10")
async def test_a_session_has_a_limited_number_of_calls_which_can_be_raised(start: Start):
    session = WorkspaceSession(settings_with(session_calls=3).limits)
    for _ in range(3):
        session.count_call()
    error = refused("all 3 calls", session.count_call)
    assert "limits.session_calls" in error.remedy
    assert session.calls == 3
    session.limits = settings_with(session_calls=4).limits
    session.count_call()
    refused("", session.count_call)
    few = settings_with(session_calls=2)
    calls = start(lambda *_: EMPTY, few)
    assert [(await calls())["isError"] for _ in range(3)] == [False, False, True]
    assert not (await dataclasses.replace(calls, session=WorkspaceSession(few.limits))())["isError"]


@pytest.mark.req("FRG-10")
def test_a_session_has_a_quota_of_bytes_and_seconds():
    session = WorkspaceSession(settings_with(session_bytes=100, session_seconds=10.0).limits)
    session.count_written(60)
    refused("At most 40 bytes", session.count_written, 41)
    assert session.written == 60, "a refused write is not counted"
    session.count_written(40)
    refused("At most 0 bytes", session.count_written, 1)
    session.count_written(0)
    assert session.written == 100
    assert session.seconds_left() == 10.0
    session.count_seconds(4.0)
    assert session.seconds_left() == 6.0
    session.count_seconds(6.5)
    assert session.seconds == 10.5
    assert "limits.session_seconds" in refused("all 10 seconds of commands", session.seconds_left).remedy
    session.count_call()
    session.count_written(0)


@pytest.mark.req("FRG-10")
def test_threads_together_never_exceed_a_sessions_limits():
    session = WorkspaceSession(settings_with(session_calls=500, session_bytes=3000).limits)

    def accepted(count: Callable[..., None], *given_arguments: int) -> bool:
        try:
            count(*given_arguments)
        except WorkspaceError:
            return False
        return True

    def use(_: int) -> tuple[int, int]:
        called = written = 0
        for _ in range(200):
            called += accepted(session.count_call)
            written += 7 * accepted(session.count_written, 7)
            session.count_seconds(0.5)
        return called, written

    with ThreadPoolExecutor(8) as pool:
        used = list(pool.map(use, range(8)))
    assert sum(called for called, _ in used) == session.calls == 500
    assert sum(written for _, written in used) == session.written == 3000 // 7 * 7
    assert session.seconds == 8 * 200 * 0.5


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))),
    cuts=st.lists(st.integers(0, 300), max_size=10),
)
def test_messages_are_whole_lines_for_any_chunks_of_a_pipe(lines: list[bytes], cuts: list[int]):
    whole = b"".join(line + b"\n" for line in lines)
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(edges)]
    assert list(split_messages(pieces)) == [line.strip() for line in lines if line.strip()]


def test_a_line_beyond_the_limit_is_dropped_but_not_the_next_one():
    piece = b"x" * (1024 * 1024)
    long = [piece] * (MAX_MESSAGE_SIZE // len(piece)) + [b"x\nnext\n"]
    assert list(split_messages(long)) == [b"next"]


@pytest.mark.req("FRG-2")
def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path):
    secret, file = "s" * 40, tmp_path / "token"
    for content, mode in ((secret, 0o644), (secret, 0o620), ("short", 0o600), (f"{secret} s", 0o600), ("", 0o600)):
        file.write_text(content)
        file.chmod(mode)
        with pytest.raises(ConfigError), open_token({}, file, tmp_path / "other"):
            pass


@pytest.mark.req("FRG-2")
def test_a_generated_token_is_private_and_deleted_with_the_server(tmp_path: Path):
    with open_token({}, None, tmp_path / "made") as made:
        assert (tmp_path / "made").read_text().strip() == made.value
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
        assert made.value not in made.where
    assert not (tmp_path / "made").exists()
    with open_token({}, tmp_path / "kept", tmp_path / "made") as first:
        pass
    with open_token({}, tmp_path / "kept", tmp_path / "made") as second:
        assert second == first


@pytest.mark.req("FRG-2")
def test_importing_the_workspace_imports_no_heavy_modules():
    code = "import sys, toolcrib.workspace; print(sorted({'mcp', 'yaml', 'pathspec', 'msgspec'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True, timeout=30).strip() == "[]"
