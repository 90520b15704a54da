"""A condition is sure only of what it can judge, and a deny is stopped by nothing it cannot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import ConfigError
from toolcrib.policy import Condition, Matches, OneOf, Under, condition_from
from toolcrib.policy.condition import LONGEST, MOST_VALUES
from toolcrib.policy.paths import DEEPEST_PATH, MOST_LOOKS, MOST_PATHS, PathContext, PathResolver

pytestmark = pytest.mark.req("KSI-5")


def ground(base: str | None, folder: str | None = None) -> PathContext:
    """Of an agent and a server that work in the same folder, unless the server's is given."""
    return PathContext(base, PathResolver(folder or base))


def path_under(folder: str) -> Condition:
    return Condition(argument="path", test=Under(folder))


@pytest.fixture
def base(tmp_path: Path) -> str:
    work = tmp_path / "work"
    for folder in ("work/src/deep/er", "work/src-evil", "work-evil", "secrets"):
        (tmp_path / folder).mkdir(parents=True)
    (work / "src/out").symlink_to(tmp_path / "secrets")
    (work / "src/in").symlink_to(work / "src/deep")
    (work / "src/far").symlink_to(work / "src/deep/er")
    (work / "door").symlink_to(work / "src")
    (work / "src/loop").symlink_to(work / "src/loop")
    return str(work)


HONEST = [
    "src/100%",
    "src/100%.txt",
    "src/%zz",
    "src/5%a.txt",
    "src/\u00e9",
    "src/e\u0301",
    "src/\ufb01le",
    "src/notes\u2026.md",
    "src/\uff46\uff49\uff4c\uff45",
    "src/\u00bd",
    "src/\u65e5\u672c",
]
INSIDE = [
    *HONEST,
    "src",
    "src/a",
    "./src/a",
    "src//a",
    "src/deep/../a",
    "src/in/a",
    "src/none/../b",
    "src/ü",
    "src/../src/a",
]
OUTSIDE = [
    ".",
    "a",
    "src/..",
    "src/../..",
    "src/deep/../../../secrets/x",
    "src-evil",
    "src-evil/a",
    "../work-evil/a",
    "/",
    "/etc/passwd",
    "src/out",
    "src/out/x",
    "src/out/../../work/src/a",
    "src/in/../../../secrets",
    "src/out/../a",
    "src/far/../out/x",
    "door/a",
]
UNCLEAR: list[Any] = [
    "",
    "~",
    "~/src",
    "~root/src",
    "$HOME/src",
    "file:src",
    "FILE:///etc/passwd",
    "file://src/a",
    "http://src/a",
    "s3://src/a",
    "src/a\0",
    "src/\0/../../..",
    "src/\ud800",
    " src/a",
    "src/a ",
    "\n/etc/passwd",
    "'src/a'",
    '"/etc"',
    "--output=/etc/passwd",
    "src\\..\\..\\etc",
    "src/%2e%2e/%2e%2e/etc/passwd",
    "src/a%00",
    "src%2F..%2f..",
    "src/\u2025/x",
    "src/\u2025",
    "src/\uff0e\uff0e/x",
    "src/.\u2024/x",
    "src/a\uff0f..",
    "src/\uff05\uff12e",
    "src\uff3c..",
    "\uff5e/src",
    "src/a\u2100",
    "src/" + "a" * 5000,
    "a/" * 2000,
    5,
    1.5,
    True,
    {"path": "src/a"},
    b"src/a",
]


@pytest.mark.parametrize("value", INSIDE)
def test_a_path_inside_the_folder_holds(base: str, value: str) -> None:
    assert path_under("src").surely({"path": value}, ground(base))
    assert path_under("src").maybe({"path": value}, ground(base))
    assert path_under("src").surely({"path": f"{base}/{value}"}, ground(base))


@pytest.mark.parametrize("value", OUTSIDE)
def test_a_path_that_leads_out_is_never_sure(base: str, value: str) -> None:
    assert not path_under("src").surely({"path": value}, ground(base))
    assert not path_under("src").surely({"path": value if value[0] == "/" else f"{base}/{value}"}, ground(base))


@pytest.mark.parametrize("value", UNCLEAR, ids=lambda value: repr(value)[:30])
def test_a_path_that_cannot_be_judged_is_never_sure_and_always_may_be_meant(base: str, value: Any) -> None:
    assert not path_under("src").surely({"path": value}, ground(base))
    assert path_under("src").maybe({"path": value}, ground(base))


@pytest.mark.parametrize(
    "value",
    ["src/a", "SRC/a", "door/a", "src/out/x", "a/../src/x", "none/../src", "src/loop/x", "./././src"],
)
def test_every_way_into_a_denied_folder_is_caught(base: str, value: str) -> None:
    for spelling in (value, f"{base}/{value}", f"/{base}/{value}", f"//{base}//{value}", f"/..{base}/{value}"):
        assert path_under("src").maybe({"path": spelling}, ground(base))


@pytest.mark.parametrize("value", ["secrets/x", "src/out/x", "src/in/../../../secrets/x"])
def test_a_link_into_a_denied_folder_is_caught(base: str, value: str) -> None:
    assert path_under(f"{Path(base).parent}/secrets").maybe(
        {"path": value if value.startswith("src") else f"../{value}"}, ground(base)
    )


@pytest.mark.parametrize("value", HONEST)
def test_an_honest_name_with_accents_or_a_percent_sign_can_be_judged(base: str, value: str) -> None:
    assert not path_under("lib").maybe({"path": value}, ground(base))


def test_composed_and_decomposed_letters_name_the_same_denied_folder(base: str) -> None:
    assert path_under("geh\u00e4use").maybe({"path": "geha\u0308use/x"}, ground(base))


@pytest.mark.parametrize("value", ["a", "src-evil/a", "../secrets", "/etc"])
def test_what_is_clearly_elsewhere_is_not_caught(base: str, value: str) -> None:
    assert not path_under("src").maybe({"path": value}, ground(base))


def test_the_folder_itself_may_be_reached_through_a_link(base: str) -> None:
    assert path_under("door").surely({"path": "door/a"}, ground(base))
    assert path_under("door").surely({"path": f"{base}/src/a"}, ground(base))


def test_without_a_folder_of_the_agent_only_whole_paths_can_be_judged() -> None:
    assert path_under("/srv").surely({"path": "/srv/a"}, ground(None))
    assert not path_under("/srv").surely({"path": "srv/a"}, ground(None))
    assert path_under("/srv").maybe({"path": "x"}, ground(None))
    assert not path_under("/srv").maybe({"path": "/x"}, ground(None))
    assert not path_under("srv").surely({"path": "/srv/a"}, ground(None))
    assert path_under("srv").maybe({"path": "/x"}, ground(None))


def test_a_relative_path_starts_where_the_server_works_and_a_relative_folder_where_the_agent_does(base: str) -> None:
    above = str(Path(base).parent)
    for value, inside in (("src/a", False), ("work/src/a", True), (f"{base}/src/a", True), ("secrets/x", False)):
        assert path_under("src").surely({"path": value}, ground(base, above)) is inside
        assert path_under("src").maybe({"path": value}, ground(base, above)) is inside


@pytest.mark.parametrize("folder", [None, "", ".", "relative"])
def test_where_nobody_knows_where_the_server_works_relative_paths_cannot_be_judged(
    base: str, folder: str | None
) -> None:
    on = PathContext(base, PathResolver(folder))
    assert not path_under("src").surely({"path": "src/a"}, on)
    assert path_under("src").maybe({"path": "lib/a"}, on)
    assert path_under("src").surely({"path": f"{base}/src/a"}, on)
    assert not path_under("src").maybe({"path": f"{base}/lib/a"}, on)


def test_a_server_that_was_sent_to_its_folder_by_a_link_works_in_the_real_one(base: str) -> None:
    on = ground(base, f"{base}/door")
    assert path_under("src").surely({"path": "a"}, on)
    assert path_under("src").surely({"path": "../src/a"}, on)
    assert not path_under("src").surely({"path": "../secrets/x"}, on)


def test_one_decision_looks_at_each_name_on_the_way_once(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    readlink = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: looked.append(path) or readlink(path))
    on = ground(base)
    for number in range(20):
        values = [f"src/deep/er/../x{value}" for value in range(MOST_PATHS)]
        assert not path_under(f"/srv/{number}").maybe({"path": values}, on)
    assert len(looked) == len(set(looked))
    # The way to the base, `src/deep/er`, two spellings of 64 names with the same end, and the folders of the rules.
    assert len(looked) < base.count("/") + 3 + MOST_PATHS + 21 + 1


def test_one_decision_does_not_look_without_end(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(os, "readlink", lambda path: looked.append(path) or os.fspath("b/" * 100))
    on = ground(base)
    for number in range(100):
        condition = Condition(argument=f"p{number}", test=Under("/srv"))
        assert condition.maybe({f"p{number}": [f"/{number}/{value}" for value in range(MOST_PATHS)]}, on)
    assert len(looked) <= MOST_LOOKS


def test_too_many_paths_or_levels_cannot_be_judged(base: str) -> None:
    many = [f"src/{number}" for number in range(MOST_PATHS)]
    assert path_under("src").surely({"path": many}, ground(base))
    assert not path_under("src").surely({"path": [*many, "src/x"]}, ground(base))
    assert path_under("lib").maybe({"path": [*many, "src/x"]}, ground(base))
    deep = "src" + "/a" * DEEPEST_PATH
    assert path_under("src").surely({"path": deep}, ground(base))
    assert not path_under("src").surely({"path": f"{deep}/a"}, ground(base))
    assert path_under("lib").maybe({"path": f"{deep}/a"}, ground(base))


def test_the_root_folder_holds_every_whole_path() -> None:
    assert path_under("/").surely({"path": "/etc/passwd"}, ground(None))


@given(st.lists(st.sampled_from(["..", ".", "", "src", "src-evil", "a", "~", "etc"]), max_size=8).map("/".join))
def test_what_is_surely_inside_is_inside_however_it_is_written(value: str) -> None:
    base = "/nowhere/at/all"
    if path_under("src").surely({"path": value}, ground(base)):
        written = os.path.normpath(f"{base}/{value}")
        assert Path(written).is_relative_to(f"{base}/src")
        assert path_under("src").maybe({"path": value}, ground(base))


@given(st.text(max_size=30))
def test_any_text_is_judged_without_an_error_and_sureness_implies_possibility(value: str) -> None:
    for test in (Under("src"), OneOf(("a", 1)), Matches("a.*")):
        condition = Condition(argument="x", test=test)
        arguments = {"x": value}
        assert condition.maybe(arguments, ground("/base")) or not condition.surely(arguments, ground("/base"))


def test_every_element_of_a_list_must_hold(base: str) -> None:
    many = Condition(argument="paths", test=Under("src"))
    assert many.surely({"paths": ["src/a", "src/b", ["src/c"]]}, ground(base))
    assert not many.surely({"paths": ["src/a", "/etc/passwd"]}, ground(base))
    assert not many.surely({"paths": ["src/a", None]}, ground(base))
    assert not many.surely({"paths": []}, ground(base))
    assert many.maybe({"paths": ["/etc", "src/a"]}, ground(base))
    assert many.maybe({"paths": ["/etc", 5]}, ground(base))
    assert not many.maybe({"paths": ["/etc", "/usr"]}, ground(base))


@pytest.mark.parametrize("arguments", [{}, {"path": None}, {"other": "src/a"}, {"path": []}])
def test_what_is_absent_neither_holds_nor_is_caught(base: str, arguments: Any) -> None:
    assert not path_under("src").surely(arguments, ground(base))
    assert not path_under("src").maybe(arguments, ground(base))


@pytest.mark.parametrize("arguments", ["src", 5, True, [{"path": "src/a"}, "x"]])
def test_arguments_that_are_no_object_cannot_be_judged(base: str, arguments: Any) -> None:
    assert not path_under("src").surely(arguments, ground(base))
    assert path_under("src").maybe(arguments, ground(base))


INNER = Condition(argument="file.path", test=OneOf(("a",)))


@pytest.mark.parametrize(
    ("arguments", "surely", "maybe"),
    [
        ({"file": {"path": "a"}}, True, True),
        ({"file.path": "a"}, True, True),
        ({"FILE": {"Path": "a"}}, True, True),
        ({"file": [{"path": "a"}, {"path": "a"}]}, True, True),
        ({"file": [{"path": "a"}, {"path": "b"}]}, False, True),
        ({"file": [{"path": "a"}, {}]}, False, True),
        ({"file": {"path": "a"}, "file.path": "b"}, False, True),
        ({"file": {"path": "a"}, "File": {"path": "b"}}, False, True),
        ({"file": {"path": "a", "Path": "b"}}, False, True),
        ({"file": {"path": "b"}}, False, False),
        ({"file": {}}, False, False),
        ({"file": None}, False, False),
        ({"file": "a"}, False, True),
        ({"path": "a"}, False, False),
    ],
)
def test_an_inner_argument_is_found_however_a_careless_server_would(arguments: Any, surely: bool, maybe: bool) -> None:
    assert INNER.surely(arguments, ground(None)) is surely
    assert INNER.maybe(arguments, ground(None)) is maybe


def test_too_many_values_cannot_be_judged(base: str) -> None:
    many = Condition(argument="paths", test=OneOf(("a",)))
    assert many.surely({"paths": ["a"] * (MOST_VALUES - 2)}, ground(base))
    assert not many.surely({"paths": ["a"] * MOST_VALUES}, ground(base))
    assert many.maybe({"paths": ["b"] * MOST_VALUES}, ground(base))


def test_deep_nesting_is_judged_without_an_error() -> None:
    nested: Any = "a"
    for _ in range(5000):
        nested = [nested]
    deep = Condition(argument="x", test=OneOf(("a",)))
    assert not deep.surely({"x": nested}, ground(None))
    assert deep.maybe({"x": nested}, ground(None))


@pytest.mark.parametrize("value", ["a", 1, 1.0, True, None])
def test_one_of_takes_exactly_what_it_lists(value: Any) -> None:
    assert Condition(argument="x", test=OneOf((value,))).surely({"x": value}, ground(None))


@pytest.mark.parametrize(
    ("listed", "value"), [("a", "A"), ("a", "a "), ("1", 1), (1, "1"), (1, True), (True, 1), (True, "true"), ("a", "")]
)
def test_one_of_is_not_sure_of_what_only_resembles(listed: Any, value: Any) -> None:
    assert not Condition(argument="x", test=OneOf((listed,))).surely({"x": value}, ground(None))


@pytest.mark.parametrize(
    ("listed", "value"),
    [
        ("force", "FORCE"),
        ("force", " force\n"),
        (1, "1"),
        (1, True),
        (True, "yes"),
        (True, 1),
        ("1", 1),
        ("a", {}),
        ("a", "a" + " " * LONGEST),
    ],
)
def test_a_deny_catches_what_a_lenient_server_would_take_for_a_listed_value(listed: Any, value: Any) -> None:
    assert Condition(argument="x", test=OneOf((listed,))).maybe({"x": value}, ground(None))


@pytest.mark.parametrize(("listed", "value"), [("force", "soft"), (1, 2), (True, False), (None, None)])
def test_a_deny_lets_other_values_pass(listed: Any, value: Any) -> None:
    assert Condition(argument="x", test=OneOf((listed,))).maybe({"x": value}, ground(None)) is (listed is None)


@pytest.mark.parametrize("value", ["select 1", "select a\nfrom b", "select "])
def test_a_pattern_fits_the_whole_text_lines_and_all(value: str) -> None:
    assert Condition(argument="sql", test=Matches("select .*")).surely({"sql": value}, ground(None))


@pytest.mark.parametrize(
    "value", ["SELECT 1", " select 1", "x; select 1", "select", 5, None, "select " + "a" * LONGEST, "select \ud800"]
)
def test_a_pattern_is_not_sure_of_anything_else(value: Any) -> None:
    assert not Condition(argument="sql", test=Matches("select .*")).surely({"sql": value}, ground(None))


def test_a_trailing_newline_is_part_of_the_text() -> None:
    assert not Condition(argument="x", test=Matches("a")).surely({"x": "a\n"}, ground(None))


@pytest.mark.parametrize(
    ("value", "caught"),
    [
        ("a\ndrop table b", True),
        (5, True),
        ("x" * (LONGEST + 1), True),
        ("\udfff", True),
        ("select", False),
        (None, False),
    ],
)
def test_a_deny_by_pattern_catches_what_fits_or_cannot_be_read(value: Any, caught: bool) -> None:
    assert Condition(argument="sql", test=Matches(".*drop.*")).maybe({"sql": value}, ground(None)) is caught


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)*(.*)*x", "a{1,50}{1,10}"])
def test_no_pattern_takes_long(pattern: str) -> None:
    condition = Condition(argument="x", test=Matches(pattern))
    began = time.process_time()
    assert not condition.surely({"x": "a" * (LONGEST - 1) + "!"}, ground(None))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "pattern", ["(", "a)|(b", "(?=a)b", r"(a)\1", "a{1000}{1000}", "[", "(?x)a # ", "", " ", "a" * 2000, "a\0", 5, None]
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Matches(pattern)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "folder", ["", " ", "~", "~/src", "file:///x", "a\0b", "a\nb", "$HOME", None, 5, "a\\b", "-x", "a%2fb"]
)
def test_a_folder_that_cannot_be_judged_is_refused_in_a_rule(folder: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Under(folder)
    assert caught.value.remedy


@pytest.mark.parametrize("values", [(), ({},), ([1],), (float("nan"),), ("a\nb",), tuple(range(2000))])
def test_choices_that_are_no_plain_values_are_refused(values: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        OneOf(values)
    assert caught.value.remedy


@pytest.mark.parametrize("argument", ["", ".", "a.", ".a", "a..b", " ", "a\nb", "x" * 2000, 5])
def test_an_argument_without_a_name_is_refused(argument: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Condition(argument=argument, test=OneOf(("a",)))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("path under src", Condition(argument="path", test=Under("src"))),
        ("a.b under /srv/a b", Condition(argument="a.b", test=Under("/srv/a b"))),
        ("mode one_of read", Condition(argument="mode", test=OneOf(("read",)))),
        ("mode one_of read,list", Condition(argument="mode", test=OneOf(("read", "list")))),
        ('x one_of a b, "a, b", "1", 1, 1.5, true, null', None),
        ("sql matches select .* ", Condition(argument="sql", test=Matches("select .* "))),
        ("x matches under .*", Condition(argument="x", test=Matches("under .*"))),
    ],
)
def test_a_condition_is_read_from_a_line(text: str, condition: Condition | None) -> None:
    expected = condition or Condition(argument="x", test=OneOf(("a b", "a, b", "1", 1, 1.5, True, None)))
    assert condition_from(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "path",
        "path under",
        "path under ",
        "path inside src",
        "under src",
        "x one_of ",
        "x one_of ,",
        "x one_of a,,b",
        "x one_of a,",
        'x one_of "a',
        'x one_of "a"b',
        r'x one_of "\x"',
        "x matches (",
        "x under ~/a",
    ],
)
def test_a_line_that_says_no_condition_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        condition_from(text)
    assert caught.value.remedy


words = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=8).filter(str.isprintable)
choices = st.one_of(words.filter(str.strip), st.sampled_from(["1", "true", "null", "a,b", '"', "", " a"]))


@given(st.lists(st.one_of(choices, st.integers(), st.booleans(), st.none(), st.floats(-9, 9)), min_size=1, max_size=4))
def test_choices_survive_being_written_and_read(values: list[Any]) -> None:
    condition = Condition(argument="x", test=OneOf(tuple(values)))
    assert condition_from(str(condition)) == condition
