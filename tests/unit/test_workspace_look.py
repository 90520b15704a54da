"""list_dir, find_files and project_structure: correct, limited, and blind to everything outside."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parts.tool_context import FileTools, file_tools, make_files, refused
from toolcrib.workspace.tools.listing import FileOrder

pytestmark = pytest.mark.req("FRG-1")

CANARY = "canary-outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def tools(root: Path) -> Iterator[FileTools]:
    with file_tools(root) as tools:
        yield tools


def test_a_folder_is_listed_with_kinds_sizes_and_totals(tools: FileTools, root: Path):
    make_files(root, ("src/a.py", "readme.md", "src/deep/b.py"))
    (root / "link").symlink_to("src")
    result = tools.call("list_dir")
    assert result.text.splitlines() == [".: 3 entries", "link  (link)", "readme.md  9 B", "src/"]
    expected = {"files": {"readme.md": 9}, "folders": ["src"], "links": ["link"], "total": 3}
    assert json.loads(msgspec.json.encode(result.data)) == expected
    deeper = tools.list(depth=3)
    assert list(deeper.files) == ["readme.md", "src/a.py", "src/deep/b.py"]
    assert deeper.folders == ["src", "src/deep"]
    assert list(tools.list(path="src", depth=2, glob="*.py").files) == ["src/a.py", "src/deep/b.py"]
    assert list(tools.list(path="src", depth=2, glob="/*.py").files) == ["src/a.py"]


def test_a_list_that_is_cut_has_the_total_and_a_remedy(tools: FileTools, root: Path):
    make_files(root, (f"f{n:03}" for n in range(300)))
    data = tools.list(limit=10)
    assert list(data.files) == [f"f{n:03}" for n in range(10)]
    assert (data.total, data.truncated) == (300, True)
    assert "290 more are not shown" in data.note
    assert "glob" in data.note


def test_ignored_files_are_counted_and_shown_on_request(tools: FileTools, root: Path):
    make_files(root, {"a.pyc": "", "b.pyc": "", "c.py": "", ".gitignore": "*.pyc\n"})
    data = tools.list()
    assert (list(data.files), data.ignored) == ([".gitignore", "c.py"], 2)
    assert "ignored: true" in tools.call("list_dir").text
    assert list(tools.list(ignored=True).files) == [".gitignore", "a.pyc", "b.pyc", "c.py"]
    none = tools.find("*.pyc")
    assert (none.files, none.ignored) == ([], 2)
    assert tools.find("*.pyc", ignored=True).total == 2


def test_files_are_found_by_several_globs_and_exceptions(tools: FileTools, root: Path):
    make_files(root, ("src/a.py", "src/test_a.py", "web/b.ts", "web/b.min.ts", "docs/c.md"))
    assert tools.find("**/*.py", "*.ts", "!*.min.ts", "!test_*").files == ["src/a.py", "web/b.ts"]
    assert tools.find("*.ts", path="web").files == ["web/b.min.ts", "web/b.ts"]
    assert tools.call("find_files", glob=["*.rs"]).text == "0 files match"
    assert "src" in refused("", tools.list, path="sr").remedy
    assert "src" in refused("", tools.find, "*", path="sr").remedy


def test_the_newest_files_come_first_on_request(tools: FileTools, root: Path):
    make_files(root, (f"f{n}" for n in range(20)))
    for n in range(20):
        os.utime(root / f"f{n}", (1_700_000_000 + n, 1_700_000_000 + n))
    data = tools.find("*", sort=FileOrder.NEWEST, limit=3)
    assert data.files == ["f19", "f18", "f17"]
    assert data.modified == ["2023-11-14T22:13:39Z", "2023-11-14T22:13:38Z", "2023-11-14T22:13:37Z"]
    assert (data.total, data.truncated) == (20, True)


def test_unusual_names_are_shown_safely(tools: FileTools, root: Path):
    make_files(root, dict.fromkeys((os.fsdecode(b"caf\xe9\\x"), "two\nlines", "\u202egnp.exe"), "x"))
    result = tools.call("list_dir")
    data = json.loads(msgspec.json.encode(result.data))
    assert set(data["files"]) == {"caf\\xe9\\\\x", "two\nlines", "\u202egnp.exe"}
    assert data["escaped"] == ["caf\\xe9\\\\x"]
    assert len(result.text.splitlines()) == 4, "a name cannot add a line"
    assert "\u202e" not in result.text


def test_no_result_exceeds_the_output_limit(root: Path):
    make_files(root, (f"{'n' * 200}{n:03}" for n in range(500)))
    with file_tools(root, output=10_000) as tools:
        listed = tools.call("list_dir", limit=1000)
        assert "not shown" in listed.text
        assert tools.list(limit=1000).total == 500
        for result in (listed, tools.call("find_files", glob=["*"], limit=1000)):
            assert len(result.text) < 11_000
            assert len(msgspec.json.encode(result.data)) < 11_000
        for n in range(500):
            (root / f"{'d' * 200}{n:03}").mkdir()
        data = tools.structure(limit=1000)
    assert len(data.tree) < 10_000
    assert (data.folders, data.truncated) == (500, True)


PROJECT = {
    ".gitignore": "dist/\n",
    "Makefile": "NAME := x\n.PHONY: all\nall: build\nbuild:\n\techo hi\nx::y\n",
    "README.md": "x" * 9,
    "big.bin": "\0" * 5000,
    "pyproject.toml": '[project]\n[project.scripts]\nrun-me = "x:main"\n[tool.ruff]\n[tool.pytest.ini_options]\n',
    "src/pkg/a.py": "x" * 12,
    "src/pkg/b.py": "x" * 12,
    "web/app.ts": "x" * 10,
    "web/dist/out.js": "x",
    "web/package.json": '{"scripts": {"build": "rm -rf /", "test": "vitest"}}',
}


def test_the_structure_of_a_project_is_summarized(tools: FileTools, root: Path):
    assert "Largest" not in tools.call("project_structure").text
    make_files(root, PROJECT)
    data = tools.structure()
    assert data.tree.splitlines()[1:] == [
        "  .gitignore Makefile README.md big.bin pyproject.toml",
        "  src/  2 files, 24 B",
        "    pkg/  2 files, 24 B",
        "  web/  2 files, 62 B",
    ]
    assert (data.files, data.folders, data.ignored, data.truncated) == (9, 3, 1, False)
    languages = {"JSON": 1, "Make": 1, "Markdown": 1, "Python": 2, "TOML": 1, "TypeScript": 1}
    assert {one.name: one.files for one in data.languages} == languages
    assert next(iter(data.largest)) == "big.bin"
    assert {p.file: [(fact.what, fact.names) for fact in p.facts] for p in data.projects} == {
        "Makefile": [("targets", ["all", "build"])],
        "pyproject.toml": [("scripts", ["run-me"]), ("tools", ["ruff", "pytest"])],
        "web/package.json": [("scripts", ["build", "test"])],
    }
    assert "Node (web/package.json; scripts: build, test)" in tools.call("project_structure").text


def test_a_large_tree_is_cut_by_whole_levels(tools: FileTools, root: Path):
    make_files(root, (f"d{n:02}/e{m}/f" for n in range(20) for m in range(5)))
    shallow, cut = tools.structure(limit=50), tools.structure(limit=10)
    assert shallow.tree.count("\n") == 20
    assert "stops at level 1" in shallow.note
    assert cut.tree.count("\n") == 10
    assert "10 folders are not shown" in cut.note
    assert cut.files == 100, "hidden files are counted"


@pytest.mark.parametrize("name", ["package.json", "pyproject.toml", "Cargo.toml", "go.mod", "Makefile"])
def test_a_broken_project_file_is_named_without_facts(tools: FileTools, root: Path, name: str):
    for content in ("{" * 100_000, "[" * 50_000, "\ud800", "a = " + "[" * 20_000, "{}", "[]"):
        (root / name).write_bytes(content.encode("utf-8", "surrogatepass"))
        (project,) = tools.structure().projects
        assert (project.file, project.facts) == (name, [])


PATHS = [
    "..", "../outside", "{outside}", "{root}-evil", "link-out", "link-out/sub", "link-file", "folder/up/../outside",
    ".toolcrib/runs", ".toolcrib/runs/log.txt", ".TOOLCRIB/runs", ".git", ".git/config", "link-git", "link-runs",
    "secrets", "secrets/key.txt", "a\0b", "x/" * 3000, "x" * 300, "half\ud800", "fifo", "device", "/proc/self/environ",
    "/proc/self/cwd", "/etc", "/", "nowhere",
]  # fmt: skip
CALLS: dict[str, dict[str, Any]] = {
    "list_dir": {"depth": 9, "ignored": True},
    "find_files": {"glob": ["**"], "ignored": True},
    "project_structure": {},
    "search_text": {"pattern": "canary|x", "ignored": True},
}


@pytest.fixture
def trapped(root: Path, tmp_path: Path) -> Iterator[FileTools]:
    theirs = (f"outside/{CANARY}.txt", f"outside/sub/{CANARY}.txt", f"root-evil/{CANARY}.txt")
    make_files(tmp_path, dict.fromkeys(theirs, f"{CANARY}\n"))
    protected = (".toolcrib/runs/log.txt", ".git/config", "secrets/key.txt", f".toolcrib/runs/{CANARY}")
    make_files(root, dict.fromkeys(protected, f"{CANARY}\n") | {"folder/file.txt": "x"})
    links = {"link-out": tmp_path / "outside", "link-file": tmp_path / theirs[0], "link-git": ".git"}
    for name, target in (links | {"link-runs": ".toolcrib/runs", "folder/up": "../..", "folder/loop": "."}).items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "fifo")
    try:
        os.mknod(root / "device", 0o20600, os.makedev(1, 5))
    except OSError:
        # Only root may create devices; a link to /dev/zero is as endless.
        (root / "device").symlink_to("/dev/zero")
    with file_tools(root, hidden=("secrets/",)) as tools:
        yield tools


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize("tool", CALLS)
def test_paths_that_lead_out_or_to_protected_files_are_refused(trapped: FileTools, tmp_path: Path, tool: str):
    for path in PATHS:
        given = path.format(outside=tmp_path / "outside", root=trapped.root)
        error = refused("", trapped.call, tool, path=given, **CALLS[tool])
        assert CANARY not in error.text()
        assert error.remedy


@pytest.mark.req("FRG-9")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("path", [".", "folder", "", "folder/..", "link-out/..", "{root}"])
def test_a_tree_full_of_traps_reveals_nothing_outside(trapped: FileTools, tool: str, path: str):
    result = trapped.call(tool, path=path.format(root=trapped.root), **CALLS[tool])
    shown = msgspec.json.encode(result.data).decode() + result.text
    assert CANARY not in shown
    assert "key.txt" not in shown
    assert "file.txt" in shown or tool == "project_structure"


@pytest.fixture
def huge() -> Iterator[Path]:
    """A folder of 100,000 files, in memory if possible."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="tc-huge-", dir=place))
    try:
        here = os.open(path, os.O_RDONLY)
        for n in range(100_000):
            os.close(os.open(f"file-{n:06}.txt", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
        yield path
    finally:
        shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.req("FRG-10")
def test_a_folder_of_a_hundred_thousand_files_needs_little_memory(
    huge: Path, record_property: Callable[[str, object], None]
):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with file_tools(huge) as tools:
        began = time.perf_counter()
        data = tools.list(limit=5)
        seconds = time.perf_counter() - began
        assert list(data.files) == [f"file-{n:06}.txt" for n in range(5)]
        assert (data.total, data.truncated) == (100_000, True)
        assert tools.find("*99999.txt").files[0] == "file-099999.txt"
        assert tools.structure().files == 100_000
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    report = f"list_dir of 100,000 files: {seconds * 1000:.0f} ms; {grown} MB more for list, find and structure"
    print(report)
    record_property("huge", report)
    assert grown < 150
