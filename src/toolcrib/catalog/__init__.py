"""The tools that servers list, as an immutable `Catalog`.

In: raw definitions by server. Out: tools with public names, found by any of them; arguments checked against their
schemas. Used by `policy`, `listing` and `calls`; uses `servers` and `config`.
"""

from toolcrib.catalog.names import GATEWAY_LIMIT, Names
from toolcrib.catalog.snapshot import Catalog, DefinitionsByServer
from toolcrib.catalog.tool import Tool

__all__ = ["GATEWAY_LIMIT", "Catalog", "DefinitionsByServer", "Names", "Tool"]
