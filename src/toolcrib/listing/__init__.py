"""The tools that an agent is shown, in the listing mode that suits it.

In: a catalog, a permission and a mode. Out: the bytes of tools/list (`cache`), search results (`search`).
"""

from toolcrib.listing.cache import ORIGIN_KEY, ListingCache, OfferList, ToolOrigin
from toolcrib.listing.modes import wanted_mode
from toolcrib.listing.own_tools import OWN_TOOLS, OwnTool

__all__ = ["ORIGIN_KEY", "OWN_TOOLS", "ListingCache", "OfferList", "OwnTool", "ToolOrigin", "wanted_mode"]
