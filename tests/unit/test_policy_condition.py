"""A condition surely holds only for values it can check, and a deny also applies to values it cannot check."""

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
from toolcrib.policy.condition import LONGEST, MOST_VALUES, ConditionTest
from toolcrib.policy.paths import DEEPEST_PATH, MOST_LOOKS, MOST_PATHS, PathContext, PathResolver

pytestmark = pytest.mark.req("KSI-5")

SURE, POSSIBLE, NO = (True, True), (False, True), (False, False)


def context(base: str | None, folder: str | None = None) -> PathContext:
    """The agent and the server work in `base`, unless the server's folder is given."""
    return PathContext(base, PathResolver(folder or base))


def holds(test: ConditionTest, value: Any, paths: PathContext | None = None) -> tuple[bool, bool]:
    """Whether a condition on an argument with this value surely holds, and whether it may hold."""
    condition, paths = Condition(argument="x", test=test), paths or context(None)
    return condition.surely({"x": value}, paths), condition.maybe({"x": value}, paths)


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


# fmt: off
HONEST = [
    "src/100%", "src/100%.txt", "src/%zz", "src/5%a.txt", "src/\u00e9", "src/e\u0301", "src/\ufb01le", "src/\u00bd",
    "src/notes\u2026.md", "src/\uff46\uff49\uff4c\uff45", "src/\u65e5\u672c",
]
INSIDE = [
    "src", "src/a", "./src/a", "src//a", "src/deep/../a", "src/in/a", "src/none/../b", "src/ü", "src/../src/a", *HONEST,
]
OUTSIDE = [
    ".", "a", "src/..", "src/../..", "src/deep/../../../secrets/x", "src-evil", "src-evil/a", "../work-evil/a", "/",
    "/etc/passwd", "src/out", "src/out/x", "src/out/../../work/src/a", "src/in/../../../secrets", "src/out/../a",
    "src/far/../out/x", "door/a",
]
UNCLEAR: list[Any] = [
    "", "~", "~/src", "~root/src", "$HOME/src", "file:src", "FILE:///etc/passwd", "file://src/a", "http://src/a",
    "s3://src/a", "src/a\0", "src/\0/../../..", "src/\ud800", " src/a", "src/a ", "\n/etc/passwd", "'src/a'", '"/etc"',
    "--output=/etc/passwd", "src\\..\\..\\etc", "src/%2e%2e/%2e%2e/etc/passwd", "src/a%00", "src%2F..%2f..",
    "src/\u2025/x", "src/\u2025", "src/\uff0e\uff0e/x", "src/.\u2024/x", "src/a\uff0f..", "src/\uff05\uff12e",
    "src\uff3c..", "\uff5e/src", "src/a\u2100", "src/" + "a" * 5000, "a/" * 2000, 5, 1.5, True, {"path": "src/a"},
    b"src/a",
]
# fmt: on


@pytest.mark.parametrize("value", INSIDE)
def test_a_path_inside_the_folder_holds(base: str, value: str) -> None:
    for spelling in (value, f"{base}/{value}"):
        assert holds(Under("src"), spelling, context(base)) == SURE


@pytest.mark.parametrize("value", OUTSIDE)
def test_a_path_outside_the_folder_never_surely_holds(base: str, value: str) -> None:
    for spelling in (value, value if value[0] == "/" else f"{base}/{value}"):
        assert not holds(Under("src"), spelling, context(base))[0]


@pytest.mark.parametrize("value", UNCLEAR, ids=lambda value: repr(value)[:30])
def test_a_path_that_cannot_be_checked_may_hold(base: str, value: Any) -> None:
    assert holds(Under("src"), value, context(base)) == POSSIBLE


def test_a_deny_catches_every_path_into_its_folder_and_no_other(base: str) -> None:
    secrets = f"{Path(base).parent}/secrets"
    inside = ["src/a", "SRC/a", "door/a", "src/out/x", "a/../src/x", "none/../src", "src/loop/x", "./././src"]
    spellings = ["{1}", "{0}/{1}", "/{0}/{1}", "//{0}//{1}", "/..{0}/{1}"]
    caught = [("src", spelling.format(base, value)) for value in inside for spelling in spellings]
    caught += [(secrets, value) for value in ("../secrets/x", "src/out/x", "src/in/../../../secrets/x")]
    caught += [("geh\u00e4use", "geha\u0308use/x")]
    free = [("src", value) for value in ("a", "src-evil/a", "../secrets", "/etc")] + [("lib", one) for one in HONEST]
    assert [one for one in caught if not holds(Under(one[0]), one[1], context(base))[1]] == []
    assert [one for one in free if holds(Under(one[0]), one[1], context(base))[1]] == []


def test_the_folder_of_a_rule_may_be_a_link(base: str) -> None:
    for value in ("door/a", f"{base}/src/a"):
        assert holds(Under("door"), value, context(base)) == SURE


@pytest.mark.parametrize(
    ("folder", "value", "expected"),
    [
        ("/srv", "/srv/a", SURE),
        ("/srv", "srv/a", POSSIBLE),
        ("/srv", "/x", NO),
        ("srv", "/srv/a", POSSIBLE),
        ("/", "/etc/passwd", SURE),
    ],
)
def test_an_agent_without_a_folder_can_check_only_absolute_paths(folder: str, value: str, expected: Any) -> None:
    assert holds(Under(folder), value) == expected


def test_relative_paths_start_at_the_servers_folder_and_relative_rules_at_the_agents(base: str) -> None:
    above = str(Path(base).parent)
    for value, inside in (("src/a", NO), ("work/src/a", SURE), (f"{base}/src/a", SURE), ("secrets/x", NO)):
        assert holds(Under("src"), value, context(base, above)) == inside
    # The server's folder is given as a link: its process works in the real one.
    for value, inside in (("a", SURE), ("../src/a", SURE), ("../secrets/x", NO)):
        assert holds(Under("src"), value, context(base, f"{base}/door")) == inside


@pytest.mark.parametrize("folder", [None, "", ".", "relative"])
def test_without_the_servers_folder_relative_paths_cannot_be_checked(base: str, folder: str | None) -> None:
    paths = PathContext(base, PathResolver(folder))
    for value, expected in (("src/a", POSSIBLE), ("lib/a", POSSIBLE), (f"{base}/src/a", SURE), (f"{base}/lib/a", NO)):
        assert holds(Under("src"), value, paths) == expected


def test_one_decision_looks_up_each_name_once(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []
    readlink = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: lookups.append(path) or readlink(path))
    paths = context(base)
    for number in range(20):
        values = [f"src/deep/er/../x{value}" for value in range(MOST_PATHS)]
        assert not holds(Under(f"/srv/{number}"), values, paths)[1]
    assert len(lookups) == len(set(lookups))
    # The path to the base, `src/deep/er`, two spellings of 64 names with the same end, and the folders of the rules.
    assert len(lookups) < base.count("/") + 3 + MOST_PATHS + 21 + 1


def test_the_lookups_of_one_decision_are_limited(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []
    paths = [[f"/{number}/{value}" for value in range(MOST_PATHS)] for number in range(100)]
    monkeypatch.setattr(os, "readlink", lambda path: lookups.append(path) or os.fspath("b/" * 100))
    endless = context(base)
    assert all(holds(Under("/srv"), values, endless)[1] for values in paths)
    assert len(lookups) <= MOST_LOOKS
    monkeypatch.undo()
    many = context(base)
    results = [holds(Under("/srv"), values, many)[1] for values in paths]
    assert (results[0], results[-1]) == (False, True), "beyond the limit, no path can be checked"


def test_too_many_paths_levels_or_values_cannot_be_checked(base: str) -> None:
    many = [f"src/{number}" for number in range(MOST_PATHS)]
    deep = "src" + "/a" * DEEPEST_PATH
    for allowed, too_many in ((many, [*many, "src/x"]), (deep, f"{deep}/a")):
        assert holds(Under("src"), allowed, context(base)) == SURE
        assert holds(Under("src"), too_many, context(base)) == POSSIBLE
        assert holds(Under("lib"), too_many, context(base)) == POSSIBLE
    assert holds(OneOf(("a",)), ["a"] * (MOST_VALUES - 2)) == SURE
    assert holds(OneOf(("a",)), ["a"] * MOST_VALUES) == POSSIBLE
    assert holds(OneOf(("a",)), ["b"] * MOST_VALUES) == POSSIBLE
    nested: Any = "a"
    for _ in range(5000):
        nested = [nested]
    assert holds(OneOf(("a",)), nested) == POSSIBLE


@given(st.lists(st.sampled_from(["..", ".", "", "src", "src-evil", "a", "~", "etc"]), max_size=8).map("/".join))
def test_a_path_that_surely_holds_is_inside_the_folder(value: str) -> None:
    base = "/nowhere/at/all"
    surely, maybe = holds(Under("src"), value, context(base))
    if surely:
        assert maybe
        assert Path(os.path.normpath(f"{base}/{value}")).is_relative_to(f"{base}/src")


@given(st.text(max_size=30))
def test_any_text_can_be_checked_and_surely_implies_maybe(value: str) -> None:
    for test in (Under("src"), OneOf(("a", 1)), Matches("a.*")):
        assert holds(test, value, context("/base")) in (SURE, POSSIBLE, NO)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["src/a", "src/b", ["src/c"]], SURE),
        (["src/a", "/etc/passwd"], POSSIBLE),
        (["/etc", "src/a"], POSSIBLE),
        (["src/a", None], POSSIBLE),
        (["/etc", 5], POSSIBLE),
        (["/etc", "/usr"], NO),
        ([], NO),
        (None, NO),
    ],
)
def test_every_element_of_a_list_must_hold(base: str, values: Any, expected: Any) -> None:
    assert holds(Under("src"), values, context(base)) == expected


INNER = Condition(argument="file.path", test=OneOf(("a",)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"file": {"path": "a"}}, SURE),
        ({"file.path": "a"}, SURE),
        ({"FILE": {"Path": "a"}}, SURE),
        ({"file": [{"path": "a"}, {"path": "a"}]}, SURE),
        ({"file": [{"path": "a"}, {"path": "b"}]}, POSSIBLE),
        ({"file": [{"path": "a"}, {}]}, POSSIBLE),
        ({"file": {"path": "a"}, "file.path": "b"}, POSSIBLE),
        ({"file": {"path": "a"}, "File": {"path": "b"}}, POSSIBLE),
        ({"file": {"path": "a", "Path": "b"}}, POSSIBLE),
        ({"file": "a"}, POSSIBLE),
        ("file.path", POSSIBLE),
        (5, POSSIBLE),
        (True, POSSIBLE),
        ([{"file": {"path": "a"}}, "x"], POSSIBLE),
        ({"file": {"path": "b"}}, NO),
        ({"file": {}}, NO),
        ({"file": None}, NO),
        ({"path": "a"}, NO),
        ({}, NO),
    ],
)
def test_an_inner_argument_is_found_as_by_a_lenient_server(arguments: Any, expected: Any) -> None:
    assert (INNER.surely(arguments, context(None)), INNER.maybe(arguments, context(None))) == expected


ONE_OF = [
    *[(value, value, SURE) for value in ("a", 1, 1.0, True, None)],
    *[("a", value, POSSIBLE) for value in ("A", "a ", {}, "a" + " " * LONGEST)],
    *[("force", value, POSSIBLE) for value in ("FORCE", " force\n")],
    *[("1", 1, POSSIBLE), (1, "1", POSSIBLE), (1, True, POSSIBLE)],
    *[(True, value, POSSIBLE) for value in (1, "true", "yes")],
    *[("a", "", NO), ("a", None, NO), ("force", "soft", NO), (1, 2, NO), (True, False, NO)],
]


@pytest.mark.parametrize(("listed", "value", "expected"), ONE_OF)
def test_one_of_surely_holds_for_equal_values_and_may_hold_for_similar_ones(
    listed: Any, value: Any, expected: Any
) -> None:
    assert holds(OneOf((listed,)), value) == expected


MATCHES = [
    *[("select .*", value, SURE) for value in ("select 1", "select a\nfrom b", "select ")],
    *[("select .*", value, NO) for value in ("SELECT 1", " select 1", "x; select 1", "select", None)],
    *[("select .*", value, POSSIBLE) for value in (5, "select " + "a" * LONGEST, "select \ud800")],
    *[(".*drop.*", value, POSSIBLE) for value in (5, "x" * (LONGEST + 1), "\udfff")],
    *[(".*drop.*", "a\ndrop table b", SURE), (".*drop.*", "select", NO), ("a", "a\n", NO)],
]


@pytest.mark.parametrize(("pattern", "value", "expected"), MATCHES)
def test_a_pattern_must_match_the_whole_text(pattern: str, value: Any, expected: Any) -> None:
    assert holds(Matches(pattern), value) == expected


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)*(.*)*x", "a{1,50}{1,10}"])
def test_no_pattern_takes_long(pattern: str) -> None:
    began = time.process_time()
    assert not holds(Matches(pattern), "a" * (LONGEST - 1) + "!")[0]
    assert time.process_time() - began < 0.5


# fmt: off
INVALID = {
    Matches: [
        "(", "a)|(b", "(?=a)b", r"(a)\1", "a{1000}{1000}", "[", "(?x)a # ", "", " ", "a" * 2000, "a\0", 5, None,
    ],
    Under: ["", " ", "~", "~/src", "file:///x", "a\0b", "a\nb", "$HOME", None, 5, "a\\b", "-x", "a%2fb"],
    OneOf: [(), ({},), ([1],), (float("nan"),), ("a\nb",), tuple(range(2000))],
    lambda argument: Condition(argument=argument, test=OneOf(("a",))): [
        "", ".", "a.", ".a", "a..b", " ", "a\nb", "x" * 2000, 5,
    ],
    condition_from: [
        "", "path", "path under", "path under ", "path inside src", "under src", "x one_of ", "x one_of ,",
        "x one_of a,,b", "x one_of a,", 'x one_of "a', 'x one_of "a"b', r'x one_of "\x"', "x matches (", "x under ~/a",
    ],
}
# fmt: on


@pytest.mark.parametrize(
    ("create", "value"), [(create, value) for create, values in INVALID.items() for value in values]
)
def test_invalid_conditions_are_refused_with_a_remedy(create: Any, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        create(value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "argument", "test"),
    [
        ("path under src", "path", Under("src")),
        ("a.b under /srv/a b", "a.b", Under("/srv/a b")),
        ("mode one_of read", "mode", OneOf(("read",))),
        ("mode one_of read,list", "mode", OneOf(("read", "list"))),
        ('x one_of a b, "a, b", "1", 1, 1.5, true, null', "x", OneOf(("a b", "a, b", "1", 1, 1.5, True, None))),
        ("sql matches select .* ", "sql", Matches("select .* ")),
        ("x matches under .*", "x", Matches("under .*")),
    ],
)
def test_a_condition_is_parsed_from_text(text: str, argument: str, test: ConditionTest) -> None:
    assert condition_from(text) == Condition(argument=argument, test=test)


words = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=8).filter(str.isprintable)
choices = st.one_of(words.filter(str.strip), st.sampled_from(["1", "true", "null", "a,b", '"', "", " a"]))


@given(st.lists(st.one_of(choices, st.integers(), st.booleans(), st.none(), st.floats(-9, 9)), min_size=1, max_size=4))
def test_choices_survive_a_round_trip_through_text(values: list[Any]) -> None:
    condition = Condition(argument="x", test=OneOf(tuple(values)))
    assert condition_from(str(condition)) == condition
