"""The coding tools of a run: Read, Write, Edit, Bash, Glob, Grep, confined to one folder.

In: `CodingTools`. Out: `BuiltinTools`: offers for the model, and a way to call them. Models know the names and
parameters from Claude Code. The workspace does the work, with its file layer, its sandbox and the folder's settings.
`table` lists the six tools; `files` and `search` define their arguments and results.
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
    """They belong to no server."""
    answer: Callable[[str, Mapping[str, Any]], Awaitable[bytes]]
    """Returns an MCP result, also for errors."""
    check: Callable[[str, Mapping[str, Any]], None]
    """Raises `WorkspaceError` if the arguments do not fit."""

    def checked(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool gets them. Raises `InvalidArguments` if they do not fit."""
        given = _without_nulls(arguments)
        try:
            self.check(name, given)
        except WorkspaceError as error:
            raise InvalidArguments(error.message, remedy=error.remedy, data=error.data) from error
        return given

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        return read_result(await self.answer(name, _without_nulls(arguments)))


def _without_nulls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Null counts as omitted: with some providers, models fill in every argument."""
    return {key: value for key, value in arguments.items() if value is not None}


@contextlib.asynccontextmanager
async def coding_tools(choice: CodingTools) -> AsyncIterator[BuiltinTools]:
    """Raises `UsageError` if the folder cannot be used, and `ConfigError` if its settings are invalid."""
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
    """Imported in a thread, and only for runs with coding tools: the first import is slow."""
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
