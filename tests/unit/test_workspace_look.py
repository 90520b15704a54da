"""list_dir, find_files and project_structure: right, bounded, and blind to all that lies outside."""

from __future__ import annotations

import asyncio
import inspect
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

from parts.scenes import scene_in
from toolcrib.errors import WorkspaceError
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.listing import (
    FileOrder,
    FindFilesArguments,
    FindFilesResult,
    ListDirArguments,
    ListDirResult,
    find_files,
    list_dir,
)
from toolcrib.workspace.tools.project_structure import (
    ProjectStructureArguments,
    ProjectStructureResult,
    project_structure,
)
from toolcrib.workspace.tools.search_text import SearchTextArguments, search_text

pytestmark = pytest.mark.req("FRG-1")

CANARY = "canary-outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def lay(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * len(name))


def listed(scene: ToolContext, **given: Any) -> ListDirResult:
    data = list_dir(scene, ListDirArguments(**given)).data
    assert isinstance(data, ListDirResult)
    return data


def found(scene: ToolContext, **given: Any) -> FindFilesResult:
    data = find_files(scene, FindFilesArguments(**given)).data
    assert isinstance(data, FindFilesResult)
    return data


def structure(scene: ToolContext, **given: Any) -> ProjectStructureResult:
    data = project_structure(scene, ProjectStructureArguments(**given)).data
    assert isinstance(data, ProjectStructureResult)
    return data


def test_a_folder_is_listed_with_kinds_sizes_and_totals(root: Path):
    lay(root, "src/a.py", "readme.md", "src/deep/b.py")
    (root / "link").symlink_to("src")
    with scene_in(root) as scene:
        done = list_dir(scene, ListDirArguments())
        assert done.text.splitlines() == [".: 3 entries", "link  (link)", "readme.md  9 B", "src/"]
        assert json.loads(msgspec.json.encode(done.data)) == {
            "files": {"readme.md": 9},
            "folders": ["src"],
            "links": ["link"],
            "total": 3,
        }
        deeper = listed(scene, depth=3)
        assert list(deeper.files) == ["readme.md", "src/a.py", "src/deep/b.py"]
        assert deeper.folders == ["src", "src/deep"]
        assert list(listed(scene, path="src", depth=2, glob="*.py").files) == ["src/a.py", "src/deep/b.py"]
        assert list(listed(scene, path="src", depth=2, glob="/*.py").files) == ["src/a.py"]


def test_a_list_that_is_cut_says_how_many_there_are_and_what_to_do(root: Path):
    lay(root, *(f"f{n:03}" for n in range(300)))
    with scene_in(root) as scene:
        data = listed(scene, limit=10)
    assert list(data.files) == [f"f{n:03}" for n in range(10)]
    assert (data.total, data.truncated) == (300, True)
    assert "290 more are not shown" in data.note
    assert "glob" in data.note


def test_what_gitignore_leaves_out_is_counted_and_shown_on_demand(root: Path):
    lay(root, "a.pyc", "b.pyc", "c.py")
    (root / ".gitignore").write_text("*.pyc\n")
    with scene_in(root) as scene:
        data = listed(scene)
        assert list(data.files) == [".gitignore", "c.py"]
        assert data.ignored == 2
        assert "ignored: true" in list_dir(scene, ListDirArguments()).text
        assert list(listed(scene, ignored=True).files) == [".gitignore", "a.pyc", "b.pyc", "c.py"]
        none = found(scene, glob=["*.pyc"])
        assert (none.files, none.ignored) == ([], 2)
        assert found(scene, glob=["*.pyc"], ignored=True).total == 2


def test_a_wrong_path_suggests_near_ones(root: Path):
    lay(root, "source/main.py")
    with scene_in(root) as scene:
        for ask in (lambda: listed(scene, path="sourc"), lambda: found(scene, glob=["*"], path="sourc")):
            with pytest.raises(WorkspaceError) as error:
                ask()
            assert "source" in error.value.remedy


def test_files_are_found_by_several_globs_and_without_some(root: Path):
    lay(root, "src/a.py", "src/test_a.py", "web/b.ts", "web/b.min.ts", "docs/c.md")
    with scene_in(root) as scene:
        data = found(scene, glob=["**/*.py", "*.ts", "!*.min.ts", "!test_*"])
        assert data.files == ["src/a.py", "web/b.ts"]
        assert found(scene, glob=["*.ts"], path="web").files == ["web/b.min.ts", "web/b.ts"]
        assert find_files(scene, FindFilesArguments(glob=["*.rs"])).text == "0 files fit"


def test_the_newest_files_come_first_when_asked_for(root: Path):
    lay(root, *(f"f{n}" for n in range(20)))
    for n in range(20):
        os.utime(root / f"f{n}", (1_700_000_000 + n, 1_700_000_000 + n))
    with scene_in(root) as scene:
        data = found(scene, glob=["*"], sort=FileOrder.NEWEST, limit=3)
    assert data.files == ["f19", "f18", "f17"]
    assert data.modified == ["2023-11-14T22:13:39Z", "2023-11-14T22:13:38Z", "2023-11-14T22:13:37Z"]
    assert (data.total, data.truncated) == (20, True)


def test_odd_names_are_shown_safely(root: Path):
    (root / os.fsdecode(b"caf\xe9\\x")).write_text("x")
    (root / "two\nlines").write_text("x")
    (root / "\u202egnp.exe").write_text("x")
    with scene_in(root) as scene:
        done = list_dir(scene, ListDirArguments())
    told = json.loads(msgspec.json.encode(done.data))
    assert set(told["files"]) == {"caf\\xe9\\\\x", "two\nlines", "\u202egnp.exe"}
    assert told["escaped"] == ["caf\\xe9\\\\x"]
    assert len(done.text.splitlines()) == 4, "a name cannot make a line of its own"
    assert "\u202e" not in done.text


def test_no_answer_is_larger_than_the_limit_for_output(root: Path):
    lay(root, *(f"{'n' * 200}{n:03}" for n in range(500)))
    with scene_in(root, output=10_000) as scene:
        done = list_dir(scene, ListDirArguments(limit=1000))
        assert len(done.text) < 11_000
        assert "not shown" in done.text
        assert listed(scene, limit=1000).total == 500
        found_files = find_files(scene, FindFilesArguments(glob=["*"], limit=1000))
        assert len(found_files.text) < 11_000
        for answer in (done, found_files):
            assert len(msgspec.json.encode(answer.data)) < 11_000


def test_a_tree_of_long_names_is_cut_at_the_limit_for_output(root: Path):
    for n in range(500):
        (root / f"{'n' * 200}{n:03}").mkdir()
    with scene_in(root, output=10_000) as scene:
        data = structure(scene, limit=1000)
    assert len(data.tree) < 10_000
    assert (data.folders, data.truncated) == (500, True)


def test_a_project_is_shown_at_a_glance(root: Path):
    lay(root, "src/pkg/a.py", "src/pkg/b.py", "web/app.ts", "README.md", "web/dist/out.js")
    (root / ".gitignore").write_text("dist/\n")
    (root / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.scripts]\nrun-me = "x:main"\n[tool.ruff]\n[tool.pytest.ini_options]\n'
    )
    (root / "web/package.json").write_text('{"scripts": {"build": "rm -rf /", "test": "vitest"}}')
    (root / "Makefile").write_text("NAME := x\n.PHONY: all\nall: build\nbuild:\n\techo hi\nx::y\n")
    (root / "big.bin").write_bytes(b"\0" * 5000)
    with scene_in(root) as scene:
        data = structure(scene)
        text = project_structure(scene, ProjectStructureArguments()).text
    assert data.tree.splitlines()[1:] == [
        "  .gitignore Makefile README.md big.bin pyproject.toml",
        "  src/  2 files, 24 B",
        "    pkg/  2 files, 24 B",
        "  web/  2 files, 62 B",
    ]
    assert (data.files, data.folders, data.ignored) == (9, 3, 1)
    assert {one.name: one.files for one in data.languages} == {
        "JSON": 1,
        "Make": 1,
        "Markdown": 1,
        "Python": 2,
        "TOML": 1,
        "TypeScript": 1,
    }
    assert next(iter(data.largest)) == "big.bin"
    assert {p.file: [(fact.what, fact.names) for fact in p.facts] for p in data.projects} == {
        "Makefile": [("targets", ["all", "build"])],
        "pyproject.toml": [("scripts", ["run-me"]), ("tools", ["ruff", "pytest"])],
        "web/package.json": [("scripts", ["build", "test"])],
    }
    assert "Node (web/package.json; scripts: build, test)" in text
    assert not data.truncated


def test_a_tree_too_large_to_show_is_cut_by_whole_levels(root: Path):
    lay(root, *(f"d{n:02}/e{m}/f" for n in range(20) for m in range(5)))
    with scene_in(root) as scene:
        shallow = structure(scene, limit=50)
        cut = structure(scene, limit=10)
    assert shallow.tree.count("\n") == 20
    assert "stops at level 1" in shallow.note
    assert cut.tree.count("\n") == 10
    assert "10 folders are not shown" in cut.note
    assert cut.files == 100, "what is not shown is counted"


@pytest.mark.parametrize(
    "content",
    ["{" * 100_000, "[" * 50_000, "\ud800".encode("utf-8", "surrogatepass"), "a = " + "[" * 20_000, "{}", "[]"],
)
@pytest.mark.parametrize("name", ["package.json", "pyproject.toml", "Cargo.toml", "go.mod", "Makefile"])
def test_a_project_file_that_is_broken_on_purpose_is_named_and_no_more(root: Path, name: str, content: str | bytes):
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with scene_in(root) as scene:
        (project,) = structure(scene).projects
    assert (project.file, project.facts) == (name, [])


# Nothing outside is seen.

PATHS = (
    "..",
    "../outside",
    "{outside}",
    "{root}-evil",
    "link-out",
    "link-out/sub",
    "link-file",
    "folder/up/../outside",
    ".toolcrib/runs",
    ".toolcrib/runs/log.txt",
    ".TOOLCRIB/runs",
    ".git",
    ".git/config",
    "link-git",
    "link-runs",
    "secrets",
    "secrets/key.txt",
    "a\0b",
    "x/" * 3000,
    "x" * 300,
    "half\ud800",
    "fifo",
    "device",
    "/proc/self/environ",
    "/proc/self/cwd",
    "/etc",
    "/",
    "nowhere",
)


@pytest.fixture
def holes(root: Path, tmp_path: Path) -> Path:
    lay(tmp_path, f"outside/{CANARY}.txt", f"outside/sub/{CANARY}.txt", f"root-evil/{CANARY}.txt")
    for path in (tmp_path / "outside" / f"{CANARY}.txt", tmp_path / "root-evil" / f"{CANARY}.txt"):
        path.write_text(f"{CANARY}\n")
    for name in (".toolcrib/runs/log.txt", ".git/config", "secrets/key.txt", f".toolcrib/runs/{CANARY}"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{CANARY}\n")
    lay(root, "folder/file.txt")
    (root / "link-out").symlink_to(tmp_path / "outside")
    (root / "link-file").symlink_to(tmp_path / "outside" / f"{CANARY}.txt")
    (root / "link-git").symlink_to(".git")
    (root / "link-runs").symlink_to(".toolcrib/runs")
    (root / "folder" / "up").symlink_to("../..")
    (root / "folder" / "loop").symlink_to(".")
    os.mkfifo(root / "fifo")
    try:
        os.mknod(root / "device", 0o20600, os.makedev(1, 5))
    except OSError:
        # Only root may; /dev/zero by a link is as endless.
        (root / "device").symlink_to("/dev/zero")
    return root


TOOLS: dict[str, Callable[[ToolContext, str], Any]] = {
    "list_dir": lambda scene, path: list_dir(scene, ListDirArguments(path=path, depth=9, ignored=True)),
    "find_files": lambda scene, path: find_files(scene, FindFilesArguments(glob=["**"], path=path, ignored=True)),
    "project_structure": lambda scene, path: project_structure(scene, ProjectStructureArguments(path=path)),
    "search_text": lambda scene, path: search_text(
        scene, SearchTextArguments(pattern="canary|x", path=path, ignored=True)
    ),
}


def ask(tool: str, scene: ToolContext, path: str) -> ToolResult:
    answer = TOOLS[tool](scene, path)
    done = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    assert isinstance(done, ToolResult)
    return done


@pytest.mark.req("FRG-9")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leads_out_or_to_what_is_not_for_tools_is_refused(
    holes: Path, tmp_path: Path, tool: str, path: str
):
    path = path.replace("{outside}", str(tmp_path / "outside")).replace("{root}", str(holes))
    with scene_in(holes, hidden=("secrets/",)) as scene, pytest.raises(WorkspaceError) as error:
        ask(tool, scene, path)
    assert CANARY not in error.value.text()
    assert error.value.remedy


@pytest.mark.req("FRG-9")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("path", [".", "folder", "", "folder/..", "link-out/..", "{root}"])
def test_nothing_outside_is_told_of_a_tree_full_of_traps(holes: Path, tool: str, path: str):
    with scene_in(holes, hidden=("secrets/",)) as scene:
        done = ask(tool, scene, path.replace("{root}", str(holes)))
    told = msgspec.json.encode(done.data).decode() + done.text
    assert CANARY not in told
    assert "key.txt" not in told
    assert "file.txt" in told or tool == "project_structure"


# Huge ones.


@pytest.fixture
def huge() -> Iterator[Path]:
    """Of 100,000 names, in memory if there is such a place."""
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
def test_a_folder_of_a_hundred_thousand_names_is_answered_within_bounds(
    huge: Path, record_property: Callable[[str, object], None]
):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with scene_in(huge) as scene:
        began = time.perf_counter()
        data = listed(scene, limit=5)
        took = time.perf_counter() - began
        assert list(data.files) == [f"file-{n:06}.txt" for n in range(5)]
        assert (data.total, data.truncated) == (100_000, True)
        assert found(scene, glob=["*99999.txt"]).files[0] == "file-099999.txt"
        assert structure(scene).files == 100_000
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    told = f"list_dir of 100,000 names: {took * 1000:.0f} ms; {grown} MB more for list, find and structure"
    print(told)
    record_property("huge", told)
    assert grown < 150
