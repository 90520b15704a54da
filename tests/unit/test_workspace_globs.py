"""Globs choose what a plain reading of them says, and no pattern takes long."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.errors import WorkspaceError
from toolcrib.workspace import globs
from toolcrib.workspace.globs import (
    MAX_ALTERNATIVES,
    MAX_IGNORE_BYTES,
    MAX_IGNORE_WEIGHT,
    Globs,
    IgnoreRules,
    IgnoreRulesCache,
    IgnoreVerdict,
    glob_expression,
)
from toolcrib.workspace.regex import RegexSet

pytestmark = pytest.mark.req("FRG-1")


def fits(pattern: str | list[str], path: str) -> bool:
    return Globs([pattern] if isinstance(pattern, str) else pattern).matches(path.split("/"))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "a.py/b"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.pyc"]),
        ("src/**/test_*.py", ["src/test_a.py", "src/x/y/test_a.py"], ["test_a.py", "x/src/test_a.py"]),
        ("src/*", ["src/a"], ["src/a/b", "src"]),
        ("src/**", ["src/a", "src/a/b"], ["src", "srcs/a"]),
        ("src/", ["src/a", "src/a/b"], ["src"]),
        ("/a.py", ["a.py"], ["x/a.py"]),
        ("./a.py", ["a.py"], ["x/a.py"]),
        ("**", ["a", "a/b"], []),
        ("{a,b}.txt", ["a.txt", "x/b.txt"], ["c.txt", "a,b.txt"]),
        ("{src,tests}/**/*.{py,pyi}", ["src/a.py", "tests/x/a.pyi"], ["docs/a.py"]),
        ("{a,{b,c}d}", ["a", "bd", "cd"], ["b", "d"]),
        ("{a/**,b}/c", ["a/c", "a/x/c", "b/c"], ["c"]),
        ("[a-c]?", ["ax", "cé"], ["dx", "a", "a/"]),
        ("[!a]", ["b", "x/b", "é"], ["a"]),
        ("x[!a]y", ["xby"], ["x/y", "xay"]),
        ("x[+-9]y", ["x+y", "x0y"], ["x/y"]),
        ("[]]", ["]"], ["a"]),
        ("[[:digit:]]*", ["1x"], ["x1"]),
        (r"\*", ["*"], ["a"]),
        (r"a\{b", ["a{b"], ["ab"]),
        ("a,b", ["a,b"], ["a"]),
        ("*x", ["caf\udce9x"], ["caf\udce9"]),
        ("a\nb", ["a\nb"], ["a", "b"]),
        ("ä?", ["äö"], ["ä"]),
    ],
)
def test_a_glob_fits_what_people_expect(pattern: str, yes: list[str], no: list[str]):
    assert [path for path in yes if not fits(pattern, path)] == []
    assert [path for path in no if fits(pattern, path)] == []


def test_a_leading_exclamation_mark_leaves_out():
    patterns = ["*.js", "!*.min.js", "!vendor/"]
    assert [p for p in ("a.js", "a.min.js", "vendor/a.js", "a.py") if fits(patterns, p)] == ["a.js"]
    assert fits(["!*.js"], "a.py")
    assert not fits(["!*.js"], "a.js")


@pytest.mark.parametrize(
    ("pattern", "place"),
    [("[a", 1), ("x{a,b", 2), ("a}", 2), ("a\\", 2), ("[[:nope:]]", 2), ("[", 1), ("[a\\", 1), ("", 1), ("{" * 20, 9)],
)
def test_a_glob_that_means_nothing_is_refused_with_its_place(pattern: str, place: int):
    with pytest.raises(WorkspaceError) as error:
        Globs([pattern])
    assert f"at character {place}." in error.value.message
    assert "backslash" in error.value.remedy


def test_braces_that_stand_for_too_many_patterns_are_refused():
    with pytest.raises(WorkspaceError, match=str(MAX_ALTERNATIVES)):
        Globs(["{a,b,c,d}" * 20])


@pytest.mark.parametrize(
    "pattern",
    ["a*" * 100 + "b", "**/" * 100 + "b", "*/**/" * 50 + "x", "[ab]*" * 100, "{a*,b*}{a*,b*}{a*,b*}" + "*a" * 90],
)
def test_no_glob_takes_long(pattern: str):
    path = ["a" * 200] * 20
    began = time.process_time()
    Globs([pattern]).matches(path)
    IgnoreRules([pattern]).verdict("/".join(path), is_folder=False)
    assert time.process_time() - began < 2.0


# A pattern as a structure, its text, and a plain reading of the structure.


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Star:
    pass


@dataclass(frozen=True)
class One:
    pass


@dataclass(frozen=True)
class OneOf:
    characters: str
    negated: bool


@dataclass(frozen=True)
class Slash:
    pass


@dataclass(frozen=True)
class Choice:
    choices: tuple[tuple[object, ...], ...]


letters = st.sampled_from("ab*é")
plain = st.one_of(
    st.builds(Text, letters),
    st.just(Star()),
    st.just(One()),
    st.just(Slash()),
    st.builds(OneOf, st.text("ab-", min_size=1, max_size=2), st.booleans()),
)
tokens = st.one_of(
    plain, plain, st.builds(Choice, st.lists(st.lists(plain, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple))
)
patterns = st.lists(tokens, min_size=1, max_size=7).map(tuple)
paths = st.lists(st.text("ab*-é", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join)


def written(pattern: tuple[object, ...]) -> str:
    words = []
    for token in pattern:
        match token:
            case Text(text):
                words.append("\\*" if text == "*" else text)
            case Star():
                words.append("*")
            case One():
                words.append("?")
            case Slash():
                words.append("/")
            case OneOf(characters, negated):
                words.append(f"[{'!' if negated else ''}{''.join(sorted(characters))}]")
            case Choice(choices):
                words.append("{" + ",".join(written(choice) for choice in choices) + "}")
    return "".join(words)


def without_choices(pattern: tuple[object, ...]) -> list[tuple[object, ...]]:
    parts = [token.choices if isinstance(token, Choice) else ((token,),) for token in pattern]
    return [tuple(itertools.chain(*parts)) for parts in itertools.product(*parts)]


def reads(pattern: tuple[object, ...], path: str) -> bool:
    """Component by component, by going back wherever it was wrong."""
    groups = [
        list(group) for is_slash, group in itertools.groupby(pattern, lambda t: isinstance(t, Slash)) if not is_slash
    ]
    texts = written(pattern)
    anchored = texts.startswith("/")
    if texts.endswith("/"):
        groups.append([Star(), Star()])
    if not anchored and "/" not in texts:
        groups.insert(0, [Star(), Star()])
    return fits_parts(groups, path.split("/"))


def fits_parts(groups: list[list[object]], names: list[str]) -> bool:
    if not groups:
        return not names
    # As git reads them, three stars are as good as two.
    if len(groups[0]) > 1 and all(isinstance(token, Star) for token in groups[0]):
        if len(groups) == 1:
            return bool(names)
        return fits_parts(groups[1:], names) or (bool(names) and fits_parts(groups, names[1:]))
    return bool(names) and fits_name(groups[0], names[0]) and fits_parts(groups[1:], names[1:])


def fits_name(group: list[object], name: str) -> bool:
    if not group:
        return not name
    first, rest = group[0], group[1:]
    if isinstance(first, Star):
        return any(fits_name(rest, name[n:]) for n in range(len(name) + 1))
    if not name or not fits_name(rest, name[1:]):
        return False
    match first:
        case Text(text):
            return text == name[0]
        case OneOf(characters, negated):
            return (name[0] in characters) is not negated
        case _:
            return True


@settings(max_examples=500)
@given(patterns, paths)
def test_globs_mean_what_a_plain_reading_of_them_means(pattern: tuple[object, ...], path: str):
    text = written(pattern)
    # Two slashes in a row and the like have no meaning that anybody agrees on.
    alternatives = [one for one in without_choices(pattern) if written(one)]
    if any("//" in written(one) or written(one) in ("/", "") for one in alternatives) or not alternatives:
        return
    if len(alternatives) != len(without_choices(pattern)):
        return
    assert fits(text, path) == any(reads(one, path) for one in alternatives)


@pytest.mark.parametrize(
    ("lines", "ignored", "kept"),
    [
        (["*.pyc"], ["a.pyc", "x/a.pyc"], ["a.py"]),
        (["/a"], ["a"], ["x/a"]),
        (["a/b"], ["a/b"], ["x/a/b"]),
        (["build/"], ["build/", "x/build/"], ["build"]),
        (["**/x"], ["x", "a/x"], ["ax"]),
        (["a/**"], ["a/b", "a/b/c"], ["a/"]),
        (["a/**/b"], ["a/b", "a/x/b"], ["b"]),
        (["# no", "", "\\#yes", "\\!yes"], ["#yes", "!yes"], ["no"]),
        (["a ", "b\\ "], ["a", "b "], ["b"]),
        (["*", "!*/", "!*.py"], ["a.txt", "x/a.txt"], ["x/", "a.py", "x/a.py"]),
        (["[ab"], [], ["[ab", "a"]),
        (["a\\"], [], ["a", "a\\"]),
        (["{a,b}"], ["{a,b}"], ["a"]),
        (["x?z", "[!a]b"], ["xyz", "cb"], ["x/z", "ab"]),
        (["build/*", "!build/keep"], ["build/x"], ["build/", "build/keep"]),
        (["build/**", "!build/keep"], ["build/x", "build/x/y"], ["build/", "build/keep"]),
        (["a/***/b", "***/c/d"], ["a/b", "a/x/y/b", "c/d", "x/c/d"], ["ab", "c"]),
        (["a**/b"], ["a/b", "ax/b", "ax/y/b", "ab"], ["b", "x/a/b"]),
        (["[[:digit:]]x"], ["1x"], ["ax"]),
    ],
)
def test_rules_of_gitignore_decide_as_git_does(lines: list[str], ignored: list[str], kept: list[str]):
    rules = IgnoreRules(lines)

    def is_ignored(path: str) -> bool:
        return rules.verdict(path.removesuffix("/"), is_folder=path.endswith("/")) is IgnoreVerdict.IGNORED

    assert [path for path in ignored if not is_ignored(path)] == []
    assert [path for path in kept if is_ignored(path)] == []


def test_a_gitignore_file_may_have_a_bom_and_lines_from_windows():
    rules = IgnoreRules.of_file(b"\xef\xbb\xbf*.log\r\n!keep.log\r\n")
    assert rules.verdict("a.log", is_folder=False) is IgnoreVerdict.IGNORED
    assert rules.verdict("keep.log", is_folder=False) is IgnoreVerdict.KEPT
    assert rules.verdict("a.txt", is_folder=False) is None


def test_a_gitignore_file_of_thousands_of_lines_decides_by_the_last_that_fits():
    rules = IgnoreRules([*(f"name{n}" for n in range(1500)), "!name7", *(f"other{n}" for n in range(1500))])
    assert rules.verdict("name8", is_folder=False) is IgnoreVerdict.IGNORED
    assert rules.verdict("name7", is_folder=False) is IgnoreVerdict.KEPT
    assert rules.verdict("other1499", is_folder=False) is IgnoreVerdict.IGNORED


def test_a_gitignore_file_counts_up_to_a_weight_and_never_with_half_a_line():
    heavy = [f"{'*a' * 20}{n}" for n in range(5000)]
    rules = IgnoreRules([*heavy, "last"])
    assert 0 < rules.weight <= MAX_IGNORE_WEIGHT
    assert not rules.is_whole
    assert rules.verdict("last", is_folder=False) is None
    cut = IgnoreRules.of_file(b"#" * (MAX_IGNORE_BYTES - 4) + b"\nabcdef")
    assert not cut
    assert not cut.is_whole
    assert (
        IgnoreRules.of_file(b"#" * (MAX_IGNORE_BYTES - 4) + b"\nabc").verdict("abc", is_folder=False)
        is IgnoreVerdict.IGNORED
    )


def test_hostile_patterns_are_compiled_in_small_sets_or_left_out(monkeypatch: pytest.MonkeyPatch):
    """By RE2, which is linear in the text: Python's `re` would take years for these."""
    sizes: list[int] = []

    class Counted(RegexSet):
        def __init__(self, expressions: Sequence[str]) -> None:
            sizes.append(sum(map(len, expressions)))
            super().__init__(expressions)

    monkeypatch.setattr(globs, "RegexSet", Counted)
    stars = [f"{'*a' * 100}b{n}" for n in range(3000)]
    rules = IgnoreRules([*stars, "last"])
    assert sum(sizes) == rules.weight <= MAX_IGNORE_WEIGHT
    assert max(sizes) <= globs._TOGETHER
    assert not rules.is_whole
    assert rules.verdict("a" * 3000 + "b0", is_folder=False) is IgnoreVerdict.IGNORED
    assert rules.verdict("a" * 3000, is_folder=False) is None
    assert rules.verdict("/".join(["a" * 200] * 20), is_folder=False) is None


def test_a_set_of_patterns_that_lacks_memory_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch):
    """RE2 itself would say of every path that nothing fits."""
    monkeypatch.setattr("toolcrib.workspace.regex.MAX_REGEX_MEMORY", 50_000)
    rules = IgnoreRules([f"{'*a' * 30}{n}" for n in range(40)])
    assert not rules
    assert not rules.is_whole


def test_rules_that_were_not_asked_for_lately_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolcrib.workspace.globs.MAX_KEPT_WEIGHT", 3 * (2 + IgnoreRules(["a"]).weight))
    known = IgnoreRulesCache()
    first = known.of_file(b"a\n")
    for name in (b"b\n", b"c\n"):
        known.of_file(name)
    assert known.of_file(b"a\n") is first
    second = known.of_file(b"b\n")
    known.of_file(b"d\n")
    known.of_file(b"e\n")
    assert known.of_file(b"b\n") is second
    assert known.of_file(b"a\n") is not first


def test_globs_are_bound_in_what_their_braces_stand_for(monkeypatch: pytest.MonkeyPatch):
    heavy = "{a,b}" * 8 + "x" * 900
    written: list[str] = []
    monkeypatch.setattr(globs, "glob_expression", lambda pattern: written.append(pattern) or glob_expression(pattern))
    assert Globs([heavy]).matches(["a" * 8 + "x" * 900])
    of_one = len(written)
    with pytest.raises(WorkspaceError, match="too large in total"):
        Globs([heavy] * 50)
    assert len(written) < 8 * of_one
