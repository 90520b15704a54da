"""Catalog and caller → the bytes of tools/list, made once and kept."""

from toolcrib.listing.full import Listings

__all__ = ["Listings"]
