"""Which rule decides: precedence, built-in profiles and denials, conditions, parents, listings."""

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
from toolcrib.policy import BUILTIN, Decision, Permission, Profile, Rule, RuleOrigin, Verdict, profile_from, rule_from

pytestmark = pytest.mark.req("KSI-5")

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
NOTHING = BUILTIN["nothing"]


def tool(server: str = "git", name: str = "push", trusted: bool = False, **annotations: Any) -> Tool:
    definition = json.dumps({"name": name, "annotations": annotations}).encode()
    servers = frozenset({server} if trusted else ())
    return Catalog.build({server: (definition,)}, version=1, trusted=servers, folders={server: str(BASE)}).tools[0]


BASE = Path("/nowhere/work")
PUSH = tool()


def rule(text: str, origin: RuleOrigin = RuleOrigin.AGENT, **more: Any) -> Rule:
    effect, tools = text.split()
    return rule_from({effect: tools, **more}, where="test", origin=origin, holder="x")


def profile(*rules: str) -> Profile:
    return profile_from("mine", {"rules": [dict([text.split()]) for text in rules]})


def made(*rules: Rule, base: Profile = NOTHING, **more: Any) -> Permission:
    return Permission(base, rules=rules, **more)


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
def test_precedence_does_not_depend_on_the_order_of_rules(
    profile_rules: list[str], rules: list[str], verdict: Verdict, text: str
) -> None:
    own = [rule(words, RuleOrigin(origin)) for origin, _, words in (line.partition(" ") for line in rules)]
    for ordered in permutations(own):
        for base in permutations(profile_rules):
            known = Permission(profile(*base), agent="x", rules=ordered)
            for arguments in (None, {}, {"path": "x"}):
                assert known.decide(PUSH, arguments) == Decision(verdict, text)


def test_among_equal_rules_the_text_decides_which_one_is_reported() -> None:
    orders = permutations(["allow git:push", "allow git:*", "allow *"])
    assert {Permission(profile(*rules)).decide(PUSH, None).rule for rules in orders} == {"profile mine: allow *:*"}


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
    known = Permission(BUILTIN[name], agent="x")
    assert {key for key, one in TOOLS.items() if known.decide(one, {}).verdict is ALLOW} == allowed
    assert {key for key, one in TOOLS.items() if known.decide(one, None).verdict is not DENY} == allowed
    assert BUILTIN[name].builtin and BUILTIN[name].description.endswith(".")
    assert list(BUILTIN) == ["owner", "trusted", "developer", "read-only", "nothing"]


@pytest.mark.req("KSI-6")
@pytest.mark.parametrize("kind", ["reveals", "changes", "raw"])
@pytest.mark.parametrize("name", ["developer", "read-only", "nothing", "mine"])
@pytest.mark.parametrize("origin", RuleOrigin)
def test_no_rule_overrides_a_built_in_denial(kind: str, name: str, origin: RuleOrigin) -> None:
    base = BUILTIN.get(name) or profile("allow *", "allow crib:*", "ask crib:*")
    rules = [rule("allow *", origin), rule(f"allow crib:{TOOLS[kind].name}", origin), rule("ask crib:*", origin)]
    assert Permission(base, agent="x", rules=rules).decide(TOOLS[kind], {}).verdict is DENY


def test_another_profile_with_a_built_in_name_is_refused() -> None:
    for fake in (Profile(name="owner", rules=(rule("allow *"),)), Profile(name="trusted", builtin=True)):
        with pytest.raises(ValueError, match="built-in"):
            Permission(fake)


IN_SRC = {"when": {"path": {"under": "src"}}}


CONDITIONAL = {
    ("nothing", "allow"): [
        ("src/a", ALLOW),
        *((path, DENY) for path in ("lib/a", "src/../lib", None, ["src/a", "/etc"])),
    ],
    ("developer", "deny"): [("src/a", DENY), ("lib/a", ALLOW), ("~/x", DENY), (5, DENY), (["/etc", "src/a"], DENY)],
    ("developer", "ask"): [("src/a", ASK), ("lib/a", ALLOW), ("~/x", ASK), (["lib/a", "src/a"], ASK), (5, ASK)],
    ("nothing", "ask"): [("src/a", ASK), ("~/x", DENY), (["lib/a", "src/a"], DENY), (5, DENY)],
}


@pytest.mark.parametrize(("base", "effect"), CONDITIONAL)
def test_an_allow_needs_a_sure_condition_and_a_deny_or_ask_applies_to_a_possible_one(base: str, effect: str) -> None:
    known = Permission(BUILTIN[base], agent="x", rules=[rule(f"{effect} git:*", **IN_SRC)], workdir=BASE)
    expected = CONDITIONAL[base, effect]
    assert [(path, known.decide(PUSH, {"path": path}).verdict) for path, _ in expected] == expected
    without = ALLOW if base == "developer" else DENY
    assert {known.decide(PUSH, one).verdict for one in ({}, {"path": None})} == {without}


def test_a_deny_takes_precedence_over_the_owners_profile_and_an_approval_over_a_possible_ask() -> None:
    assert Permission(BUILTIN["owner"], agent="x", rules=[rule("deny git:push")]).decide(PUSH, {}).verdict is DENY
    approval = rule("allow git:push", RuleOrigin.APPROVAL)
    asked = made(rule("ask git:*", **IN_SRC), approval, agent="x", workdir=BASE)
    assert asked.decide(PUSH, {"path": "~"}).verdict is ALLOW
    denied = made(rule("deny git:*", **IN_SRC), rule("deny git:push"), approval, agent="x", workdir=BASE)
    for arguments in (None, {}, {"path": "lib"}, {"path": "src"}):
        assert denied.decide(PUSH, arguments) == Decision(DENY, "agent x: deny git:push"), "not the conditional one"


def test_in_a_listing_a_conditional_allow_or_ask_applies_and_a_conditional_deny_does_not() -> None:
    allow, deny, ask = (rule(f"{effect} git:*", **IN_SRC) for effect in ("allow", "deny", "ask"))
    listed = [made(*rules).decide(PUSH, None).verdict for rules in ([allow], [ask], [allow, deny], [deny])]
    assert listed == [ALLOW, ASK, ALLOW, DENY]


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
    child = Permission(BUILTIN["owner"], agent="child", parent=LEAD)
    grandchild = Permission(BUILTIN["owner"], agent="grandchild", parent=child)
    assert child.decide(tool(name=name), {}) == child.decide(tool(name=name), None) == decision
    assert grandchild.decide(tool(name=name), {}).verdict is decision.verdict


@pytest.mark.req("KSI-3")
def test_a_parents_conditions_apply_to_its_child_in_the_parents_folder() -> None:
    lead = Permission(NOTHING, agent="lead", rules=[rule("allow git:*", **IN_SRC)], workdir=BASE)
    child = Permission(BUILTIN["owner"], agent="child", parent=lead, workdir=Path("/elsewhere"))
    assert child.decide(PUSH, {"path": f"{BASE}/src/a"}).verdict is ALLOW
    assert child.decide(PUSH, {"path": "/elsewhere/src/a"}) == Decision(DENY, "its parent lead: no rule allows it")
    assert child.decide(PUSH, None).verdict is ALLOW


@pytest.mark.req("KSI-3")
def test_a_child_with_any_profile_cannot_manage_toolcrib_for_its_parent() -> None:
    child = Permission(BUILTIN["owner"], agent="child", parent=LEAD)
    kinds = ("reveals", "changes", "raw", "unmarked")
    assert {child.decide(TOOLS[kind], {}).verdict for kind in kinds} == {DENY}


def test_permissions_with_the_same_meaning_have_the_same_key() -> None:
    one, two = rule("allow git:*"), rule("deny git:push")
    assert made(one, two).key == made(two, one).key == made(one, two, one).key
    assert made(one, agent="a", version=1).key == made(one, agent="b", version=2).key
    assert made(one, workdir=Path("/a")).key == made(one, workdir=Path("/b")).key


def test_permissions_that_may_decide_differently_have_different_keys() -> None:
    one, looking = rule("allow git:*"), rule("allow git:*", **IN_SRC)
    conditions = [{"annotations": {"read_only": True}}, *({"when": {"x": {"one_of": [value]}}} for value in (1, True))]
    keys = [
        *(made(*rules) for rules in ([], [one], [rule("allow git:*", RuleOrigin.APPROVAL)], [rule("deny git:*")])),
        *(made(rule("allow git:*", **more)) for more in conditions),
        *(made(looking, workdir=workdir) for workdir in (None, Path("/a"), Path("/b"))),
        *(made(one, parent=parent) for parent in (made(), made(one))),
        *(made(base=BUILTIN[name]) for name in ("trusted", "owner", "developer")),
    ]
    assert len({permission.key for permission in keys}) == len(keys)


def test_rules_that_differ_only_in_the_type_of_a_value_are_different() -> None:
    both = made(*(rule("allow git:*", when={"x": {"one_of": [value]}}) for value in (1, True)))
    assert [both.decide(PUSH, {"x": value}).verdict for value in (1, True, "1")] == [ALLOW, ALLOW, DENY]


def test_a_cached_decision_does_not_keep_its_tool_alive() -> None:
    known = Permission(BUILTIN["developer"])
    for number in range(100):
        known.decide(tool(name=f"t{number}"), None)
    gc.collect()
    assert len(known._plans) == 0


def test_a_decision_is_cached_per_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Permission(profile(*(f"allow s{number}:*" for number in range(1000)), "allow git:*"))
    first = known.decide(PUSH, None)
    monkeypatch.setattr(Rule, "covers", None)
    assert known.decide(PUSH, {"path": "x"}) is first


def test_only_rules_that_may_cover_a_tool_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Permission(profile(*(f"deny git:t{number}" for number in range(1000)), "allow git:*"))
    tried: list[Rule] = []
    covers = Rule.covers
    monkeypatch.setattr(Rule, "covers", lambda self, tool: tried.append(self) or covers(self, tool))
    assert known.decide(PUSH, None).verdict is ALLOW
    assert len(tried) == 1


def test_matching_lists_every_rule_that_covers_a_tool() -> None:
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
