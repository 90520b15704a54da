"""`tools:` in configuration files: reading, mistakes, and their effect on the catalog and on calls."""

import asyncio
import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.audit.entry import AuditEntry
from toolcrib.calls import CallRequest, Door
from toolcrib.catalog import Catalog, Tool
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.config.keys import ConfigField
from toolcrib.config.layers import load
from toolcrib.config.masking import secrets_of
from toolcrib.config.model import Config, Layer, NameStyle, Problem, Severity
from toolcrib.config.paths import Paths
from toolcrib.config.problems import ProblemReport
from toolcrib.config.show import mask
from toolcrib.config.tool_rule import RuleAction, ToolRule
from toolcrib.config.tool_rules import read_tool_rules
from toolcrib.config.values import EntryContext, ValueReader
from toolcrib.errors import Denied, InvalidArguments, UnknownTool
from toolcrib.events import Bus, CallFinished
from toolcrib.identity.approvals import Approvals
from toolcrib.identity.principal import Principal, RequestContext
from toolcrib.policy import BUILTIN, Condition, OneOf, Permission, Rule, RuleOrigin, Verdict
from toolcrib.servers.model import ServerAnswer, ToolCall

REPO = {
    "type": "object",
    "properties": {"repo_path": {"type": "string"}, "depth": {"type": "integer"}},
    "required": ["repo_path"],
    "additionalProperties": False,
}
READS = {"readOnlyHint": True}
LISTED: dict[str, dict[str, dict[str, Any]]] = {
    "git": {"git_status": READS, "git_push": {}, "log": READS},
    "svn": {"log": READS},
    "crib": {"system_stop": {}},
    "workspace": {"read_file": READS},
}


def rules(*given_rules: Any, **environ: str) -> tuple[ToolRule, ...]:
    made, problems = read(list(given_rules), environ)
    assert problems == []
    return made


def read(given_rules: Any, environ: Mapping[str, str] | None = None) -> tuple[tuple[ToolRule, ...], list[Problem]]:
    report = ProblemReport("config.yml")
    context = EntryContext(layer=Layer.USER, environ=environ or {}, home=Path("/home/u"))
    made = read_tool_rules(ConfigField(value=given_rules, path=("tools",)), ValueReader(context, report))
    return made, report.problems


def listings() -> dict[str, tuple[bytes, ...]]:
    def listed(name: str, hints: dict[str, Any]) -> bytes:
        about = {"name": name, "description": f"Does {name}.", "annotations": hints}
        return msgspec.json.encode({**about, "inputSchema": REPO, "x": 1.0})

    return {server: tuple(listed(*tool) for tool in tools.items()) for server, tools in LISTED.items()}


def catalog(*given_rules: Any, previous: Catalog | None = None, version: int = 1) -> Catalog:
    return Catalog.build(listings(), version=version, previous=previous, rules=rules(*given_rules))


def names(made: Catalog, style: NameStyle = NameStyle.SERVER) -> dict[str, str]:
    return {tool.display: tool.public(style) for tool in made.tools if tool.server != "crib"}


def test_every_rule_is_read():
    made = rules(
        {"keep": ["git:*", {"annotation": "readOnly"}, {"not": "svn:*"}]},
        {"drop": {"annotation": "destructive"}, "only": "git:*"},
        {"rename": {"git_status": "status"}},
        {"prefix": "mcp"},
        {"describe": "[{server}] {description}"},
        {"fix": {"tool": "git:*", "arguments": {"repo_path": "${ROOT}", "depth": 3, "more": [None, {"a": True}]}}},
        {"default": {"arguments": {"depth": 1}}},
        {"renameArguments": {"repo_path": "folder"}},
        {"options": {"openai": {"strict": True}}},
        ROOT="/srv/app",
    )
    assert [rule.action for rule in made] == list(RuleAction)
    assert made[0].value.annotations == ("read_only",)
    assert made[5].value == {"repo_path": "/srv/app", "depth": 3, "more": [None, {"a": True}]}


@pytest.mark.parametrize(
    ("wrong", "key", "message"),
    [
        ({"drop": "x"}, "tools", "expected a list of rules"),
        (["x"], "tools[0]", 'found "x", expected a rule'),
        ([{}], "tools[0]", "a rule that does nothing, expected one of keep, drop"),
        ([{"kep": "x"}], "tools[0].kep", "Did you mean keep?"),
        ([{"drop": "x", "where": "git:*"}], "tools[0].where", "an unknown key, expected one of keep"),
        ([{"keep": "x", "drop": "y"}], "tools[0]", "found keep and drop, expected one of"),
        ([{"keep": 3}], "tools[0].keep", "found 3, expected a name or glob"),
        ([{"keep": []}], "tools[0].keep", "found a list, expected a name or glob"),
        ([{"keep": ["a", {"annotation": "destuctive"}]}], "tools[0].keep[1].annotation", "Did you mean destructive?"),
        ([{"keep": {"annotations": "destructive"}}], "tools[0].keep.annotations", "Did you mean annotation?"),
        ([{"drop": {"not": {"not": 1}}}], "tools[0].drop.not.not", "found 1"),
        ([{"rename": "x"}], "tools[0].rename", "found text, expected a mapping"),
        ([{"rename": {"a": "b c"}}], "tools[0].rename.a", 'found "b c", expected 1 to 64 letters'),
        ([{"prefix": "a" * 65}], "tools[0].prefix", "expected 1 to 64 letters"),
        ([{"describe": "{sever} {name}"}], "tools[0].describe", "Did you mean {server}?"),
        ([{"fix": {"repo_path": "."}}], "tools[0].fix.repo_path", "expected one of tool, tools, arguments"),
        ([{"fix": {"arguments": {}}}], "tools[0].fix", "expected arguments: a mapping of names to values"),
        ([{"fix": {"arguments": {"a": "${NOT_SET}"}}}], "tools[0].fix.arguments.a", "variable NOT_SET"),
        ([{"rename_arguments": {"a": "x", "b": "x"}}], "tools[0].rename_arguments", "a different name for each"),
        ([{"options": {"openal": {}}}], "tools[0].options.openal", "Did you mean openai?"),
        ([{"options": {"openai": True}}], "tools[0].options.openai", "expected a mapping"),
        ([{"prefix": "ok", "only": 7}], "tools[0].only", "found 7"),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_only_its_rule_is_ignored(wrong, key, message):
    made, problems = read([*wrong, {"prefix": "fine"}] if isinstance(wrong, list) else wrong)
    assert any(problem.key.startswith(key) and message in str(problem) for problem in problems), problems
    assert all(problem.severity is Severity.ERROR for problem in problems)
    assert [rule.value for rule in made] == (["fine"] if isinstance(wrong, list) else [])


words = st.sampled_from(
    [*RuleAction, "only", "annotation", "not", "tool", "arguments", "openai", "destructive", "${X}", "x"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_any_data_results_in_problems_and_a_catalog(written):
    made, problems = read(written)
    assert all(problem.key.startswith("tools") for problem in problems)
    built = Catalog.build(listings(), version=1, rules=made)
    assert len(built.of_server("crib")) == 1
    config = mask(Config(tools=made))
    assert len(config["tools"]) == len(made)
    json.dumps(config)


class Person:
    """A user's file and a project's, as YAML."""

    def __init__(self, folder: Path) -> None:
        self.home, self.root = folder / "h", folder / "p"
        self.home.mkdir()
        (self.root / ".toolcrib").mkdir(parents=True)
        self.trusts = False

    def write(self, *, user: str = "", project: str = "") -> None:
        (self.home / "config.yml").write_text(user)
        (self.root / ".toolcrib" / "config.yml").write_text(project)

    def load(self, **environ: str) -> Config:
        paths = Paths.of_user({"TOOLCRIB_HOME": str(self.home)})
        return load(paths=paths, root=self.root, environ={"HOME": "/h", **environ}, is_trusted=lambda *_: self.trusts)


@pytest.fixture
def person(tmp_path):
    return Person(tmp_path)


def test_a_problem_names_file_and_line_and_rules_with_a_duplicate_key_are_ignored(person):
    person.write(user="tools:\n  - keep: git:*\n  - drop:\n      anotation: destructive\n")
    config = person.load()
    assert [rule.action for rule in config.tools] == [RuleAction.KEEP]
    assert f"{person.home}/config.yml:4: tools[1].drop.anotation:" in str(config.problems[0])
    person.write(user="tools:\n  - prefix: a\n    prefix: b\n  - prefix: c\n")
    config = person.load()
    assert [rule.value for rule in config.tools] == ["c"]
    assert "duplicate key" in str(config.problems[0])


@pytest.mark.req("BNS-10")
def test_a_projects_rules_apply_when_trusted_and_after_the_users(person):
    person.write(
        user="tools:\n  - drop: '*_push'\n",
        project="tools:\n  - prefix: mcp\n  - fix: {arguments: {api_token: abcdef-123456, note: sk-abcdefghijkl}}\n",
    )
    before = person.load()
    assert [rule.action for rule in before.tools] == [RuleAction.DROP]
    assert before.waiting[0].effects == (
        'sets tools[0]: {"prefix": "mcp"}',
        'sets tools[1]: {"fix": {"arguments": {"api_token": "abcdef-123456", "note": "sk-abcdefghijkl"}}}',
    )
    person.trusts = True
    assert [rule.action for rule in person.load().tools] == [RuleAction.DROP, RuleAction.PREFIX, RuleAction.FIX]


def test_secrets_are_hidden_in_output_and_known_to_the_audit_log(person):
    rule = "fix: {arguments: {api_key: plain-secret, user: '${LOGIN}', zone: UTC}}"
    person.write(user=f"tools:\n  - {rule}\n  - prefix: mcp\n")
    config = person.load(LOGIN="ada-the-first")
    expected = [{"fix": {"arguments": {"api_key": "****", "user": "${LOGIN}", "zone": "UTC"}}}, {"prefix": "mcp"}]
    assert mask(config)["tools"] == expected
    assert secrets_of(config).keys() == {"plain-secret", "ada-the-first"}
    assert "plain-secret" not in repr(config)


DOCS = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text().partition("\n## Tools\n")[2]


def test_the_documented_examples_work_and_every_rule_is_documented(person):
    person.write(user=re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)[0])
    config = person.load()
    assert config.problems == ()
    assert len(config.tools) == 5
    rows = re.findall(r"^\| (`.*?) \|", DOCS.partition("\n## ")[0], re.MULTILINE)
    assert [word for row in rows for word in re.findall(r"`(\w+)`", row)] == [*RuleAction, "only"]
    example = {}
    exec(re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0], example)  # noqa: S102
    offer = OfferedTool.of(catalog().find("git:log"))
    short = example["first_sentence"](dataclasses.replace(offer, description="One. Two."))
    assert (short.name, short.description) == ("git_log", "One")


@pytest.mark.req("ENG-5", "ENG-6")
def test_the_catalog_names_describes_and_drops_tools_by_the_rules():
    made = catalog(
        {"drop": {"annotation": "destructive"}},
        {"rename": {"git_status": "status", "svn:log": "history"}},
        {"prefix": "x", "only": "git:*"},
        {"describe": "[{server}] {description}"},
    )
    of_git = {"git:git_status": "git_x_status", "git:log": "git_x_log"}
    assert names(made) == {**of_git, "svn:log": "svn_history", "workspace:read_file": "workspace_read_file"}
    assert names(made, NameStyle.PLAIN)["svn:log"] == "history"
    expected = {"name": "history", "description": "[svn] Does log.", "inputSchema": REPO, "annotations": READS}
    assert json.loads(made.find("history").render("history")) == {**expected, "x": 1.0}
    assert made.find("svn:log").description == "Does log.", "the tool itself does not change"
    made = catalog({"keep": "git:log"})
    assert names(made) == {"git:log": "git_log"}
    for name in ("git:git_push", "git_git_push", "git_push", "mcp_git_git_push", "svn:log"):
        with pytest.raises(UnknownTool):
            made.find(name)
    assert made.find("crib_system_stop").override is None, "rules don't apply to commands"


def test_two_tools_with_the_same_new_name_get_different_names():
    made = catalog({"rename": {"git_status": "same", "git_push": "same"}})
    given_names = names(made)
    assert len(set(given_names.values())) == len(given_names)
    assert given_names["git:git_status"].startswith("git_same_")
    assert made.find(given_names["git:git_push"]).name == "git_push"


def test_offered_tools_have_the_options():
    made = catalog({"options": {"anthropic": {"cache_control": {"type": "ephemeral"}}}, "only": "git:log"})
    offered = {offer.tool.display: offer.options for offer in map(OfferedTool.of, made.tools)}
    assert offered["git:log"] == {"anthropic": {"cache_control": {"type": "ephemeral"}}}
    assert offered["svn:log"] == {}


def test_tools_stay_the_same_objects_until_they_or_the_rules_change():
    some = ({"prefix": "x"}, {"drop": "git_push"})
    first = catalog(*some)
    assert catalog(*some, previous=first, version=2).tools == first.tools
    assert catalog(*some, previous=first, version=2).find("git:log") is first.find("git:log")
    other = catalog({"prefix": "x"}, previous=first, version=3)
    assert "git:git_push" in other
    assert names(catalog(previous=other, version=4))["git:log"] == "git_log"


def test_a_tool_that_cannot_accept_a_fixed_argument_is_not_offered(caplog):
    with caplog.at_level(logging.WARNING, logger="toolcrib"):
        made = catalog({"fix": {"tool": "git:log", "arguments": {"depth": "deep"}}})
    assert "git:log" not in made
    assert "svn:log" in made
    assert "git:log is not offered" in caplog.text


@given(
    st.lists(
        st.sampled_from(
            [
                {"rename": {"git_status": "log", "*": "same"}},
                {"rename": {"log": "x" * 60, "git:*": "crib_system_stop"}},
                {"prefix": "p" * 40},
                {"prefix": "crib"},
                {"rename": {"svn:log": "workspace_read_file"}},
                {"drop": "git_push"},
            ]
        ),
        max_size=4,
    )
)
def test_public_names_are_valid_and_unique_with_any_rules(chain):
    made = catalog(*chain)
    for style in NameStyle:
        public = made.by_public(style)
        assert len(public) == len(made.tools)
        assert all(len(name) <= 64 and name.replace("-", "_").replace("_", "a").isalnum() for name in public)
        assert all(made.find(name) is tool for name, tool in public.items())
    assert made.find("crib_system_stop").server == "crib"


def test_rules_for_unknown_tools_and_arguments_are_reported():
    made = catalog(
        {"rename": {"git_statsu": "x"}},
        {"fix": {"tool": "git:lgo", "arguments": {"depth": 1}}},
        {"fix": {"arguments": {"dept": 1}}},
        {"rename_arguments": {"repo": "folder"}, "only": "svn:*"},
        {"fix": {"tool": "git:log", "arguments": {"depth": 1}}},
        {"drop": "nothing"},
        {"drop": "git:*"},
    )
    expected = [{"tool": "git_statsu"}, {"tool": "git:lgo"}, {"argument": "dept"}, {"argument": "repo"}]
    assert [error.data for error in made.unmatched_rules()] == expected
    assert catalog().unmatched_rules() == []


class Gate:
    """A door in front of a shaped catalog; notes what the server, the audit log and the person who is asked get to
    see.
    """

    def __init__(self, *given_rules: Any, allowed: tuple[Rule, ...] = ()) -> None:
        self._catalog = catalog(*given_rules)
        everything = (Rule(effect=Verdict.ALLOW, tools="*", origin=RuleOrigin.AGENT, holder="a"),)
        granted = Permission(BUILTIN["nothing"], agent="a", rules=allowed or everything)
        self.context = RequestContext(Principal.fixed("a", granted), self, conversation="c")
        self.forwarded: list[tuple[str, Any]] = []
        self.written: list[AuditEntry] = []
        self.bus = Bus()
        self.approvals = Approvals(self.bus, limit=5.0, mask=lambda text: text)
        self._door = Door(self.bus, audit=cast(Any, self), approvals=self.approvals)

    def note(self, entry: AuditEntry) -> None:
        self.written.append(entry)

    async def flush(self) -> None:
        return

    def find(self, name: str, shown: Callable[[Tool], bool] | None = None, style: NameStyle | None = None) -> Tool:
        return self._catalog.find(name, shown=shown, style=style)

    def target(self, server: str, request: RequestContext[Any]) -> Any:
        async def call(call: ToolCall, **_: Any) -> ServerAnswer:
            self.forwarded.append((f"{server}:{call.name}", msgspec.json.decode(call.params["arguments"])))
            return ServerAnswer(result=b'{"content":[]}')

        return SimpleNamespace(call=call, account=None)

    async def use(self, name: str, arguments: Any) -> None:
        params = {"arguments": msgspec.Raw(msgspec.json.encode(arguments))}
        await self._door.call(self.context, CallRequest(tool=name, params=params))


SHAPED = (
    {"rename": {"git_push": "publish"}},
    {"rename_arguments": {"repo_path": "folder"}, "only": "git:*"},
    {"fix": {"tool": "git:*", "arguments": {"depth": 3}}},
)


@pytest.mark.req("ENG-6")
@pytest.mark.parametrize("name", ["git_publish", "publish", "mcp_git_publish", "git:git_push"])
async def test_a_call_by_any_name_reaches_the_tool_with_its_original_name_and_arguments(name):
    gate = Gate(*SHAPED)
    finished = []
    gate.bus.subscribe(finished.append, CallFinished)
    await gate.use(name, {"folder": "/srv"})
    assert gate.forwarded == [("git:git_push", {"repo_path": "/srv", "depth": 3})]
    intent = gate.written[0]
    assert (intent.tool, intent.arguments) == ("git:git_push", b'{"repo_path":"/srv","depth":3}')
    assert finished[0].tool == "git:git_push"
    assert finished[0].arguments == b'{"folder":"/srv"}', "events have the arguments as sent by the caller"


@pytest.mark.req("KSI-3")
async def test_permissions_apply_to_the_original_tool_and_its_final_arguments():
    when = (Condition(argument="repo_path", test=OneOf(("/srv",))),)
    allowed = (Rule(effect=Verdict.ALLOW, tools="git:git_push", when=when, origin=RuleOrigin.AGENT, holder="a"),)
    gate = Gate(*SHAPED, allowed=allowed)
    await gate.use("publish", {"folder": "/srv"})
    with pytest.raises(Denied):
        await gate.use("publish", {"folder": "/etc"})
    with pytest.raises(Denied):
        await gate.use("git_status", {"folder": "/srv"})
    fixed = Gate({"fix": {"arguments": {"repo_path": "/etc"}}}, allowed=allowed)
    with pytest.raises(Denied):
        await fixed.use("git:git_push", {})
    assert [arguments["repo_path"] for _, arguments in gate.forwarded] == ["/srv"]
    assert fixed.forwarded == []


async def test_an_approval_shows_the_final_arguments():
    asks = (Rule(effect=Verdict.ASK, tools="*", origin=RuleOrigin.AGENT, holder="a"),)
    gate = Gate(*SHAPED, allowed=asks)
    calling = asyncio.create_task(gate.use("publish", {"folder": "/srv"}))
    async with asyncio.timeout(60):
        while not gate.approvals.waiting():  # noqa: ASYNC110 - one turn of the loop
            await asyncio.sleep(0)
    asked = gate.approvals.waiting()[0]
    assert asked.tool == "git:git_push"
    assert "/srv" in str(asked.arguments)
    assert "repo_path" in str(asked.arguments)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


@pytest.mark.parametrize(
    ("given_arguments", "message"),
    [
        ({}, 'must have "folder"'),
        ({"folder": 3}, "arguments.folder must be of type string"),
        ({"repo_path": "/srv", "folder": "/srv"}, 'must not have "repo_path"'),
        ({"folder": "/srv", "depth": 9}, 'must not have "depth"'),
        ([], "must be an object"),
    ],
)
async def test_invalid_arguments_are_reported_with_the_names_that_the_caller_sees(given_arguments, message):
    gate = Gate(*SHAPED)
    with pytest.raises(InvalidArguments) as raised:
        await gate.use("publish", given_arguments)
    assert message in raised.value.message
    assert raised.value.data["schema"]["required"] == ["folder"]
    assert gate.forwarded == []
    assert [entry.outcome for entry in gate.written] == ["invalid"]


async def test_a_missing_argument_gets_its_default():
    gate = Gate({"default": {"arguments": {"repo_path": ".", "depth": 1}}})
    await gate.use("git_status", {"depth": 2})
    assert gate.forwarded == [("git:git_status", {"repo_path": ".", "depth": 2})]


@pytest.mark.parametrize(
    ("action", "given", "message"),
    [
        ("fix", {"repo_path": "x"}, "conflict with fixed arguments"),
        ("default", {"repo_path": "x"}, "do not match"),
        ("default", {"repo_path": "x", "depth": 1}, "depth"),
    ],
)
async def test_values_from_rules_are_not_in_the_error_of_a_failed_call(action, given, message, monkeypatch):
    monkeypatch.setitem(REPO, "allOf", [{"patternProperties": {"^depth": {"minimum": 90_000}}}])
    gate = Gate({action: {"tool": "git:git_push", "arguments": {"depth": 77_777}}})
    with pytest.raises(InvalidArguments, match=message) as raised:
        await gate.use("git:git_push", given)
    assert "77777" not in repr((raised.value.text(), raised.value.data["errors"]))
    assert gate.forwarded == []


@pytest.mark.req("ENG-6")
async def test_a_fixed_argument_of_a_named_tool_applies_even_if_its_schema_lists_no_properties(monkeypatch):
    for key in ("properties", "required", "additionalProperties"):
        monkeypatch.delitem(REPO, key)
    gate = Gate({"fix": {"tool": "git:git_push", "arguments": {"dry_run": True}}}, {"fix": {"arguments": {"depth": 1}}})
    await gate.use("git:git_push", {"dry_run": False, "depth": 9})
    assert gate.forwarded == [("git:git_push", {"dry_run": True})]
