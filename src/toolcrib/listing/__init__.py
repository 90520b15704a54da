"""The tools that an agent is shown, in the listing mode that suits it.

In: a catalog, a permission and a mode. Out: the bytes of tools/list (`cache`), search results (`search`).
"""

from toolcrib.listing.cache import ORIGIN_KEY, ListingCache, OfferList, ToolOrigin
from toolcrib.listing.gateway_tools import NAMED_GATEWAY_TOOLS, GatewayTool, listed_name
from toolcrib.listing.modes import wanted_mode

__all__ = [
    "NAMED_GATEWAY_TOOLS",
    "ORIGIN_KEY",
    "GatewayTool",
    "ListingCache",
    "OfferList",
    "ToolOrigin",
    "listed_name",
    "wanted_mode",
]
