"""The tools that an agent is shown, in the listing mode that suits it.

In: a catalog, a permission and a mode. Out: the bytes of tools/list (`cache`), search results (`search`).
"""

from toolcrib.listing.cache import ORIGIN_KEY, ListingCache, OfferList, ToolOrigin
from toolcrib.listing.modes import wanted_mode
from toolcrib.listing.gateway_tools import NAMED_GATEWAY_TOOLS, GatewayTool

__all__ = ["ORIGIN_KEY", "NAMED_GATEWAY_TOOLS", "ListingCache", "OfferList", "GatewayTool", "ToolOrigin", "wanted_mode"]
