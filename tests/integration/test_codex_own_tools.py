"""What Codex itself may do in a run: the real program, a scripted model, and the disk as the witness.

The person's settings allow everything and the project's are hostile: servers, hooks, rules and notices that leave a
mark when they come to be. At the level `all` they do; so do the attempts that the model makes.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parts.coding_agents import CODEX_SETTINGS, KEY
from parts.own import StartServer
from parts.own_hands import Place, furnish
from toolcrib.coding_agents.client_spec import SERVER_NAME, LaunchRequest
from toolcrib.coding_agents.known.codex import CodexParser
from toolcrib.coding_agents.known.codex_launch import launch
from toolcrib.policy.profile import OwnTools
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus
from toolcrib.testing.openai_responses import OpenAIResponses
from toolcrib.testing.script import Call, CallByName, Refuse, Say, Step
from toolcrib.testing.server import ScriptedModel, serving
from toolcrib.workspace.settings.model import GUARDED

TOKEN = "tok-0123456789abcdef"
DEFERRED, CODE = "gpt-5.5", "gpt-6.1-sol"
"""Models that Codex gives its own patch tool: the one calls tools, the other writes programs that do."""
NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_mnt_namespaces; echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
"""For a shell in a user namespace of its own: there Codex's sandbox cannot be made."""

pytestmark = pytest.mark.req("FRG-3")


@dataclass(frozen=True, kw_only=True)
class Ran:
    exit_code: int
    reader: CodexParser
    events: list[AgentEvent]
    model: ScriptedModel

    def ends(self, tool: str) -> list[AgentEvent]:
        """The events of a tool's calls that are over."""
        return [
            event for event in self.events if event.tool_name == tool and event.tool_status is not ToolStatus.STARTED
        ]


@dataclass(kw_only=True)
class Scene(Place):
    settings: str = ""
    """The person's, besides the model."""

    @property
    def outside(self) -> Path:
        return self.base / "marks"

    @property
    def file(self) -> Path:
        return self.home / ".codex" / "config.toml"

    def written(self) -> set[str]:
        """What the model's attempts left: in the project, in the home, in the folder for temporary files."""
        found = [*self.project.rglob("made-*"), *self.home.glob("made-*"), *(self.base / "tmp").glob("made-*")]
        return {path.name for path in found}

    def settle(self, model: ScriptedModel) -> None:
        """Writes the person's settings, if they are not there yet."""
        if not self.file.exists():
            head, table, tail = CODEX_SETTINGS.replace("@URL@", model.url).partition("[model_providers")
            bare = head.replace('sandbox_mode = "read-only"\n', "").replace('approval_policy = "never"\n', "")
            self.file.write_text(bare + self.settings + table + tail.partition("[features]")[0])

    def run(self, own: OwnTools, *steps: Step, model: str = DEFERRED, **more: Any) -> Ran:
        with serving(OpenAIResponses(), steps) as served:
            return self.run_with(served, own, model=model, **more)

    def run_with(
        self,
        served: ScriptedModel,
        own: OwnTools,
        *,
        model: str = DEFERRED,
        session: str = "",
        extra: tuple[str, ...] = (),
        private: tuple[Path, ...] = (),
        around: tuple[str, ...] = (),
    ) -> Ran:
        self.settle(served)
        environ = self.persons(SCRIPTED_KEY=KEY)
        made = launch(
            LaunchRequest(
                prompt="--do what is asked",
                session=session,
                own_tools=own,
                guarded=GUARDED,
                url=self.url,
                token=TOKEN,
                headers={"X-Toolcrib-Agent": "codex-1"},
                folder=self.base,
                workdir=self.project,
                environ=environ,
                private=private,
                extra=("-m", model, *extra),
            )
        )
        done = self.started(made, environ, around=around)
        reader = CodexParser()
        events = [event for line in done.stdout.splitlines() for event in reader.parse(json.loads(line))]
        events += [event for line in done.stderr.splitlines() for event in reader.parse_stderr(line)]
        return Ran(exit_code=done.returncode, reader=reader, events=events, model=served)


@pytest.fixture
def scene(tmp_path: Path, parts: Callable[[str], list[str]], start_server: StartServer) -> Scene:
    made = Scene(base=tmp_path, url=furnish(tmp_path, start_server, "home/.codex"), program=parts("codex"))
    subprocess.run(["git", "init", "--quiet", str(made.project)], check=True)
    return made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where a command would arrive that reaches the network."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def was_reached(listening: socket.socket) -> bool:
    with suppress(BlockingIOError):
        listening.accept()[0].close()
        return True
    return False


def hostile(scene: Scene) -> None:
    """The person permits everything and trusts the project, which brings what it can."""
    server = '[mcp_servers.{0}]\ncommand = "sh"\nargs = ["-c", "{1}; cat > /dev/null"]\n'
    hooks = {
        event: [{"hooks": [{"type": "command", "command": "{0}; cat > /dev/null"}]}]
        for event in ("SessionStart", "UserPromptSubmit", "Stop")
    }
    scene.settings = (
        'sandbox_mode = "danger-full-access"\napproval_policy = "never"\n'
        f'notify = ["sh", "-c", "{scene.mark("persons-notice")}"]\n'
        "[sandbox_workspace_write]\nnetwork_access = true\n"
        f'writable_roots = ["{scene.outside}"]\n'
        f'[projects."{scene.project}"]\ntrust_level = "trusted"\n'
        "[features]\nmulti_agent_v2 = true\n" + server.format("persons", scene.mark("persons-server"))
    )
    below = {"persons": scene.home / ".codex", "projects": scene.project / ".codex"}
    for whose, folder in below.items():
        (folder / "rules").mkdir(parents=True)
        # A command that a rule permits runs outside of the sandbox.
        (folder / "rules" / "default.rules").write_text('prefix_rule(pattern=["touch"], decision="allow")\n')
        text = json.dumps({"hooks": hooks}).replace("{0}", scene.mark(f"{whose}-hook"))
        (folder / "hooks.json").write_text(text)
    (scene.project / ".codex" / "config.toml").write_text(
        'sandbox_mode = "danger-full-access"\n[shell_environment_policy]\nset = { FROM_PROJECT = "yes" }\n'
        + server.format("projects", scene.mark("projects-server"))
    )
    (scene.project / "AGENTS.md").write_text("The project says: PROJECTS-WORDS.\n")


HELPER = "spawn_agent"
HOOKS_RUN = ("--dangerously-bypass-hook-trust",)
"""Else Codex runs none that the person has not looked at, and the test would show nothing."""


def patch(path: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+made\n*** End Patch\n"


def shell(text: str, **more: str) -> CallByName:
    return CallByName("exec_command", {"cmd": text, **more})


def attempts(scene: Scene, port: int) -> list[Step]:
    escalated = {"sandbox_permissions": "require_escalated", "justification": "please"}
    return [
        shell("cat there.txt"),
        shell("touch made-by-command"),
        shell("touch $HOME/made-at-home"),
        shell("touch $TMPDIR/made-in-tmp"),
        shell(scene.mark("by-command")),
        shell(scene.mark("by-escalated-command"), **escalated),
        shell("touch .git/hooks/made-hook; touch .codex/made-settings"),
        shell("mkdir -p .toolcrib; touch .toolcrib/made-rules"),
        shell(f"exec 3<>/dev/tcp/127.0.0.1/{port}"),
        shell('echo "project=[$FROM_PROJECT] token=[$TOOLCRIB_TOKEN]"'),
        CallByName("apply_patch", patch("made-by-patch")),
        CallByName("apply_patch", patch(".git/hooks/made-by-patch-hook")),
        CallByName("apply_patch", patch(".toolcrib/made-by-patch-rules")),
        CallByName("apply_patch", patch(f"{scene.outside}/by-patch")),
        Call("echo", {"word": "through toolcrib"}),
    ]


def results(ran: Ran) -> str:
    return "\n".join(ran.model.results)


def offered(ran: Ran) -> set[str]:
    return {tool.name for talk in ran.model.conversations for tool in (*talk.tools, *talk.found)}


@pytest.mark.parametrize("model", [DEFERRED, CODE])
@pytest.mark.parametrize("own", [OwnTools.NONE, OwnTools.READ])
def test_a_run_that_may_not_write_leaves_no_trace_by_codexs_own_hands(
    scene: Scene, listener: socket.socket, own: OwnTools, model: str
) -> None:
    hostile(scene)
    ran = scene.run(own, *attempts(scene, listener.getsockname()[1]), model=model, extra=HOOKS_RUN)
    assert (ran.exit_code, ran.reader.report.mcp_failure) == (0, "")
    assert scene.calls() == [{"word": "through toolcrib"}]
    assert (scene.written(), scene.marks) == (set(), set())
    assert not was_reached(listener)
    assert HELPER not in offered(ran)
    assert TOKEN not in results(ran)
    assert "project=[yes]" not in results(ran)
    assert ("as it was" in results(ran)) == (own is OwnTools.READ)


@pytest.mark.parametrize("model", [DEFERRED, CODE])
def test_a_run_that_may_edit_writes_in_its_folder_alone(scene: Scene, listener: socket.socket, model: str) -> None:
    hostile(scene)
    ran = scene.run(OwnTools.EDIT, *attempts(scene, listener.getsockname()[1]), model=model, extra=HOOKS_RUN)
    assert scene.calls() == [{"word": "through toolcrib"}]
    assert scene.written() == {"made-by-command", "made-by-patch"}
    assert scene.marks == set()
    assert not was_reached(listener)
    assert HELPER not in offered(ran)
    assert "project=[] token=[]" in results(ran)
    changed = ran.ends("apply_patch")
    assert [event.tool_status for event in changed] == [ToolStatus.OK, *[ToolStatus.DENIED] * 3]
    assert {event.server for event in changed} == {""}
    assert any(event.tool_status is ToolStatus.OK and "project=[]" in event.text for event in ran.ends("shell"))


@pytest.mark.parametrize("there", [True, False], ids=["there", "not-yet"])
def test_a_run_that_may_edit_changes_nothing_in_toolcribs_own_folder(scene: Scene, *, there: bool) -> None:
    ours = scene.project / ".toolcrib"
    if there:
        ours.mkdir()
        (ours / "workspace.yml").write_text("as it was\n")
        (scene.project / "way").symlink_to(".toolcrib")
        (scene.project / ".envrc").write_text("as it was\n")
        (scene.project / ".vscode").mkdir()
    (scene.project / "there").mkdir()
    ways = (".toolcrib", f"{ours}", "there/../.toolcrib", *(["way"] if there else []))
    before = sorted(path.name for path in scene.project.rglob("*"))
    scene.run(
        OwnTools.EDIT,
        *(shell(f"mkdir {way}; touch {way}/made-{number}") for number, way in enumerate(ways)),
        *(CallByName("apply_patch", patch(f"{way}/made-by-patch-{number}")) for number, way in enumerate(ways)),
        *([shell("echo more >> .toolcrib/workspace.yml; mv .toolcrib moved; rm -r .toolcrib")] if there else []),
        shell("echo x > .envrc; rm .envrc; mkdir .vscode; touch .vscode/made; mv .vscode v; echo 'ref: refs/x' > HEAD"),
        *(CallByName("apply_patch", patch(path)) for path in (".idea/made-a", ".mcp.json", "HEAD")),
        shell("touch made-elsewhere"),
    )
    assert sorted(path.name for path in scene.project.rglob("*")) == sorted([*before, "made-elsewhere"])
    if there:
        assert (ours / "workspace.yml").read_text() == (scene.project / ".envrc").read_text() == "as it was\n"


@pytest.mark.parametrize("own", [OwnTools.READ, OwnTools.EDIT])
def test_commands_read_nothing_in_toolcribs_own_folders(scene: Scene, own: OwnTools) -> None:
    private = scene.home / ".local" / "state" / "toolcrib"
    (private / "run").mkdir(parents=True)
    (private / "owner.token").write_text("the-owners-token\n")
    (scene.project / "way").symlink_to(private)
    runs = scene.project / ".toolcrib" / "runs"
    runs.mkdir(parents=True)
    (runs / "1.jsonl").write_text("the-owners-token\n")
    (scene.home / "other").write_text("whatever the person may read\n")
    ran = scene.run(
        own,
        shell(f"cat {private}/owner.token way/owner.token {runs}/*; grep -r owners {scene.home} ."),
        shell(f"cat {scene.home}/other"),
        shell(f"mv {private} {private}-2; cp -r {private} .; cat {private}-2/owner.token toolcrib/owner.token"),
        # One of them may not be there yet, and one may lie in another.
        private=(private, private / "run", scene.home / ".config" / "toolcrib", runs),
    )
    assert "whatever the person may read" in results(ran)
    assert "the-owners-token" not in results(ran)
    assert (private / "owner.token").read_text() == "the-owners-token\n"


@pytest.mark.parametrize("own", [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT])
def test_a_profile_of_the_persons_that_permits_everything_does_not_count_below_all(scene: Scene, own: OwnTools) -> None:
    scene.settings = (
        'default_permissions = "mine"\n[permissions.mine]\nnetwork.enabled = true\nfilesystem.":root" = "write"\n'
    )
    outside = CallByName("apply_patch", patch(f"{scene.outside}/by-patch"))
    scene.run(own, shell(scene.mark("by-command")), outside, CallByName("apply_patch", patch("made-by-patch")))
    assert scene.marks == set()
    assert scene.written() == ({"made-by-patch"} if own is OwnTools.EDIT else set())


def asked(ran: Ran, word: str) -> list[str]:
    """What the model was asked last, of all that has this word in it."""
    return [text for text in ran.model.conversations[-1].asked if word in text]


@pytest.mark.parametrize("own", [OwnTools.NONE, OwnTools.READ, OwnTools.EDIT, OwnTools.ALL])
def test_the_model_is_told_what_the_project_and_the_person_say_to_codex_at_every_level(
    scene: Scene, own: OwnTools
) -> None:
    hostile(scene)
    (scene.home / ".codex" / "AGENTS.md").write_text("The person says: PERSONS-WORDS.\n")
    with serving(OpenAIResponses(), (Say("Aye."),)) as model:
        first = scene.run_with(model, own)
        assert len(asked(first, "PROJECTS-WORDS")) == len(asked(first, "PERSONS-WORDS")) == 1
        [prompt] = asked(first, "--do what is asked")
        second = scene.run_with(model, own, session=first.reader.report.session)
    assert ("PROJECTS-WORDS" in prompt) == (own is not OwnTools.ALL)
    assert len(asked(second, "PROJECTS-WORDS")) == 1
    assert asked(second, "--do what is asked") == [prompt, "--do what is asked"]


@pytest.mark.parametrize("model", [DEFERRED, CODE])
def test_a_run_that_may_do_all_is_held_by_nothing(scene: Scene, listener: socket.socket, model: str) -> None:
    hostile(scene)
    ran = scene.run(OwnTools.ALL, *attempts(scene, listener.getsockname()[1]), model=model, extra=HOOKS_RUN)
    assert {"word": "through toolcrib"} in scene.calls()
    assert HELPER in offered(ran)
    assert scene.written() == {
        *("made-by-command", "made-at-home", "made-in-tmp", "made-hook", "made-settings"),
        *("made-by-patch", "made-by-patch-hook", "made-rules", "made-by-patch-rules"),
    }
    assert scene.marks >= {
        *("by-command", "by-patch", "persons-server", "projects-server"),
        *("persons-hook", "projects-hook", "persons-notice"),
    }
    assert was_reached(listener)
    assert "project=[yes] token=[]" in results(ran)
    assert any("PROJECTS-WORDS" in text for talk in ran.model.conversations for text in talk.asked)


@pytest.mark.parametrize("own", [OwnTools.READ, OwnTools.EDIT, OwnTools.ALL])
def test_a_run_leaves_the_persons_settings_as_they_are(scene: Scene, own: OwnTools) -> None:
    with serving(OpenAIResponses(), ()) as model:
        scene.settle(model)
        before = scene.file.read_text()
        assert scene.run_with(model, own).exit_code == 0
    assert "projects" not in before
    assert scene.file.read_text() == before


@pytest.mark.parametrize("before", [OwnTools.EDIT, OwnTools.ALL])
def test_a_session_that_might_write_cannot_when_a_later_run_may_not(scene: Scene, before: OwnTools) -> None:
    steps = (shell("touch made-first"), Say("Made."), shell("touch made-second"), Say("Tried."))
    with serving(OpenAIResponses(), steps) as model:
        first = scene.run_with(model, before)
        session = first.reader.report.session
        second = scene.run_with(model, OwnTools.READ, session=session)
    assert (first.reader.report.text, second.reader.report.text) == ("Made.", "Tried.")
    assert second.reader.report.session == session
    assert scene.written() == {"made-first"}
    assert "--do what is asked" in model.conversations[-1].asked


@pytest.mark.parametrize(
    ("policy", "hidden"),
    [
        ("", False),
        ('exclude = ["PERSONS_*"]', True),
        ('include_only = ["PATH", "TOOLCRIB_*"]', True),
        ('filters = { "PERSONS_*" = "exclude" }', True),
    ],
    ids=["none", "exclude", "include", "filters"],
)
def test_commands_do_not_get_the_token_whatever_policy_the_person_has(
    scene: Scene, policy: str, *, hidden: bool
) -> None:
    scene.settings = f"[shell_environment_policy]\n{policy}\n"
    scene.environ = {"PERSONS_SECRET": "hush"}
    ran = scene.run(OwnTools.ALL, shell("env; echo ended"))
    assert "ended" in results(ran)
    assert TOKEN not in results(ran)
    assert ("hush" not in results(ran)) == hidden


def test_a_person_who_has_connected_codex_already_gets_the_tools_of_the_run(scene: Scene) -> None:
    scene.settings = f'[mcp_servers.toolcrib]\ncommand = "sh"\nargs = ["-c", "{scene.mark("connected")}; cat"]\n'
    ran = scene.run(OwnTools.ALL, Call("echo", {"word": "hello"}))
    assert scene.calls() == [{"word": "hello"}]
    assert scene.marks == set()
    [call] = ran.ends("echo")
    assert (call.server, call.tool_status, call.tool_args) == (SERVER_NAME, ToolStatus.OK, {"word": "hello"})


@pytest.mark.req("FRG-10")
def test_a_run_whose_tools_cannot_be_had_ends_before_the_model_is_asked(scene: Scene) -> None:
    scene.url = "http://127.0.0.1:9/mcp"
    ran = scene.run(OwnTools.READ)
    assert ran.exit_code == 1
    assert "error sending request" in ran.reader.report.mcp_failure
    assert ran.model.bodies == []


@pytest.mark.parametrize("own", [OwnTools.READ, OwnTools.EDIT])
def test_where_codex_cannot_make_its_sandbox_no_command_runs(scene: Scene, own: OwnTools) -> None:
    around = ("unshare", "--user", "--map-root-user", "sh", "-c", NO_NAMESPACES, "sh")
    if not shutil.which("unshare") or subprocess.run([*around, "true"], check=False).returncode:
        pytest.skip("no user namespace can be made here")
    ran = scene.run(own, shell("touch made-by-command"), shell(scene.mark("by-command")), around=around)
    assert len(ran.model.results) == 2
    assert (scene.written(), scene.marks) == (set(), set())


@pytest.mark.req("FRG-6")
def test_what_codex_refuses_to_do_by_itself_is_in_the_events(scene: Scene) -> None:
    escalated = {"sandbox_permissions": "require_escalated", "justification": "please"}
    ran = scene.run(
        OwnTools.READ,
        CallByName("apply_patch", patch("made-by-patch")),
        CallByName("drop_table", {"name": "a"}, f"mcp__{SERVER_NAME}"),
        CallByName("frobnicate", {}),
        shell(scene.mark("by-command"), **escalated),
        shell("rm -rf there.txt"),
    )
    over = [
        event
        for event in ran.events
        if event.kind is AgentEventKind.TOOL and event.tool_status is not ToolStatus.STARTED
    ]
    assert [(event.tool_name, event.server, event.tool_status) for event in over] == [
        ("apply_patch", "", ToolStatus.DENIED),
        ("drop_table", SERVER_NAME, ToolStatus.UNKNOWN),
        ("frobnicate", "", ToolStatus.UNKNOWN),
        ("shell", "", ToolStatus.DENIED),
        ("shell", "", ToolStatus.DENIED),
    ]
    assert len(ran.model.results) == len(over)
    assert "rm -rf there.txt" in str(over[-1].tool_args)


@pytest.mark.req("FRG-7")
def test_a_person_whose_login_is_refused_is_told_what_to_do(scene: Scene) -> None:
    ran = scene.run(OwnTools.READ, *[Refuse(401)] * 8)
    assert ran.exit_code == 1
    assert ran.reader.report.failure.startswith("unexpected status 401 Unauthorized: ")
    assert "`codex login`" in ran.reader.report.remedy


@pytest.mark.req("FRG-7")
def test_what_a_provider_refuses_is_told_in_its_words(scene: Scene) -> None:
    ran = scene.run(OwnTools.READ, Call("that is not there"))
    [fault] = ran.model.faults
    assert (ran.exit_code, ran.reader.report.failure) == (1, f"{fault} (invalid_request_error)")
