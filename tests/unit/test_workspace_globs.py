"""Globs and .gitignore rules match as their plain reading, and no pattern takes long."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.sizes import sized
from parts.tool_context import refused
from toolcrib.workspace import globs
from toolcrib.workspace.globs import Globs, IgnoreRules, IgnoreRulesCache, IgnoreVerdict, glob_expression
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
def test_a_glob_matches_the_expected_paths(pattern: str, yes: list[str], no: list[str]):
    assert [path for path in yes if not fits(pattern, path)] == []
    assert [path for path in no if fits(pattern, path)] == []


def test_a_leading_exclamation_mark_excludes():
    patterns = ["*.js", "!*.min.js", "!vendor/"]
    assert [p for p in ("a.js", "a.min.js", "vendor/a.js", "a.py") if fits(patterns, p)] == ["a.js"]
    assert fits(["!*.js"], "a.py")
    assert not fits(["!*.js"], "a.js")


def test_an_invalid_glob_is_refused_with_its_position():
    wrong = {"[a": 1, "x{a,b": 2, "a}": 2, "a\\": 2, "[[:nope:]]": 2, "[": 1, "[a\\": 1, "": 1, "{" * 20: 9}
    for pattern, place in wrong.items():
        error = refused(rf"at character {place}\.", Globs, [pattern])
        assert "backslash" in error.remedy
    refused(str(globs.MAX_ALTERNATIVES), Globs, ["{a,b,c,d}" * 20])


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


# A pattern as a structure, its text, and a plain reading of the structure. The simple tokens are their own text.

STAR, ONE, SLASH = "*", "?", "/"


@dataclass(frozen=True)
class LiteralText:
    text: str


@dataclass(frozen=True)
class CharacterClass:
    characters: str
    negated: bool


@dataclass(frozen=True)
class Choice:
    choices: tuple[tuple[object, ...], ...]


plain = st.one_of(
    st.builds(LiteralText, st.sampled_from("ab*é")),
    st.sampled_from([STAR, ONE, SLASH]),
    st.builds(CharacterClass, st.text("ab-", min_size=1, max_size=2), st.booleans()),
)
choices = st.lists(st.lists(plain, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
patterns = st.lists(st.one_of(plain, plain, st.builds(Choice, choices)), min_size=1, max_size=7).map(tuple)
paths = st.lists(st.text("ab*-é", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join)


def written(pattern: tuple[object, ...]) -> str:
    words = []
    for token in pattern:
        match token:
            case LiteralText(text):
                words.append("\\*" if text == "*" else text)
            case CharacterClass(characters, negated):
                words.append(f"[{'!' if negated else ''}{''.join(sorted(characters))}]")
            case Choice(choices):
                words.append("{" + ",".join(written(choice) for choice in choices) + "}")
            case _:
                words.append(str(token))
    return "".join(words)


def without_choices(pattern: tuple[object, ...]) -> list[tuple[object, ...]]:
    parts = [token.choices if isinstance(token, Choice) else ((token,),) for token in pattern]
    return [tuple(itertools.chain(*parts)) for parts in itertools.product(*parts)]


def reads(pattern: tuple[object, ...], path: str) -> bool:
    """Matches component by component, with backtracking."""
    groups = [list(group) for is_slash, group in itertools.groupby(pattern, lambda t: t == SLASH) if not is_slash]
    text = written(pattern)
    if text.endswith("/"):
        groups.append([STAR, STAR])
    if "/" not in text:
        groups.insert(0, [STAR, STAR])
    return fits_parts(groups, path.split("/"))


def fits_parts(groups: list[list[object]], names: list[str]) -> bool:
    if not groups:
        return not names
    # To git, three stars equal two.
    if len(groups[0]) > 1 and set(groups[0]) == {STAR}:
        if len(groups) == 1:
            return bool(names)
        return fits_parts(groups[1:], names) or (bool(names) and fits_parts(groups, names[1:]))
    return bool(names) and fits_name(groups[0], names[0]) and fits_parts(groups[1:], names[1:])


def fits_name(group: list[object], name: str) -> bool:
    if not group:
        return not name
    first, rest = group[0], group[1:]
    if first == STAR:
        return any(fits_name(rest, name[n:]) for n in range(len(name) + 1))
    if not name or not fits_name(rest, name[1:]):
        return False
    match first:
        case LiteralText(text):
            return text == name[0]
        case CharacterClass(characters, negated):
            return (name[0] in characters) is not negated
        case _:
            return True


@settings(max_examples=sized(150, 2000))
@given(patterns, paths)
def test_a_glob_means_the_same_as_its_plain_reading(pattern: tuple[object, ...], path: str):
    alternatives = without_choices(pattern)
    # Empty patterns and two slashes in a row have no agreed meaning.
    if not any("//" in written(one) or written(one) in ("/", "") for one in alternatives):
        assert fits(written(pattern), path) == any(reads(one, path) for one in alternatives)


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
def test_gitignore_rules_decide_as_git_does(lines: list[str], ignored: list[str], kept: list[str]):
    rules = IgnoreRules(lines)

    def is_ignored(path: str) -> bool:
        return rules.verdict(path.removesuffix("/"), is_folder=path.endswith("/")) is IgnoreVerdict.IGNORED

    assert [path for path in ignored if not is_ignored(path)] == []
    assert [path for path in kept if is_ignored(path)] == []


def verdicts(rules: IgnoreRules, *paths: str) -> list[IgnoreVerdict | None]:
    return [rules.verdict(path, is_folder=False) for path in paths]


def test_a_gitignore_file_may_have_a_bom_windows_line_ends_and_thousands_of_lines():
    rules = IgnoreRules.of_file(b"\xef\xbb\xbf*.log\r\n!keep.log\r\n")
    assert verdicts(rules, "a.log", "keep.log", "a.txt") == [IgnoreVerdict.IGNORED, IgnoreVerdict.KEPT, None]
    rules = IgnoreRules([*(f"name{n}" for n in range(1500)), "!name7", *(f"other{n}" for n in range(1500))])
    expected = [IgnoreVerdict.IGNORED, IgnoreVerdict.KEPT, IgnoreVerdict.IGNORED]
    assert verdicts(rules, "name8", "name7", "other1499") == expected


def test_a_gitignore_file_is_read_up_to_a_limit_and_never_in_half_a_line():
    rules = IgnoreRules([*(f"{'*a' * 20}{n}" for n in range(5000)), "last"])
    assert 0 < rules.weight <= globs.MAX_IGNORE_WEIGHT
    assert not rules.is_whole
    assert verdicts(rules, "last") == [None]
    comment = b"#" * (globs.MAX_IGNORE_BYTES - 4)
    cut = IgnoreRules.of_file(comment + b"\nabcdef")
    assert not cut
    assert not cut.is_whole
    assert verdicts(IgnoreRules.of_file(comment + b"\nabc"), "abc") == [IgnoreVerdict.IGNORED]


def test_hostile_patterns_are_compiled_in_small_sets_or_left_out(monkeypatch: pytest.MonkeyPatch):
    """RE2 is linear in the text; Python's `re` would take years for these."""
    sizes: list[int] = []

    class Counted(RegexSet):
        def __init__(self, expressions: Sequence[str]) -> None:
            sizes.append(sum(map(len, expressions)))
            super().__init__(expressions)

    monkeypatch.setattr(globs, "RegexSet", Counted)
    rules = IgnoreRules([*(f"{'*a' * 100}b{n}" for n in range(3000)), "last"])
    assert sum(sizes) == rules.weight <= globs.MAX_IGNORE_WEIGHT
    assert max(sizes) <= globs._TOGETHER
    assert not rules.is_whole
    expected = [IgnoreVerdict.IGNORED, None, None]
    assert verdicts(rules, "a" * 3000 + "b0", "a" * 3000, "/".join(["a" * 200] * 20)) == expected


def test_patterns_that_need_too_much_memory_are_left_out(monkeypatch: pytest.MonkeyPatch):
    """RE2 would match no path, without an error."""
    monkeypatch.setattr("toolcrib.workspace.regex.MAX_REGEX_MEMORY", 50_000)
    rules = IgnoreRules([f"{'*a' * 30}{n}" for n in range(40)])
    assert not rules
    assert not rules.is_whole


def test_the_cache_forgets_the_least_recently_used_rules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolcrib.workspace.globs.MAX_KEPT_WEIGHT", 3 * (2 + IgnoreRules(["a"]).weight))
    known = IgnoreRulesCache()
    first, _, _ = (known.of_file(name) for name in (b"a\n", b"b\n", b"c\n"))
    assert known.of_file(b"a\n") is first
    second, _, _ = (known.of_file(name) for name in (b"b\n", b"d\n", b"e\n"))
    assert known.of_file(b"b\n") is second
    assert known.of_file(b"a\n") is not first


def test_the_total_size_of_globs_is_limited(monkeypatch: pytest.MonkeyPatch):
    heavy = "{a,b}" * 8 + "x" * 900
    written: list[str] = []
    monkeypatch.setattr(globs, "glob_expression", lambda pattern: written.append(pattern) or glob_expression(pattern))
    assert Globs([heavy]).matches(["a" * 8 + "x" * 900])
    of_one = len(written)
    refused("too large in total", Globs, [heavy] * 50)
    assert len(written) < 8 * of_one
