"""Catalog and caller → the bytes of tools/list, made once and kept."""

from toolcrib.listing.full import SOURCE, Listings, Reader, ToolSource

__all__ = ["SOURCE", "Listings", "Reader", "ToolSource"]
