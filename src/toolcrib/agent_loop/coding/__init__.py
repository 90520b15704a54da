"""The coding tools of a run: Read, Write, Edit, Bash, Glob, Grep, confined to one folder.

In: `CodingTools`. Out: `BuiltinTools`: offers for the model, and a way to call them. Names and parameters are those
that models know from Claude Code; the workspace does the work, with its file layer and its sandbox, under the settings
of the folder. `table` lists the six, `files` and `search` say what each takes and how it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from toolcrib.agent_loop.options import CodingAccess, CodingTools
from toolcrib.catalog.names import Names
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.tool import Tool, decode_definition
from toolcrib.core.results import Result, read_result
from toolcrib.errors import InvalidArguments, UnknownTool, WorkspaceError

if TYPE_CHECKING:
    from toolcrib.workspace import Workspace
    from toolcrib.workspace.session import WorkspaceSession

__all__ = ["BuiltinTools", "coding_tools"]


@dataclass(frozen=True, kw_only=True)
class BuiltinTools:
    offers: tuple[OfferedTool, ...] = ()
    """Of no server."""
    answer: Callable[[str, Mapping[str, Any]], Awaitable[bytes]]
    """An MCP result; what goes wrong is one too."""
    check: Callable[[str, Mapping[str, Any]], None]
    """Raises `WorkspaceError` where the arguments do not fit."""

    def checked(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What a call means; `InvalidArguments` where it does not fit."""
        given = _without_nulls(arguments)
        try:
            self.check(name, given)
        except WorkspaceError as error:
            raise InvalidArguments(error.message, remedy=error.remedy, data=error.data) from error
        return given

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        return read_result(await self.answer(name, _without_nulls(arguments)))


def _without_nulls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An argument that is null counts as left out: some providers have models fill in all of them."""
    return {key: value for key, value in arguments.items() if value is not None}


@contextlib.asynccontextmanager
async def coding_tools(choice: CodingTools) -> AsyncIterator[BuiltinTools]:
    """Raises `UsageError` where the folder cannot be worked in, and `ConfigError` where its settings cannot be used."""
    if choice.allowed is CodingAccess.NONE:
        yield BuiltinTools(answer=_nothing, check=_none)
        return
    open_tools = await asyncio.to_thread(_loaded)
    workspace, session = open_tools(choice)
    offers = tuple(map(_offer, workspace.tools))
    if any(workspace.runs_code(offer.name) for offer in offers):
        workspace.start()

    async def answer(name: str, arguments: Mapping[str, Any]) -> bytes:
        return await workspace.call(name, arguments, session=session)

    try:
        yield BuiltinTools(offers=offers, answer=answer, check=workspace.check)
    finally:
        await workspace.close()


def _loaded() -> Callable[[CodingTools], tuple[Workspace, WorkspaceSession]]:
    """Only for a run that has these tools: it takes a moment the first time, and so a thread."""
    from toolcrib.agent_loop.coding.table import open_coding_workspace  # noqa: PLC0415

    return open_coding_workspace


def _offer(definition: bytes) -> OfferedTool:
    name, fields = decode_definition(definition)
    names = Names(plain=name, mcp=name, server=name, display=name)
    tool = Tool(server="", name=name, fields=fields, names=names, trusted=True)
    return OfferedTool(tool=tool, name=name, description=tool.description, schema=tool.input_schema)


def _none(name: str, _: Mapping[str, Any]) -> NoReturn:
    raise UnknownTool(f"There is no tool {name!r}: this run has no coding tools.")


async def _nothing(name: str, arguments: Mapping[str, Any]) -> bytes:
    _none(name, arguments)
