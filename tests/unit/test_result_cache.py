"""Results that answer later calls: what is kept, for whom, for how long, and what ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.calls import CallRequest, Door, result_cache
from toolcrib.catalog.snapshot import Catalog
from toolcrib.errors import Denied, InvalidArguments
from toolcrib.events import Bus
from toolcrib.identity.approvals import Approvals
from toolcrib.identity.principal import Principal, RequestContext
from toolcrib.policy import BUILTIN, Condition, OneOf, Permission, Rule, Verdict
from toolcrib.servers.model import ServerAnswer, ToolCall

pytestmark = pytest.mark.req("KSI-10")


def tool(name: str, **annotations: bool) -> bytes:
    schema = {"type": "object", "properties": {"q": {}, "n": {"type": "integer"}}}
    return json.dumps({"name": name, "inputSchema": schema, "annotations": annotations}).encode()


TOOLS = (
    tool("search", readOnlyHint=True),
    tool("brief", readOnlyHint=True),
    tool("never", readOnlyHint=True),
    tool("draw", readOnlyHint=True, idempotentHint=False),
    tool("write"),
)
CACHE = {"search": 60.0, "brief": 5.0, "never": 0.0, "*": 60.0}
DONE = b'{"content": [{"type":"text","text": "found"}],"x": 1.0}'


def rule(effect: str, tools: str = "*:*", **when: str) -> Rule:
    conditions = tuple(Condition(argument=name, test=OneOf((value,))) for name, value in when.items())
    return Rule(effect=Verdict(effect), tools=tools, when=conditions)


def permission(*rules: Rule) -> Permission:
    return Permission(BUILTIN["nothing"], rules=rules)


class Stage:
    """A door, a server behind it that records what it gets, an audit log and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(result_cache, "monotonic", lambda: self.now)
        self.entries: list[AuditEntry] = []
        self.links: list[str] = []
        self.approvals = Approvals(Bus(), limit=20)
        self.door = Door(Bus(), audit=cast(Any, self), approvals=self.approvals)
        self.allowed = permission(rule("allow"))
        self.root = Path("/")
        self.account: Any = None
        self.answer: Callable[[ToolCall], ServerAnswer | Awaitable[ServerAnswer]]
        self.answer = lambda call: ServerAnswer(result=DONE)
        self.seen: list[str] = []
        self.instances: dict[str, Stage | Any] = {}
        self.list_tools()

    def list_tools(self, cache: Mapping[str, float] = CACHE, *, trusted: bool = True, tools: Any = TOOLS) -> None:
        before = getattr(self, "catalog", None)
        self.catalog = Catalog.build(
            {"web": tools, "other": (tool("write"),)},
            version=1,
            trusted=frozenset({"web"} if trusted else ()),
            cached={"web": cache},
            previous=before,
        )

    # The tool source and the server.

    def find(self, name: str, *_: Any) -> Any:
        return self.catalog.find(name)

    def target(self, server: str, request: Any) -> Any:
        return self.instances.get(request.principal.name, self)

    def instance(self, server: str, agent: str) -> Any:
        return self.instances.get(agent, self)

    def remember_links(self, agent: str, server: str, result: bytes) -> None:
        self.links.append(agent)

    async def call(self, call: ToolCall, **_: Any) -> ServerAnswer:
        self.seen.append(f"{call.name} {bytes(call.params.get('arguments', b'')).decode()}".strip())
        answer = self.answer(call)
        return answer if isinstance(answer, ServerAnswer) else await answer

    # The audit log.

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    async def flush(self) -> None: ...

    async def ask(
        self,
        name: str = "web:search",
        arguments: str = '{"q": 1}',
        *,
        agent: str = "a",
        allowed: Permission | None = None,
        meta: Mapping[str, Any] = MappingProxyType({}),
        **params: bytes,
    ) -> dict[str, Any]:
        principal = Principal.fixed(agent, allowed or self.allowed)
        context: Any = RequestContext(principal, cast(Any, self))
        raw = {"arguments": arguments.encode(), **params}
        request = CallRequest(tool=name, params={key: msgspec.Raw(value) for key, value in raw.items()}, meta=meta)
        made = await self.door.call(context, request)
        return dict(json.loads(made.answer.result or made.answer.error or b"{}"))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def age_of(result: dict[str, Any]) -> int | None:
    age: int | None = result.get("_meta", {}).get("toolcrib/cached", {}).get("age_seconds")
    return age


async def test_an_equal_call_gets_the_kept_result_which_says_so_and_is_in_the_audit(stage: Stage) -> None:
    first = await stage.ask(arguments='{"q": 1, "n": 2}')
    assert age_of(first) is None
    stage.now += 12.9
    second = await stage.ask(arguments=' {"n":2,"q":1}')
    assert second == {**first, "_meta": {"toolcrib/cached": {"age_seconds": 12}}}
    assert stage.seen == ['search {"q": 1, "n": 2}']
    intent, outcome, cached = stage.entries
    assert [entry.kind for entry in stage.entries] == [EntryKind.INTENT, EntryKind.OUTCOME, EntryKind.OUTCOME]
    assert (cached.outcome, cached.decision) == ("ok", "allow")
    assert cached.rule == f"{outcome.rule}; cached answer, 12 s old"
    assert (cached.arguments, cached.call != intent.call) == (b' {"n":2,"q":1}', True)


async def test_values_keep_their_bytes_and_the_servers_own_meta_stays(stage: Stage) -> None:
    stage.answer = lambda call: ServerAnswer(result=b'{"content":[ ],"_meta":{"a/b":1.0,"toolcrib/cached":0},"n":1.00}')
    await stage.ask()
    context: Any = RequestContext(Principal.fixed("a", stage.allowed), cast(Any, stage))
    request = CallRequest(tool="web:search", params={"arguments": msgspec.Raw(b'{"q":1}')})
    answer = (await stage.door.call(context, request)).answer
    assert answer.result == b'{"content":[ ],"n":1.00,"_meta":{"a/b":1.0,"toolcrib/cached":{"age_seconds":0}}}'


async def test_each_tool_has_its_own_time(stage: Stage) -> None:
    for name in ("web:search", "web:brief", "web:never"):
        await stage.ask(name)
    stage.now += 5.1
    assert age_of(await stage.ask("web:search")) == 5
    assert age_of(await stage.ask("web:brief")) is None
    assert age_of(await stage.ask("web:never")) is None
    stage.now += 55
    assert age_of(await stage.ask("web:search")) is None, "a hit does not extend it"


@pytest.mark.parametrize("name", ["web:draw", "web:write", "other:write"])
async def test_only_tools_that_read_and_may_be_repeated_are_cached(stage: Stage, name: str) -> None:
    for _ in range(2):
        assert age_of(await stage.ask(name)) is None
    assert len(stage.seen) == 2


async def test_without_trust_or_a_setting_nothing_is_cached(stage: Stage) -> None:
    await stage.ask()
    for change in ({"trusted": False}, {"cache": {}}, {"cache": {"search": 0.0}}):
        stage.list_tools(**cast(Any, change))
        assert age_of(await stage.ask()) is None
        assert age_of(await stage.ask()) is None
    assert len(stage.seen) == 7


async def test_other_arguments_get_their_own_answer(stage: Stage) -> None:
    big = 2**80
    different = ['{"q": 1}', '{"q": "1"}', '{"q": [1]}', "{}", f'{{"n": {big}}}', f'{{"n": {big + 1}}}', '{"q": null}']
    for _ in range(2):
        for arguments in different:
            await stage.ask(arguments=arguments)
    assert stage.seen == [f"search {arguments}" for arguments in different]
    with pytest.raises(InvalidArguments):
        await stage.ask(arguments='{"n": "x"}')


async def test_agents_of_equal_permission_share_results_and_others_do_not(stage: Stage) -> None:
    await stage.ask(agent="a")
    assert age_of(await stage.ask(agent="b", allowed=permission(rule("allow")))) == 0
    wider = permission(rule("allow"), rule("deny", "other:*"))
    assert age_of(await stage.ask(agent="c", allowed=wider)) is None
    assert age_of(await stage.ask(agent="d", allowed=wider)) == 0


async def test_after_a_revocation_nothing_is_served(stage: Stage) -> None:
    await stage.ask()
    for refusing in (permission(), permission(rule("allow"), rule("deny", "web:*"))):
        with pytest.raises(Denied):
            await stage.ask(allowed=refusing)
    conditional = permission(rule("allow", q="x"))
    await stage.ask(arguments='{"q": "x"}', allowed=conditional)
    assert age_of(await stage.ask(arguments='{"q": "x"}', allowed=conditional)) == 0
    with pytest.raises(Denied):
        await stage.ask(arguments='{"q": 1}', allowed=conditional)


async def test_a_call_that_needs_approval_is_always_sent(stage: Stage) -> None:
    asks = permission(rule("ask"))
    for _ in range(2):
        calling = asyncio.create_task(stage.ask(allowed=asks))
        (approval,) = await stage.approvals.next(20)
        stage.approvals.answer(approval.id, approved=True)
        assert age_of(await calling) is None
    assert len(stage.seen) == 2


async def test_callers_that_send_meta_share_results_only_with_themselves(stage: Stage) -> None:
    await stage.ask(agent="a", meta={"tenant": 1})
    assert age_of(await stage.ask(agent="a", meta={"tenant": 1, "progressToken": 2})) == 0
    assert age_of(await stage.ask(agent="a", meta={"tenant": 2})) is None
    assert age_of(await stage.ask(agent="b", meta={"tenant": 1})) is None
    assert age_of(await stage.ask(agent="a")) is None


async def test_a_call_with_other_params_is_sent_and_not_kept(stage: Stage) -> None:
    await stage.ask(inputResponses=b"{}")
    assert age_of(await stage.ask()) is None
    assert age_of(await stage.ask(requestState=b'"s"')) is None


@pytest.mark.parametrize(
    "answer",
    [
        ServerAnswer(error=b'{"code":1,"message":"no"}'),
        ServerAnswer(result=b'{"content":[],"isError":true}'),
        ServerAnswer(result=b'{"task":{"taskId":"t","status":"working"}}'),
        ServerAnswer(result=b'{"content":[],"resultType":"input_required"}'),
        ServerAnswer(result=b'{"content":[],"_meta":3}'),
        ServerAnswer(result=b"[]"),
        ServerAnswer(result=b'{"content":[{"type":"text","text":"%b"}]}' % (b"x" * result_cache.MAX_RESULT)),
    ],
)
async def test_only_whole_successful_results_of_moderate_size_are_kept(stage: Stage, answer: ServerAnswer) -> None:
    stage.answer = lambda call: answer
    for _ in range(2):
        principal = Principal.fixed("a", stage.allowed)
        await stage.door.call(cast(Any, RequestContext(principal, cast(Any, stage))), CallRequest(tool="web:search"))
    assert len(stage.seen) == 2


async def test_a_result_after_a_question_is_not_kept(stage: Stage) -> None:
    async def ask(call: ToolCall) -> ServerAnswer:
        assert call.asker is not None
        call.asker.note(cast(Any, SimpleNamespace(asked=SimpleNamespace(mode="form", digest="d"))), "accept")
        return ServerAnswer(result=DONE)

    stage.answer = ask
    await stage.ask()
    assert age_of(await stage.ask()) is None


async def test_a_call_that_may_change_something_ends_the_results_of_its_server(stage: Stage) -> None:
    await stage.ask()
    await stage.ask("other:write")
    await stage.ask("web:draw")
    assert age_of(await stage.ask()) == 0
    await stage.ask("web:write")
    assert age_of(await stage.ask()) is None

    async def fail(call: ToolCall) -> ServerAnswer:
        raise TimeoutError

    stage.answer = fail
    with pytest.raises(TimeoutError):
        await stage.ask("web:write")
    stage.answer = lambda call: ServerAnswer(result=DONE)
    assert age_of(await stage.ask()) is None, "a call that failed may have run"


@pytest.mark.parametrize("slow", ["search", "write"])
async def test_a_result_that_a_change_overtook_is_not_served(stage: Stage, slow: str) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def answer(call: ToolCall) -> ServerAnswer:
        if call.name == slow:
            reached.set()
            await go_on.wait()
        return ServerAnswer(result=DONE)

    stage.answer = answer
    first = asyncio.create_task(stage.ask(f"web:{slow}"))
    await reached.wait()
    await stage.ask("web:write" if slow == "search" else "web:search")
    go_on.set()
    await first
    assert age_of(await stage.ask()) is None


async def test_a_changed_definition_instance_or_account_ends_results(stage: Stage) -> None:
    await stage.ask()
    stage.list_tools(tools=(tool("search", readOnlyHint=True, destructiveHint=False), *TOOLS[1:]))
    assert age_of(await stage.ask()) is None
    assert age_of(await stage.ask()) == 0
    stage.account = SimpleNamespace(described={"account": "web"})
    assert age_of(await stage.ask()) is None
    assert age_of(await stage.ask()) == 0
    stage.account.described = {"account": "web"}
    assert age_of(await stage.ask()) is None, "signed in again"
    stage.instances["b"] = type("Own", (), {"account": None, "call": stage.call})()
    stage.account = None
    await stage.ask(agent="a")
    assert age_of(await stage.ask(agent="b")) is None
    assert age_of(await stage.ask(agent="b")) == 0
    stage.instances["b"] = None
    sent = len(stage.seen)
    stage.target = lambda server, request: stage  # type: ignore[method-assign]
    for _ in range(2):
        assert age_of(await stage.ask(agent="b")) is None, "its own instance does not exist yet"
    assert len(stage.seen) == sent + 2


async def test_all_results_together_are_bounded_and_the_least_used_goes_first(stage: Stage) -> None:
    text = b'{"content":[{"type":"text","text":"%b"}]}' % (b"x" * (result_cache.MAX_RESULT - 100))
    stage.answer = lambda call: ServerAnswer(result=text)
    fit = result_cache.MAX_TOTAL // (len(text) + 1024)
    for number in range(fit):
        await stage.ask(arguments=f'{{"n": {number}}}')
    assert age_of(await stage.ask(arguments='{"n": 0}')) == 0
    await stage.ask(arguments='{"n": -1}')
    assert age_of(await stage.ask(arguments='{"n": 0}')) == 0
    assert age_of(await stage.ask(arguments='{"n": -1}')) == 0
    assert age_of(await stage.ask(arguments='{"n": 1}')) is None


async def test_the_links_in_a_kept_result_can_be_read_by_its_new_reader(stage: Stage) -> None:
    stage.answer = lambda call: ServerAnswer(result=b'{"content":[{"type":"resource_link","uri":"x:y","name":"n"}]}')
    await stage.ask(agent="a")
    await stage.ask(agent="b")
    assert stage.links == ["a", "b"]
    assert len(stage.seen) == 1
