"""Catalog and permission → the bytes of tools/list, made once and kept."""

from toolcrib.listing.full import ORIGIN_KEY, Listings, ToolOrigin

__all__ = ["ORIGIN_KEY", "Listings", "ToolOrigin"]
