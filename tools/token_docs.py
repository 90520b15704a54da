"""Generates the table of Toolcrib's own tools in `docs/listing.md`, with their tokens.

In: the definitions of the gateway tools, the commands that agents see, and the workspace tools. Out: Markdown on
stdout: `python tools/token_docs.py`. A test keeps the table in the page up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

from toolcrib.audit.row import count_tokens
from toolcrib.catalog.names import GATEWAY_LIMIT
from toolcrib.catalog.offers import OfferCatalog
from toolcrib.catalog.snapshot import Catalog
from toolcrib.catalog.tool import Tool, decode_definition
from toolcrib.commands.all import registry
from toolcrib.commands.builtin import CommandServer
from toolcrib.commands.registry import CommandHost
from toolcrib.config.model import COMMANDS, WORKSPACE, ListingMode, NameStyle
from toolcrib.identity.principal import CLIENT
from toolcrib.listing.gateway_tools import gateway_tool_definitions
from toolcrib.listing.thin import thin_definition
from toolcrib.workspace.settings.model import WorkspaceSettings
from toolcrib.workspace.tools import TOOLS, tool_definition


def tokens(definition: bytes) -> int:
    counted = count_tokens(definition)
    if counted is None or counted.estimated:
        sys.exit("Install the tokenizer: pip install rs-bpe")
    return counted.tokens


def rows() -> Iterator[tuple[str, int, int]]:
    """Name, tokens when full, tokens when thin."""
    for definition in gateway_tool_definitions(ListingMode.SEARCH, NameStyle.SERVER, (), OfferCatalog()):
        yield decode_definition(definition)[0], tokens(definition), tokens(definition)
    commands = CommandServer(registry, cast(CommandHost, None)).tools
    workspace = tuple(tool_definition(tool, WorkspaceSettings()) for tool in TOOLS)
    catalog = Catalog.build({COMMANDS: commands, WORKSPACE: workspace}, version=1, limit=GATEWAY_LIMIT)
    permission = CLIENT.permission()
    shown: list[Tool] = [tool for tool in catalog.tools if permission.shows(tool)]
    for tool in shown:
        name = tool.public(NameStyle.SERVER)
        yield name, tokens(tool.render(name)), tokens(thin_definition(tool, name))


def table() -> str:
    found = list(rows())
    lines = ["| tool | full | thin |", "|---|---|---|"]
    lines += [f"| `{name}` | {full} | {thin} |" for name, full, thin in found]
    lines.append(f"| all | {sum(full for _, full, _ in found):,} | {sum(thin for _, _, thin in found):,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
