"""The scenarios of `40_mcp_tools.feature`: what a user does with the real programs, and what model and servers see.

The `given` steps are in `conftest`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pytest_bdd import scenarios, then, when

from parts.agent_clients import AgentEndpoint
from parts.runs import Log
from parts.waiting import wait_for
from parts.world import MODULE, TEST, World, step
from toolcrib.testing.conversation import ToolOffering

pytestmark = [
    pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-8", "FRG-10", "KAI-10", "KSI-2"),
    pytest.mark.usefixtures("bwrap"),
]

scenarios("40_mcp_tools.feature")


@when(step('I run {agent} with "{prompt}"'))
@when(step('I run {agent} with "{prompt}", and remove its agent after the first call'))
def _(world: World, prompt: str) -> None:
    world.runs(prompt)


@when(step('I run {agent} with "{prompt}" and the profile "{profile}"'))
def _(world: World, prompt: str, profile: str) -> None:
    world.runs(prompt, "--profile", profile)


@when(step('I continue the conversation with "{prompt}"'))
def _(world: World, prompt: str) -> None:
    world.runs(prompt, "--conversation", world.run.result["conversation"])


@when(step('I run {agent} with "{prompt}", and the ledger dies in the second call'))
def _(world: World, prompt: str) -> None:
    started = world.begins(prompt)
    world.ledger_dies_in("second")
    world.finished.append(started.wait())


@when(step('I run {agent} even without tools with "{prompt}", and remove its agent after the first call'))
def _(world: World, prompt: str) -> None:
    world.runs(prompt, "--on-mcp-failure", "continue")


@when(step('I run {agent} with "{prompt}", and it is killed while it thinks'))
def _(world: World, prompt: str) -> None:
    started = world.begins(prompt)
    world.hold.reached()
    wait_for(lambda: _noted(world.logs()[0]), "the call to end in the log")
    world.tokens = world.user.tokens()
    started.kill()


@when(step('I run {agent} with "{prompt}", and press Ctrl-C while it thinks'))
def _(world: World, prompt: str) -> None:
    started = world.begins(prompt)
    world.hold.reached()
    world.finished.append(started.interrupt())


@then("the run finished")
def _(world: World) -> None:
    assert world.run.ok().result["status"] == "finished", world.run


@then(step('the run was stopped as "{status}", with exit code {code}'))
def _(world: World, status: str, code: str) -> None:
    assert (world.run.result["status"], world.run.exit_code) == (status, int(code)), world.run


@then(step('its answer is "{text}"'))
def _(world: World, text: str) -> None:
    assert world.run.result["text"] == text


@then(step('the model received the text of "{file}"'))
def _(world: World, file: str) -> None:
    for line in (world.project / file).read_text().splitlines():
        assert line.strip() in world.model.results[0]


@then("the model received the change")
def _(world: World) -> None:
    assert all(line in world.model.results[0] for line in ("number + 2", "number * 2"))


@then("the model was informed that the tests passed")
def _(world: World) -> None:
    result = world.model.results[2]
    assert "1 passed" in result or '"passed":1' in result


@then(step('the model was not offered "{tool}"'))
def _(world: World, tool: str) -> None:
    assert not any(tool in str(body.get("tools")) or tool in _reminders(body) for body in world.model.bodies)


@then("the model was refused the second write")
def _(world: World) -> None:
    assert "may not use workspace:write_file" in world.model.results[1]


@then("the model got an error for the second call")
def _(world: World) -> None:
    assert "was killed by signal 9. The call may have run." in world.model.results[1]


@then(step("the model was offered the tools {way}"))
def _(world: World, way: str) -> None:
    model = world.model
    assert model.offering is ToolOffering(way)
    named = world.user.setup.agent.tools(model)
    if model.offering is ToolOffering.PLAIN:
        assert "workspace_read_file" in named
    else:
        assert "workspace_read_file" not in named
        assert any(name.endswith("workspace_read_file") for name in model.found)


@then(step('in the second run the model knew "{asked}" and "{said}"'))
def _(world: World, asked: str, said: str) -> None:
    first, *_ = world.model.conversations
    assert any(asked in text for text in first.asked)
    assert any(said in text for text in first.said)


@then(step('"{module}" and "{test}" are in the project as the model wrote them'))
def _(world: World, module: str, test: str) -> None:
    assert (world.project / module).read_text() == MODULE
    assert (world.project / test).read_text() == TEST


@then("nothing in the project has changed")
def _(world: World) -> None:
    assert world.changed() == set()


@then("each of its attempts got a result")
def _(world: World) -> None:
    attempts = world.user.setup.writes(world.project)
    assert len(world.model.results) == 2 + len(attempts), world.model.results


@then("each of its tools has written a file")
def _(world: World) -> None:
    written = {f"by-agent/{name}" for name in world.user.setup.writes(world.project)}
    assert world.changed() == {"by-agent/toolcrib", *written}, world.model.results


@then(step('only "{file}" has changed in the project'))
def _(world: World, file: str) -> None:
    assert world.changed() == {file}


@then(step('the audit log has {count} call of "{tool}", {decision}, with the outcome "{outcome}"'))
@then(step('the audit log has {count} calls of "{tool}", {decision}, with the outcome "{outcome}"'))
def _(world: World, count: str, tool: str, decision: str, outcome: str) -> None:
    meant = {"allowed": "allow", "denied": "deny"}[decision]
    calls = [call for call in world.calls() if call["tool"] == tool]
    assert [(call["decision"], call["outcome"]) for call in calls].count((meant, outcome)) == int(count), calls


@then(step('the audit log has no call of "{tool}"'))
def _(world: World, tool: str) -> None:
    assert tool not in [call["tool"] for call in world.calls()]


@then("the log has the same calls as the audit log")
def _(world: World) -> None:
    log, audit_log = world.run.log, world.calls()
    over = [event for event in log.events if event.get("server") and event["tool_status"] != "started"]
    audited = Counter(entry["tool"] for entry in audit_log)
    assert Counter(f"{event['server']}:{event['tool_name']}" for event in over) == audited
    assert [(event["tool_status"], event["decision"]) for event in over] == [("ok", "allow")] * len(audit_log)
    assert over
    assert all(event["tool_duration_ms"] > 0 and event["tool_args"] is not None for event in over)
    assert {tool: count for tool, count in log.summary["tools"].items() if ":" in tool} == audited


@then("the log has the tokens that the model's provider counted")
def _(world: World) -> None:
    summary = world.run.log.summary
    usage = tuple(summary["usage"][name] for name in ("input", "output", "cached"))
    assert usage == world.user.setup.counted(world.model.usages)


@then("the log counts 1 denial")
def _(world: World) -> None:
    assert world.run.log.summary["denials"] == 1


@then("the audit log shows the calls of both runs in one conversation")
def _(world: World) -> None:
    [conversation] = {run.result["conversation"] for run in world.finished}
    calls = [call for call in world.calls() if call["tool"] == "workspace:read_file"]
    shown = [(call["tool"], call["conversation"], call["agent"]) for call in calls]
    agent = f"{world.user.setup.agent.name}-{conversation}"
    assert shown == [("workspace:read_file", conversation, agent)] * 2


@then("there are two logs, and the second has the session of the first")
def _(world: World) -> None:
    first, second = (run.log for run in world.finished)
    assert first.path != second.path
    assert second.metadata["session_before"] == first.summary["session"] != ""


@then("a new ledger got the third call")
def _(world: World) -> None:
    first, second, third = world.ledger.calls()
    assert first["pid"] == second["pid"] != third["pid"]
    assert [call["arguments"]["nonce"] for call in (first, second, third)] == ["first", "second", "third"]


@then("only the first call reached the ledger")
def _(world: World) -> None:
    assert world.ledger.nonces() == ["first"]


@then("the ledger saw one call of each run")
def _(world: World) -> None:
    assert world.ledger.nonces() == ["of the first run", "of the next run"]


@then("the log warns that the tools are unavailable")
def _(world: World) -> None:
    warnings = world.run.log.texts("log", "toolcrib")
    assert any("was ended (removed)" in text and "continues without these tools" in text for text in warnings)


@then("no process of the run is left")
def _(world: World) -> None:
    world.user.wait_until_alone()


@then("its token is no longer valid")
def _(world: World) -> None:
    [token] = world.tokens.values()
    assert AgentEndpoint(world.daemon, token).modern("tools/list").status == 401


@then("its log is readable, and shows that it was killed")
def _(world: World) -> None:
    [path] = world.user.logs()
    log = Log.read(path)
    assert log.summary is None
    assert _noted(log)
    [run] = world.cli("runs", "--json", cwd=world.project).ok().json["runs"]
    assert (run["run_id"], run["status"]) == (log.metadata["run_id"], "killed")


@then("nothing of the run remains, and my settings are unchanged")
def _(world: World) -> None:
    world.is_clean()


def _noted(log: Log) -> bool:
    """Whether the log has a successful call of the ledger."""
    return any((event.get("tool_name"), event.get("tool_status")) == ("note", "ok") for event in log.events)


def _reminders(body: dict[str, object]) -> str:
    """Where Claude Code names its deferred tools, and Codex those of its programs."""
    messages = body.get("messages") or body.get("input") or body.get("contents")
    first = messages[0] if isinstance(messages, list) else {}
    return str(first)
