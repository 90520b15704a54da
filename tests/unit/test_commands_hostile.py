"""Every text field of every command either works or fails with a Toolcrib error."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from toolcrib.commands.all import registry
from toolcrib.commands.builtin import builtins
from toolcrib.commands.local import NoDaemon
from toolcrib.commands.registry import LONGEST_TEXT, VERBATIM, CommandContext, Parameters, Via
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.daemon.socket import _read_command
from toolcrib.errors import ToolcribError, UsageError
from toolcrib.identity.agent import _folder as agent_folder
from toolcrib.identity.principal import OWNER, RequestContext
from toolcrib.jobs.submission import _folder as job_folder

pytestmark = pytest.mark.req("KSI-6")

SURROGATE = "a\ud800b"
REFUSED = (SURROGATE, "a\0b", "\x1b[2J", "\x9b", "x" * (LONGEST_TEXT + 1))
ODD = ("/" + "x" * 300, "/x" * 3000, "e\u0301/\u202e../\u200b", "", "../" * 50, "~nobody-of-this-name/x", "/dev/null/x")
STREAMS = {"audit:follow", "approval:watch", "log:tail"}
GIVEN = {"agent:add": {"name": "fresh"}, "server:add": {"name": "fresh", "entry": {"command": "no-such-program"}}}


def fields(model: type[Parameters]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each field that takes text: its name, its schema, and whether its text is passed on unchanged."""
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        about = schema["properties"][field.alias or name]
        yield field.alias or name, about, VERBATIM in field.metadata


def holding(schema: Mapping[str, Any], text: str) -> Any:
    """A value of this schema with the text in it; None where no text fits."""
    options = [schema, *schema.get("anyOf", ())]
    if any(one.get("type") == "string" and "enum" not in one for one in options):
        return text
    if any(one.get("type") == "array" for one in options):
        return [text]
    if any(one.get("type") == "object" for one in options):
        return {text: {"deep": [text]}}
    return None


def calls(text: str) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    for command in registry.all():
        needed = command.parameters.model_json_schema().get("required", ())
        given = {**dict.fromkeys(needed, "x"), **GIVEN.get(command.name, {})}
        for field, schema, verbatim in fields(command.parameters):
            value = holding(schema, text)
            if value is not None:
                yield command.name, field, {**given, field: value}, verbatim
    for field in ("command", "args", "env", "cwd", "url", "headers"):
        value = [text] if field == "args" else {"K": text} if field in ("env", "headers") else text
        yield "server:add", field, {"name": "fresh", "entry": {field: value}}, False


@pytest.fixture
async def context(tmp_path):
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": os.defpath}
    host = NoDaemon()
    crib = Crib(paths=Paths.of_user(environ), root=tmp_path, environ=environ, builtins=builtins(registry, host))

    async def unexpected(event):
        raise AssertionError(f"unexpected event: {event}")

    async with crib:
        await crib.services.agents.add("x", profile="read-only", workdir=tmp_path)
        yield CommandContext(
            crib=crib, request=RequestContext(OWNER, crib.projects.home), host=host, via=Via.SOCKET, emit=unexpected
        )


async def test_unusable_text_is_refused_with_the_name_of_the_field(context):
    tried = 0
    for text in REFUSED:
        for command, field, params, verbatim in calls(text):
            if verbatim and text is not SURROGATE:
                continue
            tried += 1
            with pytest.raises(UsageError) as caught:
                await registry.run(command, params, context)
            assert f"{field}: " in caught.value.message
            assert caught.value.message.isprintable()
    assert tried > 60 * len(REFUSED)


async def test_unusual_text_leads_to_a_result_or_a_toolcrib_error(context):
    tried = 0
    for text in ODD:
        for command, _, params, _ in calls(text):
            if command in STREAMS:
                continue
            tried += 1
            try:
                await registry.run(command, params, context)
            except ToolcribError as error:
                assert error.message
    assert tried > 60 * len(ODD)


async def test_a_folder_that_cannot_be_opened_is_refused(context, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / ("x" * 300), tmp_path / "loop" / "x"):
        with pytest.raises(UsageError, match="is not a folder"):
            agent_folder(path, None)
        with pytest.raises(UsageError, match="is not a folder"):
            job_folder(OWNER, None, tmp_path, str(path))


@pytest.mark.parametrize("root", ["/a\\u0000b", "x", "/" + "x" * 300])
async def test_an_invalid_root_is_refused_at_the_socket(root):
    with pytest.raises(UsageError, match="root: "):
        await _read_command(b'{"id":1,"method":"system:status","params":{},"root":"%s"}' % root.encode())
