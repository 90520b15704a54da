"""Which rule decides: the table, the built-in profiles, the floors, parents, and what a listing may assume."""

from __future__ import annotations

import gc
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.identity.principal import CLIENT, OWNER
from toolcrib.policy import (
    BUILTIN,
    Decision,
    Permission,
    Profile,
    Rule,
    RuleOrigin,
    Verdict,
    profile_from,
    rule_from,
)

pytestmark = pytest.mark.req("KSI-5")

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
NOTHING = BUILTIN["nothing"]


def tool(server: str = "git", name: str = "push", trusted: bool = False, **annotations: Any) -> Tool:
    definition = json.dumps({"name": name, "annotations": annotations}).encode()
    (made,) = Catalog.build(
        {server: (definition,)},
        version=1,
        trusted=frozenset({server} if trusted else ()),
        folders={server: str(BASE)},
    ).tools
    return made


BASE = Path("/nowhere/work")
PUSH = tool()


def rule(text: str, origin: RuleOrigin = RuleOrigin.AGENT, **more: Any) -> Rule:
    effect, tools = text.split()
    return rule_from({effect: tools, **more}, where="test", origin=origin, holder="x")


def profile(*rules: str) -> Profile:
    return profile_from("mine", {"rules": [dict([text.split()]) for text in rules]})


@pytest.mark.parametrize(
    ("profile_rules", "rules", "verdict", "text"),
    [
        ([], [], DENY, "no rule allows it"),
        (["allow *"], [], ALLOW, "profile mine: allow *:*"),
        (["allow *", "deny git:push"], [], DENY, "profile mine: deny git:push"),
        (["deny git:*"], ["agent allow git:push"], DENY, "profile mine: deny git:*"),
        (["deny git:*"], ["approval allow git:push"], DENY, "profile mine: deny git:*"),
        (["allow *"], ["agent deny git:push"], DENY, "agent x: deny git:push"),
        (["allow *"], ["approval deny git:push", "agent allow *"], DENY, "approval x: deny git:push"),
        (["ask git:*"], [], ASK, "profile mine: ask git:*"),
        (["ask git:*", "allow git:push"], [], ASK, "profile mine: ask git:*"),
        (["ask git:*"], ["agent allow git:push"], ALLOW, "agent x: allow git:push"),
        (["allow *"], ["agent ask git:push"], ASK, "agent x: ask git:push"),
        ([], ["agent ask git:push", "agent allow *"], ASK, "agent x: ask git:push"),
        ([], ["agent ask git:push", "approval allow git:push"], ALLOW, "approval x: allow git:push"),
        (["allow other:*"], ["agent allow git:pull"], DENY, "no rule allows it"),
    ],
)
def test_the_rule_that_decides(profile_rules: list[str], rules: list[str], verdict: Verdict, text: str) -> None:
    own = [rule(words, RuleOrigin(origin)) for origin, _, words in (line.partition(" ") for line in rules)]
    for ordered in permutations(own):
        for base in permutations(profile_rules):
            made = Permission(profile(*base), agent="x", rules=ordered)
            for arguments in (None, {}, {"path": "x"}):
                assert made.decide(PUSH, arguments) == Decision(verdict, text)


def test_among_equals_the_words_decide_which_rule_is_told_never_the_order() -> None:
    told = {
        Permission(profile(*rules)).decide(PUSH, None).rule
        for rules in permutations(["allow git:push", "allow git:*", "allow *"])
    }
    assert told == {"profile mine: allow *:*"}


MARKED = {"toolcrib/owner": True}
TOOLS = {
    "reads": tool("files", "read", trusted=True, readOnlyHint=True),
    "claims": tool("files", "read", readOnlyHint=True),
    "writes": tool("files", "write", trusted=True, readOnlyHint=False),
    "health": tool("crib", "system_health", readOnlyHint=True),
    "reveals": tool("crib", "audit_query", readOnlyHint=True, **MARKED),
    "changes": tool("crib", "server_add", readOnlyHint=False, **MARKED),
    "raw": tool("crib", "raw_command", readOnlyHint=False, openWorldHint=False),
    "unmarked": tool("crib", "child_add", readOnlyHint=False, openWorldHint=False),
    "jobs": tool("crib", "job_submit", readOnlyHint=False, openWorldHint=True),
    "forged": tool("files", "raw_command", **MARKED),
}


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("owner", set(TOOLS)),
        ("trusted", set(TOOLS) - {"reveals", "changes"}),
        ("developer", {"reads", "claims", "writes", "health", "forged", "jobs"}),
        ("read-only", {"reads", "health"}),
        ("nothing", set()),
    ],
)
def test_the_built_in_profiles(name: str, allowed: set[str]) -> None:
    made = Permission(BUILTIN[name], agent="x")
    assert {key for key, known in TOOLS.items() if made.decide(known, {}).verdict is ALLOW} == allowed
    assert {key for key, known in TOOLS.items() if made.decide(known, None).verdict is not DENY} == allowed


def test_there_are_five_built_in_profiles_and_each_says_what_it_is() -> None:
    assert list(BUILTIN) == ["owner", "trusted", "developer", "read-only", "nothing"]
    assert all(profile.builtin and profile.description.endswith(".") for profile in BUILTIN.values())


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("kind", ["reveals", "changes", "raw"])
@pytest.mark.parametrize("name", ["developer", "read-only", "nothing", "mine"])
@pytest.mark.parametrize("origin", RuleOrigin)
def test_no_rule_lifts_what_is_built_in(kind: str, name: str, origin: RuleOrigin) -> None:
    base = BUILTIN.get(name) or profile("allow *", "allow crib:*", "ask crib:*")
    rules = [rule("allow *", origin), rule(f"allow crib:{TOOLS[kind].name}", origin), rule("ask crib:*", origin)]
    decision = Permission(base, agent="x", rules=rules).decide(TOOLS[kind], {})
    assert decision.verdict is DENY


def test_a_profile_that_only_takes_a_built_in_name_is_refused() -> None:
    with pytest.raises(ValueError, match="built-in"):
        Permission(Profile(name="owner", rules=(rule("allow *"),)))
    with pytest.raises(ValueError, match="built-in"):
        Permission(Profile(name="trusted", builtin=True))


def test_a_rule_against_it_binds_even_the_owners_profile() -> None:
    made = Permission(BUILTIN["owner"], agent="x", rules=[rule("deny git:push")])
    assert made.decide(PUSH, {}).verdict is DENY


IN_SRC = {"when": {"path": {"under": "src"}}}


@pytest.mark.parametrize(
    ("path", "verdict"),
    [("src/a", ALLOW), ("lib/a", DENY), ("src/../lib", DENY), (None, DENY), (["src/a", "/etc"], DENY)],
)
def test_an_allow_with_a_condition_allows_only_what_fulfils_it(path: Any, verdict: Verdict) -> None:
    made = Permission(NOTHING, agent="x", rules=[rule("allow git:*", **IN_SRC)], workdir=BASE)
    assert made.decide(PUSH, {"path": path}).verdict is verdict
    assert made.decide(PUSH, {}) == Decision(DENY, "no rule allows it")


@pytest.mark.parametrize(
    ("path", "verdict"),
    [("src/a", DENY), ("lib/a", ALLOW), ("~/x", DENY), (5, DENY), (["/etc", "src/a"], DENY), (None, ALLOW)],
)
def test_a_deny_with_a_condition_denies_what_fulfils_it_or_cannot_be_judged(path: Any, verdict: Verdict) -> None:
    made = Permission(BUILTIN["developer"], agent="x", rules=[rule("deny git:*", **IN_SRC)], workdir=BASE)
    assert made.decide(PUSH, {"path": path}).verdict is verdict
    assert made.decide(PUSH, {}).verdict is ALLOW


@pytest.mark.parametrize(
    ("path", "verdict"),
    [("src/a", ASK), ("lib/a", ALLOW), ("~/x", ASK), (["lib/a", "src/a"], ASK), (5, ASK), (None, ALLOW)],
)
def test_an_ask_with_a_condition_asks_whenever_it_may_be_meant_before_an_allow_lets_it_pass(
    path: Any, verdict: Verdict
) -> None:
    made = Permission(BUILTIN["developer"], agent="x", rules=[rule("ask git:*", **IN_SRC)], workdir=BASE)
    assert made.decide(PUSH, {"path": path}).verdict is verdict


@pytest.mark.parametrize(("path", "verdict"), [("src/a", ASK), ("~/x", DENY), (["lib/a", "src/a"], DENY), (5, DENY)])
def test_an_ask_alone_opens_only_what_surely_fulfils_it(path: Any, verdict: Verdict) -> None:
    made = Permission(NOTHING, agent="x", rules=[rule("ask git:*", **IN_SRC)], workdir=BASE)
    assert made.decide(PUSH, {"path": path}).verdict is verdict


def test_a_standing_approval_is_stronger_than_a_doubtful_ask() -> None:
    rules = [rule("ask git:*", **IN_SRC), rule("allow git:push", RuleOrigin.APPROVAL)]
    assert Permission(NOTHING, agent="x", rules=rules, workdir=BASE).decide(PUSH, {"path": "~"}).verdict is ALLOW


def test_a_deny_is_seen_whatever_conditions_stand_before_it() -> None:
    rules = [rule("deny git:*", **IN_SRC), rule("deny git:push"), rule("allow *", RuleOrigin.APPROVAL)]
    made = Permission(NOTHING, agent="x", rules=rules, workdir=BASE)
    for arguments in (None, {}, {"path": "lib"}, {"path": "src"}):
        assert made.decide(PUSH, arguments) == Decision(DENY, "agent x: deny git:push")


def test_while_arguments_are_not_known_conditions_count_for_an_allow_and_not_for_a_deny() -> None:
    allow, deny, ask = (rule(f"{effect} git:*", **IN_SRC) for effect in ("allow", "deny", "ask"))
    assert Permission(NOTHING, rules=[allow]).decide(PUSH, None).verdict is ALLOW
    assert Permission(NOTHING, rules=[ask]).decide(PUSH, None).verdict is ASK
    assert Permission(NOTHING, rules=[allow, deny]).decide(PUSH, None).verdict is ALLOW
    assert Permission(NOTHING, rules=[deny]).decide(PUSH, None).verdict is DENY


LEAD = Permission(BUILTIN["developer"], agent="lead", rules=[rule("deny git:push"), rule("ask git:tag")])


@pytest.mark.req("KSI-3")
@pytest.mark.parametrize(
    ("name", "decision"),
    [
        ("push", Decision(DENY, "its parent lead: agent x: deny git:push")),
        ("tag", Decision(ASK, "its parent lead: agent x: ask git:tag")),
        ("log", Decision(ALLOW, "profile owner: allow *:*")),
    ],
)
def test_a_child_gets_the_stricter_of_its_own_and_its_parents_decision(name: str, decision: Decision) -> None:
    child = Permission(BUILTIN["owner"], agent="child", rules=[rule("allow *", RuleOrigin.APPROVAL)][:0], parent=LEAD)
    assert child.decide(tool(name=name), {}) == decision
    assert child.decide(tool(name=name), None) == decision


@pytest.mark.req("KSI-3")
def test_a_parents_conditions_bind_its_child_in_the_parents_folder() -> None:
    lead = Permission(NOTHING, agent="lead", rules=[rule("allow git:*", **IN_SRC)], workdir=BASE)
    child = Permission(BUILTIN["owner"], agent="child", parent=lead, workdir=Path("/elsewhere"))
    assert child.decide(PUSH, {"path": f"{BASE}/src/a"}).verdict is ALLOW
    assert child.decide(PUSH, {"path": "/elsewhere/src/a"}) == Decision(DENY, "its parent lead: no rule allows it")
    assert child.decide(PUSH, None).verdict is ALLOW


@pytest.mark.req("KSI-3")
@pytest.mark.parametrize("kind", ["reveals", "changes", "raw", "unmarked"])
def test_a_child_of_any_profile_does_not_manage_toolcrib_for_its_parent(kind: str) -> None:
    child = Permission(BUILTIN["owner"], agent="child", parent=LEAD)
    assert child.decide(TOOLS[kind], {}).verdict is DENY


def test_a_grandchild_is_bound_by_all_above() -> None:
    child = Permission(BUILTIN["owner"], agent="child", parent=LEAD)
    grandchild = Permission(BUILTIN["owner"], agent="grandchild", parent=child)
    assert grandchild.decide(PUSH, {}).verdict is DENY


def made(*rules: Rule, workdir: Path | None = None, **more: Any) -> Permission:
    return Permission(more.pop("base", NOTHING), rules=rules, workdir=workdir, **more)


def test_the_key_is_the_same_for_the_same_meaning() -> None:
    one, two = rule("allow git:*"), rule("deny git:push")
    assert made(one, two).key == made(two, one).key == made(one, two, one).key
    assert made(one, agent="a", version=1).key == made(one, agent="b", version=2).key
    assert made(one, workdir=Path("/a")).key == made(one, workdir=Path("/b")).key


def test_the_key_differs_where_a_decision_may() -> None:
    one, looking = rule("allow git:*"), rule("allow git:*", **IN_SRC)
    keys = [
        made(),
        made(one),
        made(rule("allow git:*", RuleOrigin.APPROVAL)),
        made(rule("deny git:*")),
        made(rule("allow git:*", annotations={"read_only": True})),
        made(rule("allow git:*", when={"x": {"one_of": [1]}})),
        made(rule("allow git:*", when={"x": {"one_of": [True]}})),
        made(looking, workdir=Path("/a")),
        made(looking, workdir=Path("/b")),
        made(looking),
        made(one, parent=made()),
        made(one, parent=made(one)),
        made(base=BUILTIN["trusted"]),
        made(base=BUILTIN["owner"]),
        made(base=BUILTIN["developer"]),
    ]
    assert len({permission.key for permission in keys}) == len(keys)


def test_rules_that_differ_only_by_the_kind_of_a_value_are_two() -> None:
    rules = [rule("allow git:*", when={"x": {"one_of": [value]}}) for value in (1, True)]
    both = Permission(NOTHING, rules=rules)
    assert [both.decide(PUSH, {"x": value}).verdict for value in (1, True, "1")] == [ALLOW, ALLOW, DENY]


def test_what_was_found_for_a_tool_does_not_keep_it_alive() -> None:
    known = Permission(BUILTIN["developer"])
    for number in range(100):
        known.decide(tool(name=f"t{number}"), None)
    gc.collect()
    assert len(known._plans) == 0


def test_a_decision_is_made_once_per_tool_and_then_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Permission(profile(*(f"allow s{number}:*" for number in range(1000)), "allow git:*"))
    first = known.decide(PUSH, None)
    monkeypatch.setattr(Rule, "covers", None)
    assert known.decide(PUSH, {"path": "x"}) is first


def test_only_rules_that_may_mean_a_tool_are_tried_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Permission(profile(*(f"deny git:t{number}" for number in range(1000)), "allow git:*"))
    tried: list[Rule] = []
    covers = Rule.covers
    monkeypatch.setattr(Rule, "covers", lambda self, tool: tried.append(self) or covers(self, tool))
    assert known.decide(PUSH, None).verdict is ALLOW
    assert len(tried) == 1


def test_every_rule_that_speaks_of_a_tool_can_be_told() -> None:
    rules = [rule("allow git:*"), rule("deny git:*", **IN_SRC), rule("deny git:pull")]
    known = Permission(BUILTIN["developer"], agent="x", rules=rules, workdir=BASE)
    assert [(str(found.rule), found.applies) for found in known.matching(PUSH, {"path": "lib"})] == [
        ("agent x: deny git:* when path under src", False),
        ("agent x: allow git:*", True),
        ("profile developer: allow *:*", True),
    ]


def test_the_owner_and_a_client_have_the_permissions_of_their_profiles() -> None:
    assert (OWNER.profile, CLIENT.profile) == ("owner", "developer")
    assert OWNER.permission().decide(TOOLS["changes"], None).verdict is ALLOW
    assert CLIENT.permission().decide(TOOLS["changes"], None).verdict is DENY
