"""The book: who took what. Entries in; a chain of rows that cannot be changed unseen out.

`AuditLog` is loaded when it is first used: an `Entry` alone must not cost the import of a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.audit.log import AuditLog

__all__ = ["AuditLog"]


def __getattr__(name: str) -> Any:
    if name == "AuditLog":
        from toolcrib.audit.log import AuditLog  # noqa: PLC0415

        return AuditLog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
