"""The coding tools Read, Write, Edit, Glob and Grep on real files."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.claude_tools import CLAUDE_CODE
from toolcrib.agent_loop.coding import BuiltinTools, coding_tools
from toolcrib.agent_loop.options import CodingAccess, CodingTools
from toolcrib.audit.row import count_tokens
from toolcrib.catalog.offered_tool import destructive, read_only
from toolcrib.errors import ConfigError, UnknownTool, UsageError
from toolcrib.workspace.regex import MatchedLine
from toolcrib.workspace.settings.model import _VARIABLES as CI
from toolcrib.workspace.tools import search_text

pytestmark = pytest.mark.req("KAI-5")

PAGE = Path(__file__).parents[2] / "docs" / "coding-tools.md"
MORE = "(There is more: narrow the search, or raise head_limit.)"
NOT_OFFERED: dict[str, set[str]] = {
    "Bash": {"run_in_background", "dangerouslyDisableSandbox"},
    "Grep": {"offset", "multiline", "context", "-o"},
    "Read": {"pages", "allow_large"},
}
NEEDED = {
    "Bash": ["command"],
    "Edit": ["file_path", "old_string", "new_string"],
    "Glob": ["pattern"],
    "Grep": ["pattern"],
    "Read": ["file_path"],
    "Write": ["file_path", "content"],
}
WORKSPACE_NAMES = ("list_dir", "read_file", "write_file", "edit_file", "find_files", "search_text", "run_shell_safe")

Open = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a user without configuration or bubblewrap: no test here runs a command."""
    made = tmp_path / "p"
    made.mkdir()
    for name in ("TOOLCRIB_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", *CI):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return made


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open_tools(root: Path, allowed: CodingAccess = CodingAccess.ALL) -> BuiltinTools:
            return await stack.enter_async_context(coding_tools(CodingTools(allowed=allowed, root=root)))

        yield open_tools


@pytest.fixture
async def tools(root: Path, opened: Open) -> BuiltinTools:
    made: BuiltinTools = await opened(root)
    return made


async def does(tools: BuiltinTools, name: str, **arguments: Any) -> str:
    result = await tools.call(name, arguments)
    assert not result.is_error, result.text
    assert result.structured is None, "a model that gets both would read everything twice"
    return result.text


async def refuses(tools: BuiltinTools, name: str, **arguments: Any) -> str:
    result = await tools.call(name, arguments)
    assert result.is_error, result.text
    assert not any(name in result.text for name in WORKSPACE_NAMES), result.text
    return result.text


def names(tools: BuiltinTools) -> set[str]:
    return {offer.name for offer in tools.offers}


def configure(root: Path, settings_text: str) -> None:
    (root / ".toolcrib").mkdir()
    (root / ".toolcrib" / "workspace.yml").write_text(settings_text)


async def test_offers_match_claude_code_and_the_documentation(tools: BuiltinTools) -> None:
    offered = {offer.name: set(offer.schema["properties"]) for offer in tools.offers}
    assert offered == {name: known - NOT_OFFERED.get(name, set()) for name, known in CLAUDE_CODE.items()}
    rows = re.findall(r"^\| (\w+) \| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert offered == {name: set(re.findall(r"`(.*?)`", parameters)) for name, parameters in rows}
    assert {offer.name: offer.schema["required"] for offer in tools.offers} == NEEDED
    assert all(offer.schema["additionalProperties"] is False for offer in tools.offers)
    assert {offer.server for offer in tools.offers} == {""}
    assert {offer.name for offer in tools.offers if read_only(offer)} == {"Read", "Glob", "Grep"}
    assert {offer.name for offer in tools.offers if destructive(offer)} == {"Write", "Edit", "Bash"}
    seen = [{"name": one.name, "description": one.description, "input_schema": one.schema} for one in tools.offers]
    tokens = count_tokens(msgspec.json.encode(seen))
    assert tokens is not None
    assert (tokens.estimated, tokens.tokens < 800) == (False, True), "Claude Code's own six have 5,253"


async def test_read_only_tools_change_nothing(root: Path, opened: Open) -> None:
    (root / "a.txt").write_text("a\n")
    tools = await opened(root, CodingAccess.READ_ONLY)
    assert names(tools) == {"Read", "Glob", "Grep"}
    await does(tools, "Read", file_path="a.txt")
    await refuses(tools, "Write", file_path="a.txt", content="b\n")
    await refuses(tools, "Edit", file_path="a.txt", old_string="a", new_string="b")
    await refuses(tools, "Bash", command="echo b >a.txt")
    assert (root / "a.txt").read_text() == "a\n"


async def test_without_access_nothing_is_offered_and_the_folder_is_not_opened(opened: Open) -> None:
    tools = await opened(Path("/nowhere"), CodingAccess.NONE)
    assert tools.offers == ()
    with pytest.raises(UnknownTool):
        await tools.call("Read", {"file_path": "/etc/passwd"})


async def test_a_folders_settings_can_restrict_the_tools(root: Path, opened: Open) -> None:
    configure(root, "tools: {search_text: false}\nread_only: true\n")
    tools = await opened(root)
    assert names(tools) == {"Read", "Glob"}
    assert "switched off" in await refuses(tools, "Grep", pattern="x")
    refusal = await refuses(tools, "Write", file_path="a.txt", content="x")
    assert "read-only" in refusal
    assert "linters" not in refusal


async def test_a_projects_own_settings_cannot_add_permissions(root: Path, opened: Open) -> None:
    configure(root, "network: true\nlimits: {seconds: {run_shell_safe: 9999}}\n")
    (bash,) = (offer for offer in (await opened(root)).offers if offer.name == "Bash")
    assert "no network" in bash.description
    assert "120000 ms" in bash.description


async def test_bash_is_not_offered_in_ci(root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    tools = await opened(root)
    assert "Bash" not in names(tools)
    refusal = await refuses(tools, "Bash", command="true")
    assert "not available in CI" in refusal
    assert "linters" not in refusal


async def test_invalid_settings_and_unusable_folders_are_refused_at_the_start(
    root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "file").write_text("")
    home = root / "home"
    own = home / "own"
    own.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOOLCRIB_HOME", str(own))
    descriptors = open_descriptors()
    for folder in (root / "missing", root / "file", Path("/"), home, own):
        with pytest.raises(UsageError, match=r"coding_tools: .* cannot be a workspace") as refused:
            await opened(folder)
        assert refused.value.remedy
    configure(root, "read_only: [\n")
    with pytest.raises(ConfigError):
        await opened(root)
    assert open_descriptors() == descriptors


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_a_relative_root_is_resolved_at_the_start(
    root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.txt").write_text("here\n")
    monkeypatch.chdir(root)
    tools = await opened(Path())
    monkeypatch.chdir("/")
    assert await does(tools, "Read", file_path=str(root / "a.txt")) == "1\there"
    assert any(str(root) in offer.description for offer in tools.offers)


async def test_closing_leaves_no_open_descriptor(root: Path) -> None:
    before = open_descriptors()
    for _ in range(3):
        async with coding_tools(CodingTools.read_only(root)) as tools:
            await does(tools, "Glob", pattern="*")
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("Read", {}, "needs the argument 'file_path'"),
        ("Read", {"path": "a"}, "Did you mean 'file_path'?"),
        ("Read", {"file_path": 3}, "'file_path' is wrong"),
        ("Read", {"file_path": "a", "limit": 0}, "'limit' is wrong"),
        ("Edit", {"file_path": "a", "old_str": "b", "new_string": "c"}, "Did you mean 'old_string'?"),
        ("Bash", {"command": "true", "run_in_background": True}, "no argument 'run_in_background'"),
        ("Bash", {"command": "true", "timeout": 0}, "'timeout' is wrong"),
        ("Grep", {"pattern": "x", "multiline": True}, "no argument 'multiline'"),
        ("Grep", {"pattern": "x", "-A": -1}, "'-A' is wrong"),
        ("Grep", {"pattern": "x", "output_mode": "lines"}, "'output_mode' is wrong"),
        ("Grep", {"pattern": "x", "type": "cobol"}, "Known: c, cpp"),
        ("Glob", {"pattern": ""}, "'pattern' is wrong"),
        ("LS", {"path": "."}, "There is no tool 'LS'"),
    ],
)
async def test_wrong_arguments_get_an_error_with_a_correction(
    tools: BuiltinTools, name: str, arguments: dict[str, Any], error: str
) -> None:
    assert error in await refuses(tools, name, **arguments)


async def test_null_arguments_count_as_omitted(root: Path, tools: BuiltinTools) -> None:
    (root / "a.txt").write_text("a\n")
    assert await does(tools, "Read", file_path="a.txt", offset=None, limit=None) == "1\ta"
    assert await does(tools, "Grep", pattern="a", path=None, **{"-A": None}) == "Found 1 file\na.txt"


@given(
    name=st.sampled_from(sorted(CLAUDE_CODE)),
    arguments=st.dictionaries(
        st.sampled_from(sorted({key for known in CLAUDE_CODE.values() for key in known})),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(), max_size=2),
        max_size=6,
    ),
)
@settings(max_examples=60)
async def test_a_call_with_any_arguments_returns_a_text(root: Path, name: str, arguments: dict[str, Any]) -> None:
    async with coding_tools(CodingTools.read_only(root)) as tools:
        result = await tools.call(name, arguments)
    assert "a bug in the workspace" not in result.text
    assert [block.raw["type"] for block in result.blocks] == ["text"]


async def test_read_numbers_the_lines_of_any_path_and_any_line_ending(root: Path, tools: BuiltinTools) -> None:
    (root / "a.py").write_text("import os\n\nprint(os)\n")
    for path in ("a.py", "./a.py", str(root / "a.py"), f"{root}/sub/../a.py"):
        assert await does(tools, "Read", file_path=path) == "1\timport os\n2\t\n3\tprint(os)"
    for content in ("one\r\ntwo\r\n", "one\rtwo\r", "one\ntwo", "\ufeffone\ntwo\n"):
        (root / "a.txt").write_bytes(content.encode())
        assert await does(tools, "Read", file_path="a.txt") == "1\tone\n2\ttwo", content


async def test_read_returns_a_range_or_how_to_continue(root: Path, tools: BuiltinTools) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    assert await does(tools, "Read", file_path="a.txt", offset=98, limit=2) == "98\tline 98\n99\tline 99"
    assert await does(tools, "Read", file_path="a.txt", offset=0, limit=1) == "1\tline 1"
    assert "the file has 100" in await refuses(tools, "Read", file_path="a.txt", offset=101)
    (root / "many").write_text("x\n" * 2500)
    first = await does(tools, "Read", file_path="many")
    assert first.endswith("\n2000\tx\n\n(Lines 1-2000 of 2500. Continue with offset: 2001.)")
    assert (await does(tools, "Read", file_path="many", offset=2001)).endswith("\n2500\tx")
    (root / "wide").write_text("y" * 100_000 + "\nlast\n")
    wide = await does(tools, "Read", file_path="wide")
    assert wide.endswith("(Line 1 is too long to show whole. Continue with offset: 2.)")
    assert len(wide) < 40_000
    assert await does(tools, "Read", file_path="wide", offset=2) == "2\tlast"


async def test_read_explains_files_that_are_not_plain_text(root: Path, tools: BuiltinTools) -> None:
    (root / "empty").write_text("")
    assert await does(tools, "Read", file_path="empty") == "The file exists but is empty."
    (root / "odd").write_bytes(b"a\xffb\n")
    assert "Edit keeps them" in await does(tools, "Read", file_path="odd")
    (root / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert "not text (108 B)" in await refuses(tools, "Read", file_path="image.png")
    (root / "folder").mkdir()
    assert "is a folder" in await refuses(tools, "Read", file_path="folder")
    (root / "folder" / "main.py").write_text("")
    assert "Did you mean folder/main.py?" in await refuses(tools, "Read", file_path="main.py")


async def test_write_creates_a_file_and_its_folders(root: Path, tools: BuiltinTools) -> None:
    assert await does(tools, "Write", file_path=f"{root}/new/deep/a.txt", content="größe\n") == (
        "Created new/deep/a.txt: 8 bytes written."
    )
    assert (root / "new/deep/a.txt").read_bytes() == "größe\n".encode()
    await does(tools, "Write", file_path="new/deep/a.txt", content="again\n")
    assert (root / "new/deep/a.txt").read_text() == "again\n", "its own content counts as read"


async def test_write_does_not_replace_an_unread_file(root: Path, tools: BuiltinTools) -> None:
    (root / "a.txt").write_text("mine\n")
    assert "has not been read" in await refuses(tools, "Write", file_path="a.txt", content="yours\n")
    await refuses(tools, "Read", file_path="a.txt", offset=99)
    assert "has not been read" in await refuses(tools, "Write", file_path="a.txt", content="yours\n")
    assert (root / "a.txt").read_text() == "mine\n"
    await does(tools, "Edit", file_path="a.txt", old_string="mine", new_string="ours")
    assert "has not been read" in await refuses(tools, "Write", file_path="a.txt", content="yours\n")
    (root / "link").symlink_to("a.txt")
    await does(tools, "Read", file_path="link")
    await does(tools, "Write", file_path="a.txt", content="yours\n")
    assert (root / "a.txt").read_text() == "yours\n"


async def test_write_does_not_replace_a_file_that_changed_since_it_was_read(root: Path, tools: BuiltinTools) -> None:
    path = root / "a.txt"
    path.write_text("one\n")
    await does(tools, "Read", file_path="a.txt")
    path.write_text("two\n")
    assert "has changed since" in await refuses(tools, "Write", file_path="a.txt", content="three\n")
    await does(tools, "Edit", file_path="a.txt", old_string="two", new_string="2")
    assert "has changed since" in await refuses(tools, "Write", file_path="a.txt", content="three\n")
    await does(tools, "Read", file_path="a.txt")
    await does(tools, "Edit", file_path="a.txt", old_string="2", new_string="two")
    await does(tools, "Write", file_path="a.txt", content="three\n")
    assert path.read_text() == "three\n"
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_text("THREE\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert "has changed since" in await refuses(tools, "Write", file_path="a.txt", content="four\n")
    assert path.read_text() == "THREE\n"


async def test_write_does_not_replace_a_partly_shown_file(root: Path, tools: BuiltinTools) -> None:
    path = root / "long.txt"
    content = "".join(f"line {n}\n" for n in range(1, 5001))
    path.write_text(content)
    written = {"file_path": "long.txt", "content": "short\n"}
    for offset, limit, missing in [(1, 1, 2), (4001, 2000, 2), (1990, 2000, 2), (1, 500, 501), (400, 1500, 1900)]:
        await does(tools, "Read", file_path="long.txt", offset=offset, limit=limit)
        start = f"long.txt has not been read completely: line {missing} was not shown. Read it from line"
        assert (await refuses(tools, "Write", **written)).startswith(start)
        assert path.read_text() == content
    await does(tools, "Read", file_path="long.txt", offset=1900, limit=90)
    await does(tools, "Read", file_path="long.txt", offset=3990, limit=11)
    await does(tools, "Write", **written)
    assert path.read_text() == "short\n"


async def test_write_requires_all_lines_of_the_current_version(root: Path, tools: BuiltinTools) -> None:
    path = root / "a.txt"
    path.write_text("one\ntwo\n")
    await does(tools, "Read", file_path="a.txt", limit=1)
    path.write_text("uno\ndue\n")
    await does(tools, "Read", file_path="a.txt", offset=2)
    assert "line 1 was not shown" in await refuses(tools, "Write", file_path="a.txt", content="x")
    await does(tools, "Read", file_path="a.txt", limit=1)
    await does(tools, "Edit", file_path="a.txt", old_string="due", new_string="2")
    await does(tools, "Write", file_path="a.txt", content="x")
    await does(tools, "Write", file_path="a.txt", content="y")
    assert path.read_text() == "y"


async def test_write_does_not_replace_a_line_that_is_too_long_to_show(root: Path, tools: BuiltinTools) -> None:
    (root / "wide").write_text("y" * 100_000 + "\nlast\n")
    await does(tools, "Read", file_path="wide")
    await does(tools, "Read", file_path="wide", offset=2)
    assert "line 1 was not shown" in await refuses(tools, "Write", file_path="wide", content="x")
    await does(tools, "Edit", file_path="wide", old_string="last", new_string="end")
    (root / "empty").write_text("")
    await does(tools, "Read", file_path="empty")
    await does(tools, "Write", file_path="empty", content="x")


async def test_a_read_by_another_run_does_not_count(root: Path, opened: Open) -> None:
    (root / "a.txt").write_text("one\n")
    first, second = await opened(root), await opened(root)
    await does(first, "Read", file_path="a.txt")
    assert "has not been read" in await refuses(second, "Write", file_path="a.txt", content="two\n")


async def test_edit_replaces_one_place_or_all_and_keeps_line_endings(root: Path, tools: BuiltinTools) -> None:
    (root / "a.py").write_text("x = 1\ny = x\n")
    assert await does(tools, "Edit", file_path=f"{root}/a.py", old_string="y = x", new_string="y = 2") == (
        "Edited a.py in 1 place."
    )
    await does(tools, "Edit", file_path="a.py", old_string=" = ", new_string="=", replace_all=True)
    assert (root / "a.py").read_text() == "x=1\ny=2\n"
    (root / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await does(tools, "Edit", file_path="a.txt", old_string="one\ntwo", new_string="1\n2")
    assert (root / "a.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


async def test_a_failed_edit_gives_the_reason_and_changes_nothing(root: Path, tools: BuiltinTools) -> None:
    content = "def one():\n    return 1\n\ndef two():\n    return 1\n"
    (root / "a.py").write_text(content)
    twice = await refuses(tools, "Edit", file_path="a.py", old_string="return 1", new_string="return 2")
    assert "occurs 2 times (lines 2, 5)" in twice
    assert "replace_all: true" in twice
    near = await refuses(tools, "Edit", file_path="a.py", old_string="def  two():", new_string="def three():")
    assert "4: def two():" in near
    assert "are the same" in await refuses(tools, "Edit", file_path="a.py", old_string="one", new_string="one")
    assert (root / "a.py").read_text() == content
    (root / "b").write_bytes(bytes(100))
    assert "Only text" in await refuses(tools, "Edit", file_path="b", old_string="x", new_string="y")


async def test_edit_with_an_empty_old_string_only_creates_files(root: Path, tools: BuiltinTools) -> None:
    await does(tools, "Edit", file_path="a.txt", old_string="", new_string="new\n")
    refusal = await refuses(tools, "Edit", file_path="a.txt", old_string="", new_string="newer\n")
    assert refusal == "a.txt already exists. To change it, give the text to replace as old_string."
    assert (root / "a.txt").read_text() == "new\n"


@pytest.fixture
def tree(root: Path) -> Path:
    for age, path in enumerate(["src/new.py", "src/deep/mid.py", "old.py", "notes.md", "build/out.py"]):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"value = '{path}'\n")
        os.utime(root / path, (10**9 - age, 10**9 - age))
    (root / ".gitignore").write_text("build/\n")
    return root


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "**/*.py"}, ["src/new.py", "src/deep/mid.py", "old.py"]),
        ({"pattern": "*.py"}, ["src/new.py", "src/deep/mid.py", "old.py"]),
        ({"pattern": "src/*.py"}, ["src/new.py"]),
        ({"pattern": "*.py", "path": "src/deep"}, ["src/deep/mid.py"]),
        ({"pattern": "*.{md,txt}"}, ["notes.md"]),
        ({"pattern": "{root}/src/**/*.py"}, ["src/new.py", "src/deep/mid.py"]),
        ({"pattern": "{root}/old.py"}, ["old.py"]),
        ({"pattern": "../*.md", "path": "src"}, ["notes.md"]),
        ({"pattern": "*.py", "path": "{root}/src/deep"}, ["src/deep/mid.py"]),
        ({"pattern": "*.py", "path": "build"}, ["build/out.py"]),
    ],
)
async def test_glob_lists_paths_newest_first(
    tree: Path, tools: BuiltinTools, arguments: dict[str, str], found: list[str]
) -> None:
    given = {name: text.replace("{root}", str(tree)) for name, text in arguments.items()}
    assert (await does(tools, "Glob", **given)).split("\n") == found


async def test_glob_reports_skipped_and_omitted_files(tree: Path, tools: BuiltinTools) -> None:
    assert (await does(tools, "Glob", pattern="*.zig")).startswith("No files found\n(1 entry in .gitignore skipped")
    for n in range(250):
        (tree / f"{n}.txt").write_text("")
    many = await does(tools, "Glob", pattern="*.txt")
    assert many.count("\n") == 201
    assert "(200 of 250 shown." in many


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "{root}/../*", "src/../../*", "*/../../*", "/**"])
async def test_glob_does_not_leave_the_folder(tree: Path, tools: BuiltinTools, pattern: str) -> None:
    await refuses(tools, "Glob", pattern=pattern.replace("{root}", str(tree)))


@pytest.fixture
def texts(root: Path) -> Path:
    (root / "a.py").write_text("one\ntwo\nthree\nfour\nTwo\nsix\n")
    (root / "b.txt").write_text("two\nnone\n")
    (root / "c.bin").write_bytes(b"two\0two\n")
    return root


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({}, "Found 2 files\na.py\nb.txt"),
        ({"output_mode": "content"}, "a.py:2:two\nb.txt:1:two"),
        ({"output_mode": "content", "-n": False}, "a.py:two\nb.txt:two"),
        ({"output_mode": "content", "-i": True}, "a.py:2:two\na.py:5:Two\nb.txt:1:two"),
        ({"output_mode": "content", "path": "a.py"}, "2:two"),
        ({"output_mode": "content", "path": "a.py", "-n": False}, "two"),
        ({"output_mode": "content", "glob": "*.py", "-B": 1}, "a.py-1-one\na.py:2:two"),
        ({"output_mode": "content", "glob": "*.py", "-A": 2}, "a.py:2:two\na.py-3-three\na.py-4-four"),
        ({"output_mode": "content", "glob": "*.py", "-C": 1, "-A": 0}, "a.py-1-one\na.py:2:two"),
        ({"output_mode": "content", "-C": 1}, "a.py-1-one\na.py:2:two\na.py-3-three\n--\nb.txt:1:two\nb.txt-2-none"),
        (
            {"output_mode": "content", "path": "a.py", "-i": True, "-C": 1},
            "1-one\n2:two\n3-three\n4-four\n5:Two\n6-six",
        ),
        ({"output_mode": "count", "-i": True}, "a.py:2\nb.txt:1\n\nFound 3 matching lines in 2 files."),
        ({"type": "py"}, "Found 1 file\na.py"),
        ({"type": "python", "glob": "b*"}, "No files found"),
        ({"glob": "*.md,*.txt"}, "Found 1 file\nb.txt"),
        ({"glob": "*.{py,md}"}, "Found 1 file\na.py"),
        ({"head_limit": 1}, f"Found 1 file\na.py\n\n{MORE}"),
        ({"output_mode": "content", "head_limit": 2, "-C": 1}, f"a.py-1-one\na.py:2:two\n\n{MORE}"),
        ({"head_limit": 0}, "Found 2 files\na.py\nb.txt"),
        ({"-A": 3}, "Found 2 files\na.py\nb.txt"),
    ],
)
async def test_grep_shows_files_lines_or_counts(
    texts: Path, tools: BuiltinTools, arguments: dict[str, Any], output: str
) -> None:
    assert await does(tools, "Grep", pattern="two", **arguments) == output


@pytest.mark.parametrize("mode", ["content", "count", "files_with_matches"])
async def test_grep_without_matches_reports_skipped_files(texts: Path, tools: BuiltinTools, mode: str) -> None:
    (texts / ".gitignore").write_text("a.py\n")
    output = await does(tools, "Grep", pattern="nowhere", output_mode=mode)
    assert output.startswith("No files found" if mode == "files_with_matches" else "No matches found")
    assert "1 entry in .gitignore skipped" in output
    assert "1 binary file skipped" in output


async def test_grep_counts_every_match_but_shows_a_limited_number(root: Path, tools: BuiltinTools) -> None:
    (root / "many").write_text("two\n" * 5000)
    assert (await does(tools, "Grep", pattern="two", output_mode="count")).startswith("many:5000\n")
    content = await does(tools, "Grep", pattern="two", output_mode="content", head_limit=0)
    assert "There is more" in content
    assert len(content) < 20_000


async def test_grep_stops_searching_when_the_answer_is_full(
    root: Path, tools: BuiltinTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "wide").write_text(("w" * 290 + "x\n") * 3000)
    looked: list[int] = []
    real = search_text.matching_lines

    def counted(*given: Any, **named: Any) -> Iterator[MatchedLine]:
        for line in real(*given, **named):
            looked.append(line.number)
            yield line

    monkeypatch.setattr(search_text, "matching_lines", counted)
    output = await does(tools, "Grep", pattern="x$", output_mode="content", head_limit=0, **{"-C": 20})
    assert "There is more" in output
    shown = output.count("\n") - 1
    assert shown > 20
    assert len(looked) <= shown + 5
    assert "'-C' is wrong" in await refuses(tools, "Grep", pattern="x", output_mode="content", **{"-C": 21})


async def test_grep_explains_invalid_patterns_and_paths(texts: Path, tools: BuiltinTools) -> None:
    refusal = await refuses(tools, "Grep", pattern="(two")
    assert "missing )" in refusal
    assert "literal" not in refusal
    assert "look-around" in await refuses(tools, "Grep", pattern="(?=two)")
    assert "does not exist" in await refuses(tools, "Grep", pattern="two", path="nowhere")


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_all_tools_refuse_if_the_folder_was_moved(root: Path, tools: BuiltinTools, is_replaced: bool) -> None:
    (root / "a.txt").write_text("one\n")
    await does(tools, "Read", file_path="a.txt")
    moved = root.rename(root.with_name("moved"))
    if is_replaced:
        root.mkdir()
    for name, arguments in [
        ("Read", {"file_path": "a.txt"}),
        ("Write", {"file_path": "new.txt", "content": "x"}),
        ("Write", {"file_path": "a.txt", "content": "x"}),
        ("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "x"}),
        ("Glob", {"pattern": "*"}),
        ("Grep", {"pattern": "one"}),
        ("Bash", {"command": "true"}),
    ]:
        assert "no longer the folder that was opened" in await refuses(tools, name, **arguments), name
    assert [(path.name, path.read_text()) for path in moved.iterdir()] == [("a.txt", "one\n")]
    assert not is_replaced or list(root.iterdir()) == []
