"""Text without the secrets that Toolcrib knows, in whatever dress they come.

In: a text. Out: the same with stars for known values, for their JSON, URL and base64 forms, and for what looks like a
secret. The book writes nothing that did not pass here; `approvals` shows nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, Self
from urllib.parse import quote, quote_plus

from toolcrib.config.redact import HIDDEN, mask_text, mask_tokens, tells_a_secret

_SHORTEST_FORM = 6
"""Characters: a shorter piece of base64 stands in texts that have nothing to do with the secret."""
_REMEMBERED = 4096
_REMEMBERED_LENGTH = 200


class Redactor:
    """Used by several threads: what one of them learns must not meet what another has masked without knowing it."""

    def __init__(self, values: Callable[[], frozenset[str]]) -> None:
        self._values = values
        self._mask = _Mask(frozenset())

    def __call__(self, text: str) -> str:
        return self._today()(text)

    def known(self, text: str) -> str:
        """Only what is known to be a secret is hidden; the rest stays as it is, character by character."""
        return mask_tokens(self._today().without_known(text))

    def _today(self) -> _Mask:
        values = self._values()
        mask = self._mask
        if values is not mask.values:
            mask = self._mask = _Mask(values, mask)
        return mask


class _Mask:
    """For one set of values, which never changes.

    Names of agents, tools and rules come again and again: what was masked once is remembered.
    """

    def __init__(self, values: frozenset[str], before: Self | None = None) -> None:
        self.values = values
        self._forms: tuple[str, ...] = ()
        self._masked: dict[str, str] = {}
        if before is not None and before.values == values:
            self._forms, self._masked = before._forms, before._masked
            return
        forms = {form for value in values if value for form in _forms(value)}
        # The longest first: a form may be part of another.
        self._forms = tuple(sorted(forms, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        masked = self._masked.get(text)
        if masked is None:
            masked = self._hide(text)
            if len(text) <= _REMEMBERED_LENGTH:
                if len(self._masked) >= _REMEMBERED:
                    self._masked = {}
                self._masked[text] = masked
        return masked

    def _hide(self, text: str) -> str:
        return mask_text(self.without_known(text))

    def without_known(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text


def _forms(value: str) -> Iterator[str]:
    yield value
    # A surrogate has no bytes, and so no other form.
    data = value.encode(errors="ignore")
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    for quoted in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield quoted
        yield _lower_escapes(quoted)
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        # What stands before it in the encoded text shifts it by one or two bytes; the pieces at both ends that
        # depend on the neighbours are left out.
        for shift, first in ((0, 0), (1, 2), (2, 3)):
            encoded = alphabet(bytes(shift) + data).decode().rstrip("=")
            whole = len(encoded) if (shift + len(data)) % 3 == 0 else len(encoded) - 1
            if whole - first >= _SHORTEST_FORM:
                yield encoded[first:whole]


def _lower_escapes(quoted: str) -> str:
    """`%2F` may as well be written `%2f`."""
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def redact_all(value: Any, redact: Callable[[str], str], name: str = "") -> Any:
    """A tree of plain JSON, its keys too; what stands under a telling name is hidden whatever it is."""
    if isinstance(value, dict):
        return {redact(str(key)): redact_all(inner, redact, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(inner, redact, name) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if name and tells_a_secret(name):
        return HIDDEN
    return redact(value) if isinstance(value, str) else value
