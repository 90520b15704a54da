"""The scenarios of `40_mcp_tools.feature`: what a person does with the real programs, and what the far sides saw of it.

What is given, and what the model will do, stands in `conftest`.
"""

from __future__ import annotations

import http.client
import urllib.parse
from collections import Counter

import pytest
from pytest_bdd import scenario, then, when

from parts.runs import Log
from parts.stage import MODULE, TEST, Stage
from parts.waiting import wait_for
from parts.wording import words
from toolcrib.testing.conversation import ToolOffering

FEATURE = "40_mcp_tools.feature"


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-8", "KSI-2")
@scenario(FEATURE, "An agent reads a file and says what it thinks of it")
def test_an_agent_reads_a_file_and_says_what_it_thinks_of_it() -> None: ...


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-8")
@pytest.mark.usefixtures("bwrap")
@scenario(FEATURE, "An agent writes a module and its test, and runs the tests")
def test_an_agent_writes_a_module_and_its_test_and_runs_the_tests() -> None: ...


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-8")
@scenario(FEATURE, "An agent that only reads reviews a change, and cannot make one")
def test_an_agent_that_only_reads_reviews_a_change_and_cannot_make_one() -> None: ...


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-8")
@scenario(FEATURE, "An agent that I trust writes in each of these ways")
def test_an_agent_that_i_trust_writes_in_each_of_these_ways() -> None: ...


@pytest.mark.req("FRG-8", "KAI-10")
@scenario(FEATURE, "A reviewer may write down a review, and is refused a write anywhere else")
def test_a_reviewer_may_write_down_a_review_and_is_refused_a_write_anywhere_else() -> None: ...


@pytest.mark.req("FRG-8")
@scenario(FEATURE, "A conversation goes on in a second run")
def test_a_conversation_goes_on_in_a_second_run() -> None: ...


@pytest.mark.req("FRG-8", "KAI-10")
@scenario(FEATURE, "A server dies while it works on a call")
def test_a_server_dies_while_it_works_on_a_call() -> None: ...


@pytest.mark.req("FRG-8", "FRG-10")
@scenario(FEATURE, "An agent is revoked while it works")
def test_an_agent_is_revoked_while_it_works() -> None: ...


@pytest.mark.req("FRG-8", "FRG-10")
@scenario(FEATURE, "A run that is to go on without tools goes on when its agent is revoked")
def test_a_run_that_is_to_go_on_without_tools_goes_on_when_its_agent_is_revoked() -> None: ...


@pytest.mark.req("FRG-8", "FRG-10")
@scenario(FEATURE, "I stop a run with Ctrl-C")
def test_i_stop_a_run_with_ctrl_c() -> None: ...


@pytest.mark.req("FRG-8", "KSI-2")
@scenario(FEATURE, "A run is killed, and the next one starts clean")
def test_a_run_is_killed_and_the_next_one_starts_clean() -> None: ...


@pytest.mark.req("FRG-3", "FRG-4", "FRG-5", "FRG-8", "KAI-10")
@scenario(FEATURE, "The tools work however the agent offers them to its model")
def test_the_tools_work_however_the_agent_offers_them_to_its_model() -> None: ...


# What the person does.


@when(words('I run {agent} with "{prompt}"'))
def _(stage: Stage, prompt: str) -> None:
    stage.runs(prompt)


@when(words('I run {agent} with "{prompt}" and the profile "{profile}"'))
def _(stage: Stage, prompt: str, profile: str) -> None:
    stage.runs(prompt, "--profile", profile)


@when(words('I go on in the same conversation with "{prompt}"'))
def _(stage: Stage, prompt: str) -> None:
    stage.use(stage.model)
    stage.runs(prompt, "--conversation", stage.run.result["conversation"])


@when(words('I run {agent} with "{prompt}", and the ledger dies in the second call'))
def _(stage: Stage, prompt: str) -> None:
    begun = stage.begins(prompt)
    stage.ledger_dies_in("second")
    stage.told.append(begun.wait())


@when(words('I run {agent} with "{prompt}", and remove its agent after the first call'))
def _(stage: Stage, prompt: str) -> None:
    stage.runs(prompt)


@when(words('I let {agent} go on without tools with "{prompt}", and remove its agent after the first call'))
def _(stage: Stage, prompt: str) -> None:
    stage.runs(prompt, "--on-mcp-failure", "continue")


@when(words('I run {agent} with "{prompt}", and it is killed while it thinks'))
def _(stage: Stage, prompt: str) -> None:
    begun = stage.begins(prompt)
    stage.hold.reached()
    wait_for(lambda: _noted(stage.logs()[0]), "the log to tell that the call is over")
    stage.tokens = stage.desk.tokens()
    begun.kill()


@when(words('I run {agent} with "{prompt}", and press Ctrl-C while it thinks'))
def _(stage: Stage, prompt: str) -> None:
    begun = stage.begins(prompt)
    stage.hold.reached()
    stage.told.append(begun.interrupt())


# What came of it.


@then("the run finished")
def _(stage: Stage) -> None:
    assert stage.run.ok().result["status"] == "finished", stage.run


@then("both runs finished")
def _(stage: Stage) -> None:
    assert [run.ok().result["status"] for run in stage.told] == ["finished", "finished"]


@then(words('the run was stopped as "{status}", with exit code {code}'))
def _(stage: Stage, status: str, code: str) -> None:
    assert (stage.run.result["status"], stage.run.exit_code) == (status, int(code)), stage.run


@then(words('its last words are "{words}"'))
def _(stage: Stage, words: str) -> None:
    assert stage.run.result["text"] == words


@then(words('the model was given the text of "{file}"'))
def _(stage: Stage, file: str) -> None:
    for line in (stage.project / file).read_text().splitlines():
        assert line.strip() in stage.model.results[0]


@then("the model was given the change")
def _(stage: Stage) -> None:
    assert "number + 2" in stage.model.results[0]
    assert "number * 2" in stage.model.results[0]


@then("the model was told that the tests passed")
def _(stage: Stage) -> None:
    told = stage.model.results[2]
    assert "1 passed" in told or '"passed":1' in told


@then(words('the model was not offered "{tool}"'))
def _(stage: Stage, tool: str) -> None:
    assert not any(tool in str(body.get("tools")) or tool in _reminders(body) for body in stage.model.bodies)


@then("the model was told that it may not write there")
def _(stage: Stage) -> None:
    assert "may not use workspace:write_file" in stage.model.results[1]


@then("the model was told of the second call that the server is gone")
def _(stage: Stage) -> None:
    assert "was ended by signal 9. The call may have run." in stage.model.results[1]


@then(words("the model was offered the tools {way}"))
def _(stage: Stage, way: str) -> None:
    model = stage.model
    assert model.offering is ToolOffering(way)
    named = stage.desk.person.agent.tools(model)
    if model.offering is ToolOffering.PLAIN:
        assert "workspace_read_file" in named
    else:
        assert "workspace_read_file" not in named
        assert any(name.endswith("workspace_read_file") for name in model.found)


@then(words('in the second run the model knew "{asked}" and "{said}"'))
def _(stage: Stage, asked: str, said: str) -> None:
    first, *_ = stage.model.conversations
    assert any(asked in text for text in first.asked)
    assert any(said in text for text in first.said)


@then(words('"{module}" and "{test}" are in the project as the model wrote them'))
def _(stage: Stage, module: str, test: str) -> None:
    assert (stage.project / module).read_text() == MODULE
    assert (stage.project / test).read_text() == TEST


@then("nothing in the project has changed")
def _(stage: Stage) -> None:
    assert stage.changed() == set()


@then("none of its attempts was left unanswered")
def _(stage: Stage) -> None:
    attempts = stage.desk.person.writes(stage.project)
    assert len(stage.model.results) == 2 + len(attempts), stage.model.results


@then("each of its ways has written a file")
def _(stage: Stage) -> None:
    written = {f"by-hand/{name}" for name in stage.desk.person.writes(stage.project)}
    assert stage.changed() == {"by-hand/toolcrib", *written}, stage.model.results


@then(words('only "{file}" has changed in the project'))
def _(stage: Stage, file: str) -> None:
    assert stage.changed() == {file}


@then(words('the audit log has {count} call of "{tool}", {decision}, with the outcome "{outcome}"'))
@then(words('the audit log has {count} calls of "{tool}", {decision}, with the outcome "{outcome}"'))
def _(stage: Stage, count: str, tool: str, decision: str, outcome: str) -> None:
    meant = {"allowed": "allow", "denied": "deny"}[decision]
    calls = [call for call in stage.calls() if call["tool"] == tool]
    assert [(call["decision"], call["outcome"]) for call in calls].count((meant, outcome)) == int(count), calls


@then(words('the audit log has no call of "{tool}"'))
def _(stage: Stage, tool: str) -> None:
    assert tool not in [call["tool"] for call in stage.calls()]


@then("the log tells of the same calls as the audit log")
def _(stage: Stage) -> None:
    log, audit_log = stage.run.log, stage.calls()
    over = [event for event in log.events if event.get("server") and event["tool_status"] != "started"]
    assert Counter(f"{event['server']}:{event['tool_name']}" for event in over) == Counter(
        entry["tool"] for entry in audit_log
    )
    assert [(event["tool_status"], event["decision"]) for event in over] == [("ok", "allow")] * len(audit_log)
    assert over
    assert all(event["tool_duration_ms"] > 0 and event["tool_args"] is not None for event in over)
    assert log.summary is not None
    ours = {tool: count for tool, count in log.summary["tools"].items() if ":" in tool}
    assert ours == dict(Counter(entry["tool"] for entry in audit_log))


@then("the log holds the tokens that the model's provider counted")
def _(stage: Stage) -> None:
    summary = stage.run.log.summary
    assert summary is not None
    usage = tuple(summary["usage"][name] for name in ("input", "output", "cached"))
    assert usage == stage.desk.person.counted(stage.model.usages)


@then("the log counts 1 denial")
def _(stage: Stage) -> None:
    assert stage.run.log.summary is not None
    assert stage.run.log.summary["denials"] == 1


@then("the audit log shows the calls of both runs in one conversation")
def _(stage: Stage) -> None:
    [conversation] = {run.result["conversation"] for run in stage.told}
    shown = [(call["tool"], call["conversation"], call["agent"]) for call in stage.calls()]
    agent = f"{stage.desk.person.agent.name}-{conversation}"
    assert shown == [("workspace:read_file", conversation, agent)] * 2


@then("there are two logs, and the second says where it went on")
def _(stage: Stage) -> None:
    first, second = (run.log for run in stage.told)
    assert first.path != second.path
    assert first.summary is not None
    assert second.metadata["session_before"] == first.summary["session"] != ""


@then("the third call was done by a new ledger")
def _(stage: Stage) -> None:
    first, second, third = stage.ledger.calls()
    assert first["pid"] == second["pid"] != third["pid"]
    assert [call["arguments"]["nonce"] for call in (first, second, third)] == ["first", "second", "third"]


@then("only the first call reached the ledger")
def _(stage: Stage) -> None:
    assert stage.ledger.nonces() == ["first"]


@then("the ledger saw one call of each run")
def _(stage: Stage) -> None:
    assert stage.ledger.nonces() == ["of the first run", "of the next run"]


@then("the log warns that the tools are gone")
def _(stage: Stage) -> None:
    assert any("goes on without these tools" in text for text in stage.run.log.told("log", "toolcrib"))


@then("no process of the run is left")
def _(stage: Stage) -> None:
    stage.desk.wait_until_alone()


@then("its token opens nothing any more")
def _(stage: Stage) -> None:
    assert stage.daemon is not None
    [token] = stage.tokens.values()
    address = urllib.parse.urlsplit(stage.daemon.endpoint)
    line = http.client.HTTPConnection(address.netloc, timeout=60)
    line.request("POST", address.path, body="{}", headers={"Authorization": f"Bearer {token}"})
    assert line.getresponse().status == 401
    line.close()


@then("its log can be read, and shows that it was killed")
def _(stage: Stage) -> None:
    [path] = stage.desk.logs()
    log = Log.read(path)
    assert log.summary is None
    assert _noted(log)
    [run] = stage.cli("runs", "--json", cwd=stage.project).ok().json["runs"]
    assert (run["run_id"], run["status"]) == (log.metadata["run_id"], "killed")


@then("nothing of the run is left, and my own settings are as they were")
def _(stage: Stage) -> None:
    stage.is_clean()


def _noted(log: Log) -> bool:
    """Whether the log tells that a call of the ledger went well."""
    return any((event.get("tool_name"), event.get("tool_status")) == ("note", "ok") for event in log.events)


def _reminders(body: dict[str, object]) -> str:
    """Where Claude Code names its deferred tools, and Codex those of its programs."""
    messages = body.get("messages") or body.get("input") or body.get("contents")
    first = messages[0] if isinstance(messages, list) else {}
    return str(first)
