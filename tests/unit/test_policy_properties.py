"""Properties of all rules: no order, glob or argument turns a deny into an allow."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import ANNOTATIONS
from toolcrib.policy import BUILTIN, Condition, Matches, OneOf, Permission, Profile, Rule, RuleOrigin, Under, Verdict

pytestmark = pytest.mark.req("KSI-5")

BASE = Path("/nowhere/work")
EVERYTHING = [Rule(effect=Verdict.ALLOW, tools="*", origin=origin) for origin in RuleOrigin]
IN_SRC = (Condition(argument="path", test=Under("src")),)
SEVERITY = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}

globs = st.sampled_from(
    ["*", "git:*", "*:push", "git:push", "g?t:p*", "GIT:PUSH", "files:*", "crib:*", "crib:raw_command"]
)
conditions = st.builds(
    Condition,
    argument=st.sampled_from(["path", "file.path", "mode"]),
    test=st.sampled_from([Under("src"), Under("."), OneOf(("a", 1)), Matches("a.*"), Matches("src.*")]),
)
verdicts = st.sampled_from(Verdict)
rules = st.builds(
    Rule,
    effect=verdicts,
    tools=globs,
    annotations=st.dictionaries(st.sampled_from(sorted(ANNOTATIONS)), st.booleans(), max_size=1),
    when=st.lists(conditions, max_size=2, unique_by=lambda c: (c.argument, type(c.test))).map(tuple),
    origin=st.sampled_from(RuleOrigin),
    holder=st.just("x"),
)
rule_lists = st.lists(rules, max_size=6)
profiles = st.one_of(
    st.sampled_from(list(BUILTIN.values())), st.builds(Profile, name=st.just("mine"), rules=rule_lists.map(tuple))
)


def tool(server: str, name: str, folder: Path | None = BASE, **annotations: Any) -> Tool:
    definition = json.dumps({"name": name, "annotations": annotations}).encode()
    folders = {} if folder is None else {server: str(folder)}
    (made,) = Catalog.build({server: (definition,)}, version=1, trusted=frozenset({"git"}), folders=folders).tools
    return made


PUSH = tool("git", "push", readOnlyHint=False)
tools = st.sampled_from(
    [
        PUSH,
        tool("git", "log", readOnlyHint=True),
        tool("files", "read", readOnlyHint=True),
        tool("crib", "health", readOnlyHint=True),
        tool("crib", "agent_add", **{"toolcrib/owner": True, "readOnlyHint": False}),
        tool("crib", "raw_command", readOnlyHint=False),
    ]
)
values = st.one_of(
    st.sampled_from(["src/a", "/etc", "a", "ab", "..", "~", "src/../..", "a\0", "\ud800", 1, True, None, 1.5]),
    st.text(max_size=5),
)
nested = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "x"]), inner, max_size=2),
    max_leaves=6,
)
some_arguments = st.dictionaries(st.sampled_from(["path", "PATH", "file", "file.path", "mode"]), nested, max_size=3)
maybe_arguments = st.one_of(st.none(), some_arguments)


def made(profile: Profile, rules: list[Rule], **more: Any) -> Permission:
    return Permission(profile, agent="x", rules=rules, workdir=BASE, **more)


@given(profiles, rule_lists, rules, tools, some_arguments, st.randoms())
def test_the_order_of_rules_never_matters_a_deny_only_narrows_and_an_allow_only_widens(
    profile: Profile, own: list[Rule], more: Rule, known: Tool, arguments: Any, luck: Any
) -> None:
    shuffled, base = list(own), list(profile.rules)
    luck.shuffle(shuffled)
    luck.shuffle(base)
    again = profile if profile.builtin else Profile(name=profile.name, rules=tuple(base))
    one, two = made(profile, own), made(again, shuffled)
    assert one.key == two.key
    denying, allowing = (made(profile, [*own, replace(more, effect=each)]) for each in (Verdict.DENY, Verdict.ALLOW))
    only_denies = [rule for rule in own if rule.effect is Verdict.DENY]
    for given_ in (None, arguments):
        assert one.decide(known, given_) == two.decide(known, given_)
        before = one.decide(known, given_).verdict
        assert denying.decide(known, given_).verdict in (before, Verdict.DENY)
        assert SEVERITY[allowing.decide(known, given_).verdict] <= SEVERITY[before]
        for empty in (BUILTIN["nothing"], Profile(name="empty")):
            assert made(empty, only_denies).decide(known, given_).verdict is Verdict.DENY
    if one.decide(known, None).verdict is Verdict.DENY:
        assert one.decide(known, arguments).verdict is Verdict.DENY, "a tool that is not listed cannot be called"


@given(profiles, rule_lists, profiles, rule_lists, tools, maybe_arguments)
@pytest.mark.req("KSI-3")
def test_a_child_never_gets_more_than_its_parent(
    above: Profile, aboves: list[Rule], profile: Profile, own: list[Rule], known: Tool, given_: Any
) -> None:
    parent = made(above, aboves)
    child = made(profile, own, parent=parent)
    grandchild = made(BUILTIN["owner"], [], parent=child)
    by_itself = made(profile, own)
    verdicts = [each.decide(known, given_).verdict for each in (by_itself, parent)]
    assert SEVERITY[child.decide(known, given_).verdict] == max(SEVERITY[verdict] for verdict in verdicts)
    assert SEVERITY[grandchild.decide(known, given_).verdict] >= SEVERITY[child.decide(known, given_).verdict]


@given(profiles, rule_lists, maybe_arguments)
@pytest.mark.req("KSI-6")
def test_no_rule_allows_an_agent_to_use_the_owners_commands(profile: Profile, own: list[Rule], given_: Any) -> None:
    permitted = made(profile, [*own, *(replace(rule, tools="crib:*") for rule in EVERYTHING)])
    for name, allowed in (("agent_add", {"owner"}), ("raw_command", {"owner", "trusted"})):
        marks = {"toolcrib/owner": True} if name == "agent_add" else {}
        if profile.name not in allowed:
            assert permitted.decide(tool("crib", name, **marks), given_).verdict is Verdict.DENY


@st.composite
def globs_over(draw: st.DrawFn, name: str) -> str:
    """A glob that covers the name: some of its characters for `?`, some runs for `*`, some in another case."""
    letters: list[str] = []
    for letter in name:
        other = letter.swapcase()
        same = other if other.casefold() == letter.casefold() and len(letter.casefold()) == 1 else letter
        letters += draw(st.sampled_from([[letter], ["?"], ["*"], ["*", letter], [letter, "*"], [same]]))
    return "".join(letters)


names = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="[]{}"), min_size=1, max_size=12
).filter(lambda name: len(name.casefold()) == len(name))


@given(st.data(), names, names, rule_lists)
def test_a_deny_applies_with_every_glob_that_matches_the_tool(
    data: st.DataObject, server: str, name: str, own: Any
) -> None:
    glob = f"{data.draw(globs_over(server))}:{data.draw(globs_over(name))}"
    assume(not glob.startswith(":"))
    deny = Rule(effect=Verdict.DENY, tools=glob)
    assert made(BUILTIN["owner"], [*own, *EVERYTHING, deny]).decide(tool(server, name), {}).verdict is Verdict.DENY


def disguised(value: Any) -> st.SearchStrategy[Any]:
    """The same value as another server might still read it."""
    return st.sampled_from(
        [value, [value], [["x"], value], [value, None], {"path": value}, f" {value}", f"{value}\0", [f"{value}/."]]
    )


@given(
    st.data(), st.sampled_from(["src/a", "src", "src/../src/x", "SRC/a", "/nowhere/work/src/a", "//nowhere/work/src"])
)
def test_no_disguise_of_an_argument_passes_a_deny(data: st.DataObject, value: str) -> None:
    key = data.draw(st.sampled_from(["path", "Path", "PATH", "path"]))
    others = data.draw(st.dictionaries(st.sampled_from(["mode", "Path", "pat"]), values, max_size=2))
    arguments = {**others, key: data.draw(disguised(value))}
    deny = Rule(effect=Verdict.DENY, tools="git:*", when=IN_SRC)
    assert made(BUILTIN["owner"], [*EVERYTHING, deny]).decide(PUSH, arguments).verdict is Verdict.DENY


@given(st.data(), st.sampled_from(["/etc/passwd", "..", "../work-evil/a", "src/../../x", "src-evil/a", "~/src"]))
def test_no_disguise_of_an_argument_fulfils_an_allow(data: st.DataObject, value: str) -> None:
    key = data.draw(st.sampled_from(["path", "Path", "PATH"]))
    good = data.draw(st.dictionaries(st.sampled_from(["path", "mode", "file"]), st.just("src/a"), max_size=2))
    arguments = {**good, key: data.draw(disguised(value))}
    allow = Rule(effect=Verdict.ALLOW, tools="*", when=IN_SRC, origin=RuleOrigin.APPROVAL)
    assert made(BUILTIN["nothing"], [allow]).decide(PUSH, arguments).verdict is Verdict.DENY


spelled_names = st.lists(
    st.sampled_from(["..", ".", "", "src", "lib", "in", "out", "up", "deep", "none"]), min_size=1, max_size=6
).map("/".join)
path_rules = st.lists(
    st.builds(
        Rule,
        effect=verdicts,
        tools=st.just("git:*"),
        when=st.sampled_from(["src", ".", "lib", "src/deep", "../.."]).map(
            lambda folder: (Condition(argument="path", test=Under(folder)),)
        ),
        origin=st.sampled_from(RuleOrigin),
    ),
    max_size=4,
)
workdirs = st.sampled_from([".", "lib", "src", "src/deep"])
path_profiles = profiles.filter(
    # `matches` looks at the text as it was written, and is meant to.
    lambda profile: not any(isinstance(one.test, Matches) for rule in profile.rules for one in rule.when)
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders, and links into and out of them."""
    root = tmp_path_factory.mktemp("tree").resolve() / "work"
    for folder in ("src/deep", "lib/deep"):
        (root / folder).mkdir(parents=True)
    (root / "src/in").symlink_to("deep")
    (root / "src/out").symlink_to("../lib/deep")
    (root / "lib/in").symlink_to(root / "src/deep")
    (root / "src/deep/up").symlink_to("../..")
    return root


def working(tree: Path, folder: str, profile: Profile, rules: list[Rule], **more: Any) -> Permission:
    return Permission(profile, agent="x", rules=rules, workdir=tree / folder, **more)


@given(st.data(), path_profiles, path_rules, workdirs, workdirs, spelled_names)
@pytest.mark.req("KSI-3")
def test_every_spelling_of_a_path_has_the_same_decision_and_a_child_never_gets_more(
    tree: Path, data: st.DataObject, profile: Profile, own: list[Rule], agents: str, servers: str, value: str
) -> None:
    assume(value.strip("/") and not value.startswith("/"))
    known = tool("git", "push", tree / servers)
    parent = working(tree, agents, profile, own)
    child = working(tree, data.draw(workdirs), data.draw(path_profiles), data.draw(path_rules), parent=parent)
    padding = data.draw(st.sampled_from(["", "./", ".//", "././"]))
    spellings = [value, f"{padding}{value}", f"{tree / servers}/{value}", f"//{tree / servers}/.//{value}"]
    for each in (parent, child):
        assert len({each.decide(known, {"path": spelling}) for spelling in spellings}) == 1
    for above, below in product(spellings, spellings):
        least = SEVERITY[parent.decide(known, {"path": above}).verdict]
        assert SEVERITY[child.decide(known, {"path": below}).verdict] >= least


@given(workdirs, workdirs, st.sampled_from(["src", ".", "lib", "src/deep"]), spelled_names)
def test_an_allowed_path_is_inside_the_folder_for_the_server_and_a_denied_one_is_outside(
    tree: Path, agents: str, servers: str, folder: str, value: str
) -> None:
    assume(value.strip("/") and not value.startswith("/"))
    known = tool("git", "push", tree / servers)
    when = (Condition(argument="path", test=Under(folder)),)
    allow, deny = (Rule(effect=effect, tools="*", when=when) for effect in (Verdict.ALLOW, Verdict.DENY))
    inside = (tree / servers / value).resolve().is_relative_to((tree / agents / folder).resolve())
    allowed = working(tree, agents, BUILTIN["nothing"], [allow]).decide(known, {"path": value}).verdict
    denied = working(tree, agents, BUILTIN["developer"], [deny]).decide(known, {"path": value}).verdict
    assert inside or allowed is Verdict.DENY
    assert not inside or denied is Verdict.DENY


@given(path_rules, st.sampled_from(["src/a", "./src/a", "../x", "a"]))
def test_no_rule_allows_a_relative_path_for_a_server_with_an_unknown_folder(own: list[Rule], value: str) -> None:
    far = tool("git", "push", None)
    assert made(BUILTIN["nothing"], own).decide(far, {"path": value}).verdict is Verdict.DENY
    denies = any(rule.effect is Verdict.DENY for rule in own)
    assert not denies or made(BUILTIN["developer"], own).decide(far, {"path": value}).verdict is Verdict.DENY


@given(rule_lists, nested)
def test_any_arguments_have_a_decision(own: list[Rule], arguments: Any) -> None:
    decision = made(BUILTIN["developer"], own).decide(PUSH, arguments)
    assert decision.verdict in Verdict
    assert decision.rule
