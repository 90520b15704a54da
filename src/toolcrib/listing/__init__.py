"""The tools that an agent is shown, in the listing mode that suits it.

In: a catalog, a permission and a mode. Out: the bytes of tools/list (`cache`).
"""

from toolcrib.listing.cache import ORIGIN_KEY, ListingCache, OfferList, ToolOrigin

__all__ = ["ORIGIN_KEY", "ListingCache", "OfferList", "ToolOrigin"]
