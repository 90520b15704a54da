"""A rule is read strictly, told in words, and covers the tools it names: no fewer for a deny, no more for an allow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
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
from toolcrib.policy.rule import trusted_annotations

pytestmark = pytest.mark.req("KSI-5")


def tool(server: str, name: str, trusted: bool = True, **annotations: Any) -> Tool:
    definition = json.dumps({"name": name, "annotations": annotations}).encode()
    (made,) = Catalog.build({server: (definition,)}, version=1, trusted=frozenset({server} if trusted else ())).tools
    return made


def covers(effect: Verdict, tools: str, server: str, name: str) -> bool:
    return Rule(effect=effect, tools=tools).covers(tool(server, name))


@pytest.mark.parametrize("effect", Verdict)
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
def test_a_glob_covers_server_and_tool(effect: Verdict, tools: str, server: str, name: str, expected: bool) -> None:
    assert covers(effect, tools, server, name) is expected


@pytest.mark.parametrize(
    ("tools", "server", "name"),
    [("git:push", "Git", "PUSH"), ("GIT:*", "git", "push"), ("a:b:c", "a:b", "c"), ("a:b:*", "a:b", "c")],
)
def test_an_allow_means_what_it_says_and_a_deny_every_spelling(tools: str, server: str, name: str) -> None:
    assert covers(Verdict.DENY, tools, server, name)
    assert covers(Verdict.ASK, tools, server, name)
    assert not covers(Verdict.ALLOW, tools, server, name)


def test_a_long_name_against_many_stars_takes_no_time() -> None:
    assert not covers(Verdict.ALLOW, "x:" + "a*" * 100 + "b", "x", "a" * 5000)


@pytest.mark.parametrize(
    ("tools", "remedy"),
    [
        ("git", 'Write "git:*" or "*:git".'),
        ("git_log", 'Write "git_log:*" or "*:git_log".'),
        ("git:", 'Write "git:*".'),
        (":log", 'Write "*:log".'),
        (":", 'Write "*:*".'),
        ("git: log", 'Write "git:log".'),
        ("git:[rw]*", "Only * and ? are special; write two rules."),
        ("git:{a,b}", "Only * and ? are special; write two rules."),
    ],
)
def test_a_glob_that_names_no_server_and_tool_is_refused_with_what_to_write(tools: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(effect=Verdict.ALLOW, tools=tools)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize("tools", ["", "git:a\0", "git:\ud800", "git:a\nb", "git:" + "a" * 2000, 5, None, ["git:*"]])
def test_a_glob_that_is_no_line_of_text_is_refused(tools: Any) -> None:
    with pytest.raises(ConfigError):
        Rule(effect=Verdict.ALLOW, tools=tools)


SILENT = {"read_only": False, "destructive": True, "idempotent": False, "open_world": True}


@pytest.mark.parametrize(
    "annotations",
    [{}, {"readOnlyHint": "true"}, {"readOnlyHint": 1}, {"readOnlyHint": None}, {"readonlyhint": True}],
)
def test_a_server_that_says_nothing_plain_may_change_things(annotations: dict[str, Any]) -> None:
    made = tool("files", "x", **annotations)
    assert trusted_annotations(made) == SILENT
    assert not made.reads_only


def test_the_claims_of_a_server_that_is_not_believed_do_not_count() -> None:
    said = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    assert trusted_annotations(tool("files", "x", trusted=False, **said)) == SILENT
    assert not tool("files", "x", trusted=False, **said).reads_only
    assert trusted_annotations(tool("files", "x", **said)) == {
        "read_only": True,
        "destructive": False,
        "idempotent": True,
        "open_world": False,
    }


def test_what_only_reads_destroys_nothing_unless_its_server_says_so() -> None:
    assert trusted_annotations(tool("files", "x", readOnlyHint=True))["destructive"] is False
    assert trusted_annotations(tool("files", "x", readOnlyHint=True, destructiveHint=True))["destructive"] is True


def test_the_daemons_own_commands_are_always_believed() -> None:
    assert tool("crib", "x", trusted=False, readOnlyHint=True).reads_only


def test_a_rule_with_annotations_covers_only_tools_that_are_so() -> None:
    reads = Rule(effect=Verdict.ALLOW, tools="*", annotations={"read_only": True, "open_world": False})
    assert reads.covers(tool("files", "x", readOnlyHint=True, openWorldHint=False))
    assert not reads.covers(tool("files", "x", readOnlyHint=True))
    assert not reads.covers(tool("files", "x", trusted=False, readOnlyHint=True, openWorldHint=False))
    breaks = Rule(effect=Verdict.DENY, tools="*", annotations={"destructive": True})
    assert breaks.covers(tool("files", "x", trusted=False, destructiveHint=False))


@pytest.mark.parametrize(
    ("data", "says", "remedy"),
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
        (
            {"allow": "a:*", "when": {"path": {"matches": "("}}},
            "'(' is not a valid pattern",
            "Write a regular expression",
        ),
        ({"allow": "a:*", "when": {5: {"under": "."}}}, "An argument's name must be", "Give an argument"),
    ],
)
def test_a_rule_that_cannot_be_read_says_where_what_and_what_to_do(data: Any, says: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_from(data, where="profile mine, rule 3")
    assert caught.value.message.startswith(f"profile mine, rule 3: {says}")
    assert caught.value.remedy.startswith(remedy)


def test_an_empty_when_or_annotations_is_none_at_all() -> None:
    assert rule_from({"allow": "a:*", "when": {}, "annotations": {}}, where="x") == Rule(
        effect=Verdict.ALLOW, tools="a:*"
    )


@pytest.mark.parametrize(
    ("data", "origin", "text"),
    [
        ({"deny": "crib:raw_command"}, RuleOrigin.PROFILE, "profile mine: deny crib:raw_command"),
        ({"allow": "*"}, RuleOrigin.AGENT, "agent mine: allow *:*"),
        (
            {"allow": "git:*", "when": {"path": {"under": "src"}}},
            RuleOrigin.AGENT,
            "agent mine: allow git:* when path under src",
        ),
        (
            {"ask": "db:query", "when": {"sql": {"matches": "drop .*"}, "mode": {"one_of": ["a", 1, True, None]}}},
            RuleOrigin.APPROVAL,
            "approval mine: ask db:query when mode one_of a, 1, true, null and sql matches drop .*",
        ),
        (
            {"allow": "*:*", "annotations": {"read_only": True, "open_world": False}},
            RuleOrigin.PROFILE,
            "profile mine: allow *:* where not open_world and read_only",
        ),
    ],
)
def test_a_rule_is_told_in_words(data: Any, origin: RuleOrigin, text: str) -> None:
    assert str(rule_from(data, where="x", origin=origin, holder="mine")) == text


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
def test_a_rule_survives_being_written_and_read(rule: Rule) -> None:
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
def test_whatever_is_given_as_a_rule_is_read_or_refused_in_our_words(data: Any) -> None:
    try:
        rule = rule_from(data, where="here")
    except ConfigError as error:
        assert error.message.startswith("here: ")
        assert error.remedy
    else:
        assert rule_from(rule_data(rule), where="here") == rule


def test_the_same_conditions_in_another_order_are_the_same_rule() -> None:
    one = Condition(argument="a", test=OneOf(("x",)))
    two = Condition(argument="b", test=Under("src"))
    assert Rule(effect=Verdict.ALLOW, tools="a:*", when=(one, two)) == Rule(
        effect=Verdict.ALLOW, tools="a:*", when=(two, one)
    )


def test_one_argument_does_not_have_the_same_test_twice() -> None:
    twice = tuple(Condition(argument="a", test=Under(folder)) for folder in ("src", "lib"))
    with pytest.raises(ConfigError, match="same test twice"):
        Rule(effect=Verdict.ALLOW, tools="a:*", when=twice)


def test_a_profile_survives_being_written_and_read() -> None:
    data = {
        "description": "Reads git.",
        "rules": [{"allow": "git:*"}, {"deny": "git:*", "when": {"a": {"under": "."}}}],
    }
    profile = profile_from("mine", data)
    assert profile_data(profile) == data
    assert profile_from("mine", profile_data(profile)) == profile
    assert str(profile.rules[0]) == "profile mine: allow git:*"
    assert not profile.builtin
    assert profile_from("empty", {}).rules == ()


@pytest.mark.parametrize("name", [*BUILTIN, "", "A", "a b", "-a", "a" * 49, "a/b", "a\n", None, 5])
def test_a_profile_takes_neither_a_built_in_name_nor_an_odd_one(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        profile_from(name, {"rules": []})
    assert caught.value.remedy


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"rule": []},
        {"rules": {}},
        {"rules": "allow"},
        {"rules": [{}] * 10_001},
        {"description": 5},
        {"description": "a\nb"},
    ],
)
def test_a_profile_that_cannot_be_read_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        profile_from("mine", data)
    assert caught.value.remedy


def test_a_mistake_in_a_profile_names_the_rule() -> None:
    with pytest.raises(ConfigError, match=r"^profile mine, rule 2: 'git' names no server\."):
        profile_from("mine", {"rules": [{"allow": "a:*"}, {"deny": "git"}]})
