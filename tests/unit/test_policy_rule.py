"""Rules and profiles are parsed strictly; a deny covers every spelling of a tool, an allow only the exact one."""

from __future__ import annotations

import json
import posixpath
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.offers import resource_or_prompt
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.model import ANNOTATIONS
from toolcrib.errors import ConfigError
from toolcrib.policy import (
    BUILTIN,
    Condition,
    Matches,
    OneOf,
    Rule,
    RuleOrigin,
    Under,
    Verdict,
    profile_data,
    profile_from,
    rule_data,
    rule_from,
)

pytestmark = pytest.mark.req("KSI-5")


def tool(server: str, name: str, trusted: bool = True, **annotations: Any) -> Tool:
    definition = json.dumps({"name": name, "annotations": annotations}).encode()
    (made,) = Catalog.build({server: (definition,)}, version=1, trusted=frozenset({server} if trusted else ())).tools
    return made


def covering(tools: str, server: str, name: str) -> set[Verdict]:
    """The effects with which a rule for these tools covers the tool."""
    return {effect for effect in Verdict if Rule(effect=effect, tools=tools).covers(tool(server, name))}


@pytest.mark.parametrize(
    ("tools", "server", "name", "expected"),
    [
        ("*", "git", "log", True),
        ("*:*", "git", "log", True),
        ("git:*", "git", "log", True),
        ("git:*", "git2", "log", False),
        ("git:*", "agit", "log", False),
        ("*:log", "git", "log", True),
        ("*:log", "git", "logs", False),
        ("g?t:l*", "git", "log", True),
        ("g?t:l*", "gt", "log", False),
        ("git:log", "git", "log", True),
        ("git:l.g", "git", "log", False),
        ("git:log", "git", "log\n", False),
        ("git:*", "git", "a\nb", True),
        ("git:a:b", "git", "a:b", True),
        ("git:*:b", "git", "a:b", True),
        ("*:*", "a:b", "c", True),
    ],
)
def test_a_glob_covers_server_and_tool(tools: str, server: str, name: str, expected: bool) -> None:
    assert covering(tools, server, name) == (set(Verdict) if expected else set())


@pytest.mark.parametrize(
    ("tools", "server", "name"),
    [("git:push", "Git", "PUSH"), ("GIT:*", "git", "push"), ("a:b:c", "a:b", "c"), ("a:b:*", "a:b", "c")],
)
def test_an_allow_is_matched_exactly_and_a_deny_or_ask_in_every_spelling(tools: str, server: str, name: str) -> None:
    assert covering(tools, server, name) == {Verdict.DENY, Verdict.ASK}


def test_a_long_name_against_many_stars_takes_no_time() -> None:
    assert not covering("x:" + "a*" * 100 + "b", "x", "a" * 5000)


@pytest.mark.parametrize(
    ("tools", "remedy"),
    [
        ("git", 'Write "git:*" or "*:git".'),
        ("git_log", 'Write "git_log:*" or "*:git_log".'),
        ("submit_job", 'Write "crib:job_submit".'),
        ("git:", 'Write "git:*".'),
        (":log", 'Write "*:log".'),
        (":", 'Write "*:*".'),
        ("git: log", 'Write "git:log".'),
        ("git:[rw]*", "Only * and ? are special; write two rules."),
        ("git:{a,b}", "Only * and ? are special; write two rules."),
    ],
)
def test_a_glob_without_a_server_and_a_tool_is_refused_with_a_remedy(tools: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(effect=Verdict.ALLOW, tools=tools)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize("tools", ["", "git:a\0", "git:\ud800", "git:a\nb", "git:" + "a" * 2000, 5, None, ["git:*"]])
def test_a_glob_that_is_not_one_line_of_text_is_refused(tools: Any) -> None:
    with pytest.raises(ConfigError):
        Rule(effect=Verdict.ALLOW, tools=tools)


DEFAULTS = {"read_only": False, "destructive": True, "idempotent": False, "open_world": True}
SAFE = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
READS = {**DEFAULTS, "read_only": True, "destructive": False, "idempotent": True}


@pytest.mark.parametrize(
    ("trusted", "annotations", "expected"),
    [
        *[(True, {"readOnlyHint": value}, DEFAULTS) for value in ("true", 1, None)],
        (True, {}, DEFAULTS),
        (True, {"readonlyhint": True}, DEFAULTS),
        (False, SAFE, DEFAULTS),
        (True, SAFE, {"read_only": True, "destructive": False, "idempotent": True, "open_world": False}),
        (True, {"readOnlyHint": True}, READS),
        (True, {"readOnlyHint": True, "destructiveHint": True}, {**READS, "destructive": True}),
    ],
)
def test_only_plain_annotations_of_a_trusted_server_apply(
    trusted: bool, annotations: dict[str, Any], expected: dict[str, bool]
) -> None:
    known = tool("files", "x", trusted, **annotations)
    assert known.claims == expected
    assert known.reads_only is expected["read_only"]
    assert tool("crib", "x", trusted=False, readOnlyHint=True).reads_only, "our own commands are always trusted"


def test_a_rule_with_annotations_covers_only_tools_with_them() -> None:
    reads = Rule(effect=Verdict.ALLOW, tools="*", annotations={"read_only": True, "open_world": False})
    assert reads.covers(tool("files", "x", readOnlyHint=True, openWorldHint=False))
    assert not reads.covers(tool("files", "x", readOnlyHint=True))
    assert not reads.covers(tool("files", "x", trusted=False, readOnlyHint=True, openWorldHint=False))
    breaks = Rule(effect=Verdict.DENY, tools="*", annotations={"destructive": True})
    assert breaks.covers(tool("files", "x", trusted=False, destructiveHint=False))


@pytest.mark.parametrize(
    ("data", "message", "remedy"),
    [
        ([], "A rule must be an object.", "For instance"),
        ("allow git:*", "A rule must be an object.", "For instance"),
        ({}, "A rule needs exactly one of allow, deny and ask.", "For instance"),
        ({"allow": "a:*", "deny": "b:*"}, "A rule needs exactly one of allow, deny and ask.", "For instance"),
        ({"alow": "a:*"}, "A rule has no key 'alow'.", "Did you mean allow?"),
        ({"allow": "a:*", "if": {}}, "A rule has no key 'if'.", "Known: allow, deny, ask, annotations, when."),
        ({"allow": "git"}, "'git' names no server.", 'Write "git:*" or "*:git".'),
        ({"allow": ["a:*"]}, "A rule's tools must be one printable line.", "Write `server:tool`"),
        ({"allow": "a:*", "annotations": []}, "`annotations` and `when` must be objects.", "For instance"),
        ({"allow": "a:*", "annotations": {"readonly": True}}, "Annotations are", "Did you mean read_only?"),
        ({"allow": "a:*", "annotations": {"read_only": "yes"}}, "Annotations are", "Known: read_only"),
        ({"allow": "a:*", "when": ["path"]}, "`annotations` and `when` must be objects.", "For instance"),
        ({"allow": "a:*", "when": {"path": "src"}}, "A condition needs a test.", "For instance"),
        ({"allow": "a:*", "when": {"path": {}}}, "A condition needs a test.", "For instance"),
        ({"allow": "a:*", "when": {"path": {"udner": "."}}}, "There is no test 'udner'.", "Did you mean under?"),
        ({"allow": "a:*", "when": {"path": {"one_of": "ab"}}}, "one_of takes a list.", "For instance"),
        ({"allow": "a:*", "when": {"path": {"matches": "("}}}, "'(' is not a valid pattern", "Write a regular"),
        ({"allow": "a:*", "when": {5: {"under": "."}}}, "An argument's name must be", "Give an argument"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_place_and_a_remedy(data: Any, message: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_from(data, where="profile mine, rule 3")
    assert caught.value.message.startswith(f"profile mine, rule 3: {message}")
    assert caught.value.remedy.startswith(remedy)


def test_equal_rules_may_be_written_differently() -> None:
    plain = Rule(effect=Verdict.ALLOW, tools="a:*")
    assert rule_from({"allow": "a:*", "when": {}, "annotations": {}}, where="x") == plain
    when = (Condition(argument="a", test=OneOf(("x",))), Condition(argument="b", test=Under("src")))
    assert replace(plain, when=when) == replace(plain, when=when[::-1])
    twice = tuple(Condition(argument="a", test=Under(folder)) for folder in ("src", "lib"))
    with pytest.raises(ConfigError, match="same test twice"):
        replace(plain, when=twice)


CONDITIONS = {"sql": {"matches": "drop .*"}, "mode": {"one_of": ["a", 1, True, None]}}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"deny": "crib:raw_command"}, "profile mine: deny crib:raw_command"),
        ({"allow": "*"}, "agent mine: allow *:*"),
        ({"allow": "git:*", "when": {"path": {"under": "src"}}}, "agent mine: allow git:* when path under src"),
        (
            {"ask": "db:query", "when": CONDITIONS},
            "approval mine: ask db:query when mode one_of a, 1, true, null and sql matches drop .*",
        ),
        (
            {"allow": "*:*", "annotations": {"read_only": True, "open_world": False}},
            "profile mine: allow *:* where not open_world and read_only",
        ),
    ],
)
def test_a_rule_has_a_readable_text(data: Any, text: str) -> None:
    assert str(rule_from(data, where="x", origin=RuleOrigin(text.split(maxsplit=1)[0]), holder="mine")) == text


printable = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=10)
globs = st.one_of(
    st.just("*"),
    st.tuples(printable, printable)
    .map(":".join)
    .filter(lambda text: not set("[]{}") & set(text) and not text.startswith(":") and text.partition(":")[2] != ""),
)
tests = st.one_of(
    st.sampled_from(["src", ".", "/srv/a b", "..", "a/../b"]).map(Under),
    st.lists(st.one_of(printable, st.integers(), st.booleans(), st.none()), min_size=1, max_size=4).map(
        lambda values: OneOf(tuple(values))
    ),
    st.sampled_from(["a.*", "(?i)drop", r"\d+", "[^/]*"]).map(Matches),
)
rules = st.builds(
    Rule,
    effect=st.sampled_from(Verdict),
    tools=globs,
    annotations=st.dictionaries(st.sampled_from(sorted(ANNOTATIONS)), st.booleans()),
    when=st.lists(
        st.builds(Condition, argument=st.sampled_from(["path", "a.b", "Ä"]), test=tests),
        max_size=3,
        unique_by=lambda condition: (condition.argument, type(condition.test)),
    ).map(tuple),
    origin=st.sampled_from(RuleOrigin),
    holder=st.sampled_from(["", "mine"]),
)


@given(rules)
def test_a_rule_survives_a_round_trip(rule: Rule) -> None:
    data = json.loads(json.dumps(rule_data(rule)))
    again = rule_from(data, where="x", origin=rule.origin, holder=rule.holder)
    assert again == rule
    assert hash(again) == hash(rule)
    assert again.meaning == rule.meaning
    assert str(again) == str(rule)


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
hostile_rules = st.fixed_dictionaries(
    {}, optional={"allow": anything, "deny": anything, "ask": anything, "annotations": anything, "when": anything}
)


@given(st.one_of(anything, hostile_rules, st.builds(lambda when: {"allow": "a:b", "when": {"x": when}}, anything)))
def test_any_data_is_a_rule_or_is_refused_with_a_remedy(data: Any) -> None:
    try:
        rule = rule_from(data, where="here")
    except ConfigError as error:
        assert error.message.startswith("here: ")
        assert error.remedy
    else:
        assert rule_from(rule_data(rule), where="here") == rule


def test_a_profile_survives_a_round_trip_and_a_mistake_names_its_rule() -> None:
    rules = [{"allow": "git:*"}, {"deny": "git:*", "when": {"a": {"under": "."}}}]
    data = {"description": "Reads git.", "rules": rules}
    profile = profile_from("mine", data)
    assert profile_data(profile) == data
    assert profile_from("mine", profile_data(profile)) == profile
    assert str(profile.rules[0]) == "profile mine: allow git:*"
    assert not profile.builtin
    assert profile_from("empty", {}).rules == ()
    with pytest.raises(ConfigError, match=r"^profile mine, rule 2: 'git' names no server\."):
        profile_from("mine", {"rules": [{"allow": "a:*"}, {"deny": "git"}]})


INVALID_PROFILES: list[tuple[Any, Any]] = [
    *[(name, {"rules": []}) for name in (*BUILTIN, "", "A", "a b", "-a", "a" * 49, "a/b", "a\n", None, 5)],
    *[("mine", data) for data in (None, [], {"rule": []}, {"description": 5}, {"description": "a\nb"})],
    *[("mine", {"rules": rules}) for rules in ({}, "allow", [{}] * 10_001)],
]


@pytest.mark.parametrize(("name", "data"), INVALID_PROFILES, ids=lambda value: repr(value)[:30])
def test_an_invalid_profile_is_refused_with_a_remedy(name: Any, data: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        profile_from(name, data)
    assert caught.value.remedy


def covers(effect: Verdict, tools: str, kind: OfferKind, server: str, name: str) -> bool:
    made = tool(server, name) if kind is OfferKind.TOOL else resource_or_prompt(kind, server, name, {})
    return Rule(effect=effect, tools=tools).covers(made)


@pytest.mark.parametrize("effect", Verdict)
@pytest.mark.parametrize(
    ("tools", "kinds"),
    [
        ("*", "tool resource prompt"),
        ("git:*", "tool resource prompt"),
        ("g*:*", "tool resource prompt"),
        ("git:a*", "tool"),
        ("git:a://b", "tool"),
        ("git:**", "tool"),
        ("resource:git:*", "resource"),
        ("resource:*:*", "resource"),
        ("resource:git:a://*", "resource"),
        ("resource:git:a://b", "resource"),
        ("prompt:git:*", "prompt"),
        ("prompt:git:a://b", "prompt"),
        ("prompt:*:a*", "prompt"),
        ("resource:other:*", ""),
        ("prompt:git", ""),
        ("resource:*", ""),
        ("prompt:*", ""),
    ],
)
def test_a_rule_covers_its_kind_and_whole_servers_every_kind(effect: Verdict, tools: str, kinds: str) -> None:
    covered = [kind for kind in OfferKind if covers(effect, tools, kind, "git", "a://b")]
    assert covered == kinds.split()


def test_a_server_may_be_named_like_a_kind() -> None:
    assert covers(Verdict.ALLOW, "prompt:review", OfferKind.TOOL, "prompt", "review")
    assert covers(Verdict.ALLOW, "prompt:*", OfferKind.RESOURCE, "prompt", "x://a")
    assert not covers(Verdict.ALLOW, "prompt:prompt:review", OfferKind.TOOL, "prompt", "review")


def test_a_glob_over_tools_with_a_colon_covers_no_resources() -> None:
    assert covers(Verdict.ALLOW, "git:file:*", OfferKind.TOOL, "git", "file:a")
    assert not covers(Verdict.ALLOW, "git:file:*", OfferKind.RESOURCE, "git", "file:///etc/passwd")


BYPASSES = [
    "file:///src/../etc/passwd",
    "file:///src/%2e%2e/etc/passwd",
    "file:///src/%2E%2e/etc/passwd",
    "file:///src/%252e%252e/etc/passwd",
    "file:///src/%25252e%25252e/etc/passwd",
    "file:///src/..%2fetc/passwd",
    "file:///src/..%5cetc%5cpasswd",
    "file:///src\\..\\etc\\passwd",
    "file:///src//../etc/passwd",
    "file:///src/./../etc/passwd",
    "file:///src/a/../../etc/passwd",
    "file:///src/../etc/passwd?/../../src/a",
]


@pytest.mark.parametrize("uri", BYPASSES)
def test_no_spelling_of_an_address_leaves_what_is_allowed(uri: str) -> None:
    assert not covers(Verdict.ALLOW, "resource:files:file:///src/*", OfferKind.RESOURCE, "files", uri)
    assert not covers(Verdict.ALLOW, "resource:files:file:///src/**", OfferKind.RESOURCE, "files", uri)


@pytest.mark.parametrize(
    "uri",
    [
        *BYPASSES,
        "file:///etc/passwd",
        "FILE:///ETC/Passwd",
        "file:/etc/passwd",
        "file://localhost/etc/passwd",
        "file:////etc//passwd",
        "file:///../etc/passwd",
        "file:///%65tc/passwd",
        "file:///etc/./passwd",
        "file:///etc/passwd/",
        "file:///etc/passwd?",
        "file:///etc/passwd#top",
        "file:///etc/passwd%3Fa",
        "file:///etc/pass\nwd",
    ],
)
@pytest.mark.parametrize("effect", [Verdict.DENY, Verdict.ASK])
def test_a_deny_covers_every_spelling_of_an_address(uri: str, effect: Verdict) -> None:
    for tools in ("resource:files:file:///etc/*", "resource:files:file:///etc/passwd", "resource:*:*PASSWD"):
        assert covers(effect, tools, OfferKind.RESOURCE, "files", uri), tools


@pytest.mark.parametrize(
    ("tools", "uri"),
    [
        ("resource:a:file:///My%20Docs/*", "file:///My%20Docs/a"),
        ("resource:a:file:///My%20Docs/*", "file:///My Docs/a"),
        ("resource:a:file:///My Docs/*", "file:///My Docs/a"),
        ("resource:a:x://y%20z", "x://y%20z"),
        ("resource:a:x://y//z/../w", "x://y//z/../w"),
        ("resource:a:x://y?page=*", "x://y?page=2"),
        ("resource:a:x://*", "x://y/100%25/z"),
    ],
)
def test_an_allow_of_an_encoded_address_works_as_written(tools: str, uri: str) -> None:
    assert covers(Verdict.ALLOW, tools, OfferKind.RESOURCE, "a", uri)


def test_an_allow_gains_no_wildcard_by_decoding() -> None:
    assert not covers(Verdict.ALLOW, "resource:a:x://%2A/*", OfferKind.RESOURCE, "a", "x://other/b")


def test_brackets_in_an_address_are_plain_characters() -> None:
    for effect in Verdict:
        assert covers(effect, "resource:a:x://[1]{b}/*", OfferKind.RESOURCE, "a", "x://[1]{b}/c")
        assert not covers(effect, "resource:a:x://[1]{b}/*", OfferKind.RESOURCE, "a", "x://1{b}/c")
        assert covers(effect, "resource:a:x://[1]", OfferKind.RESOURCE, "a", "x://[1]")


PIECES = [
    "a",
    "..",
    ".",
    "",
    "src",
    "etc",
    "%2e%2e",
    "%2E.",
    "..%2fetc",
    "%2f",
    "%252e%252e",
    "..\\..",
    "a%5c..",
    "?",
    "#",
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_whatever_an_allow_covers_stays_below_its_folder_however_it_is_read(pieces: list[str]) -> None:
    uri = "file:///src/" + "/".join(pieces)
    if not covers(Verdict.ALLOW, "resource:files:file:///src/*", OfferKind.RESOURCE, "files", uri):
        return
    path = uri.removeprefix("file://")
    for _ in range(4):
        for one in (path, path.replace("\\", "/"), path.partition("?")[0].partition("#")[0]):
            assert posixpath.normpath(one).startswith("/src"), one
        path = unquote(path)


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_whatever_a_server_reads_in_a_denied_folder_is_denied(pieces: list[str]) -> None:
    uri = "file:///" + "/".join(pieces)
    path = uri.removeprefix("file://")
    read = set[str]()
    for _ in range(4):
        read |= {posixpath.normpath(one.replace("\\", "/")) for one in (path, path.partition("?")[0].partition("#")[0])}
        path = unquote(path)
    if any(one.lstrip("/").startswith("etc/") for one in read):
        assert covers(Verdict.DENY, "resource:files:file:///etc/*", OfferKind.RESOURCE, "files", uri)
