"""What a server's question may contain: its texts, a form's fields, the address of a page.

In: what a server sent. Out: why it is refused, or an empty text; text that displays as what it is. `questions` refuses
a question for these reasons.

The specification forbids forms that ask for "secrets and credentials that grant access or authorize transactions". A
server that wants to deceive can ask for one in other words; these checks stop those that don't know the rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from toolcrib.config.masking import printable

LONGEST_MESSAGE = 16 * 1024
LONGEST_ADDRESS = 8 * 1024
LARGEST_FORM = 64 * 1024
MAX_FIELDS = 100

_DECEPTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
"""Control characters, also those that begin a terminal's escape sequences, and characters that reverse or hide text.
Joiners stay, because emoji and some languages need them."""
_LIKE_OURS = re.compile(r"(?im)^(?=\W*(?:server|toolcrib)\b)")
"""A line that could be taken for a question of another server, or for ours."""


def displayable(text: str) -> str:
    """The text with escapes for characters that deceive."""
    return _DECEPTIVE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def quoted(text: Any) -> str:
    """A server's message, to follow our own words."""
    if not isinstance(text, str):
        return ""
    shown = displayable(text[:LONGEST_MESSAGE].replace("\r\n", "\n")) + ("…" if len(text) > LONGEST_MESSAGE else "")
    first, *others = shown.split("\n")
    return "\n".join([first, *(_LIKE_OURS.sub("> ", line) for line in others)])


def form_fault(schema: Any) -> str:
    """Why a form is refused; empty if it is not."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return "it has no fields"
    fields: dict[str, Any] = schema["properties"]
    if len(fields) > MAX_FIELDS or len(msgspec.json.encode(schema)) > LARGEST_FORM:
        return f"it has more than {MAX_FIELDS} fields or {LARGEST_FORM // 1024} KB"
    if schema.get("type") != "object" or any(_nests(key, schema[key]) for key in schema.keys() - {"properties"}):
        return "it is not a flat object, as the specification requires"
    for name, field in fields.items():
        shown = repr(printable(name))[:80]
        if not isinstance(field, dict) or any(_nests(key, value) for key, value in field.items()):
            return f"its field {shown} is not a text, number, boolean or choice, as the specification requires"
        if any(map(_DECEPTIVE.search, (name, *_fixed_texts(field)))):
            return f"its field {shown} contains control characters"
    return ""


def wanted_secret(schema: Mapping[str, Any], message: Any) -> str:
    """Where a form without a fault asks for a secret; empty if it does not."""
    for name, field in schema["properties"].items():
        if _is_for_secret(name, field):
            return f"its field {repr(printable(name))[:80]} is for a secret"
    if any(map(_takes_text, schema["properties"].values())) and _WANTED.search(_wishes(message)):
        return "its message asks for a secret"
    return ""


def shown_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A form whose labels display as what they are. Its names and values stay as they are."""
    fields = {name: _labels_shown(field) for name, field in schema["properties"].items()}
    return {**_labels_shown(schema), "properties": fields}


_LABELS = ("title", "description")


def _labels_shown(part: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: displayable(value) if key in _LABELS and isinstance(value, str) else value for key, value in part.items()
    }


def _nests(key: str, value: Any) -> bool:
    """Whether this keyword of a schema may hide a field. Choices are lists of plain values or of constants."""
    if key in _CHOICES and isinstance(value, list):
        return any(
            isinstance(one, dict) and any(isinstance(part, dict | list) for part in one.values()) for one in value
        )
    if key == "items":
        return not isinstance(value, dict) or any(_nests(inner, part) for inner, part in value.items())
    if key == "default" or key.startswith("x-"):
        return False
    return key in _REFERENCES or isinstance(value, dict) or (isinstance(value, list) and not all(map(_is_plain, value)))


_CHOICES = frozenset({"enum", "oneOf", "anyOf"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "allOf", "not", "if", "then", "else"})


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _fixed_texts(field: Mapping[str, Any]) -> Iterator[str]:
    """Texts that the server gets back as they are."""
    for key, value in field.items():
        if key in _LABELS:
            continue
        for one in value if isinstance(value, list) else [value]:
            yield from (part for part in (one.values() if isinstance(one, dict) else [one]) if isinstance(part, str))


def _takes_text(field: Mapping[str, Any]) -> bool:
    """Whether a person can enter something of their own that could be a secret."""
    return field.get("type") != "boolean" and not _is_choice(field)


def _is_choice(field: Mapping[str, Any]) -> bool:
    if field.get("type") == "array":
        items = field.get("items")
        return isinstance(items, dict) and _is_choice(items)
    if "const" in field or isinstance(field.get("enum"), list):
        return True
    options = field.get("oneOf", field.get("anyOf"))
    return isinstance(options, list) and all(
        isinstance(one, dict) and {"const", "enum"} & one.keys() for one in options
    )


def _is_for_secret(name: str, field: Mapping[str, Any]) -> bool:
    if not _takes_text(field):
        return False
    if str(field.get("format")).lower() == "password" or field.get("writeOnly") is True:
        return True
    names = [_AMOUNT.sub("", _words(text)) for text in (name, field.get("title"))]
    if field.get("type") in ("integer", "number"):
        # A number of tokens.
        names = [re.sub(r"\btokens?\b", "", text) for text in names]
    about = _wishes(field.get("description"))
    return any(map(_NAMED.search, names)) or bool(_WANTED.search(about) or _DESCRIBED.search(about))


def _folded(text: str) -> str:
    """Without accents, invisible characters and special forms of letters."""
    kept = (one for one in unicodedata.normalize("NFKD", text) if unicodedata.category(one) not in ("Mn", "Cf"))
    return "".join(kept)


_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _words(text: Any) -> str:
    if not isinstance(text, str):
        return ""
    return re.sub(r"[\W_]+", " ", _CASE.sub(" ", _folded(text[:LONGEST_MESSAGE]))).lower().strip()


def _wishes(text: Any) -> str:
    """The words of a text. "Do not enter your PIN" asks for no PIN."""
    return _UNWANTED.sub("without", _words(text))


_FOREIGN = "passwort kennwort contrasena senha wachtwoord haslo heslo parola пароль 密码 密碼 パスワード 비밀번호"
_SECRET = (
    r"(?:[a-z0-9]*(?:password|passwd|passphrase|passcode)s?|pass (?:word|phrase|code)s?|pwd|mot de passe"
    r"|(?:client |shared )?secrets?|credentials?"
    r"|(?:api|private|access|secret|signing|encryption|licen[sc]e|ssh|pgp|gpg|account|service|webhook) ?keys?|apikeys?"
    r"|(?:access|auth|api|bearer|refresh|session|id|security|csrf)?tokens?|jwt|session cookie|auth(?:orization)? header"
    r"|cvv2?|cvc2?|(?:credit |debit )?card ?(?:number|no)|pin(?: codes?)?|otp|totp|2fa|mfa"
    r"|(?:verification|authentication|authenticator|authorization|auth|two factor|sms|login|recovery|backup|security"
    r"|one ?time|access|2fa|mfa|otp|unlock) codes?|(?:seed|recovery|mnemonic) ?(?:phrase|words)|mnemonic|ssn"
    r"|social security (?:number|no)|" + "|".join(_folded(word) for word in _FOREIGN.split()) + r")(?![a-z])"
)
_NOT_ITSELF = (
    r"(?! (?:names?|ids?|types?|counts?|limits?|budgets?|usage|used|left|managers?|stores?|vaults?|path|file|folder"
    r"|scopes?|length|policy|rules|expiry|expiration|expires|lifetime|ttl|age|rotation|symbols?|address|contract|pair|price|standard"
    r"|format|algorithm|provider|hint|reset|santa|number|mode|board|label|description|prefix|url|location|reference)\b)"
)
_AMOUNT = re.compile(r"\b(?:max|maximum|min|minimum|total|num|number of) (?:[a-z]+ )?tokens\b")
_NAMED = re.compile(rf"(?<![a-z0-9]){_SECRET}{_NOT_ITSELF}")
_LEADING = r"(?: (?!for|of|to|with|about|if|whether|or|from|in|on|using|than|without)[a-z0-9]+){0,4}?"
_VERB = (
    r"(?:enter|type|paste|provide|supply|give|input|insert|submit|share|what is|what s|needs?|requires?|confirm|tell)"
)
_UNWANTED = re.compile(rf"\b(?:not|never|don t) (?:{_VERB} or )?{_VERB}\b")
_WANTED = re.compile(rf"\b{_VERB}(?: in)?{_LEADING} {_SECRET}{_NOT_ITSELF}")
_DESCRIBED = re.compile(rf"^(?:your|the|an?|my|new|current|old)?{_LEADING} ?\b{_SECRET}{_NOT_ITSELF}")


def address_fault(url: Any) -> str:
    """Why an address is refused; empty if it is not."""
    if not isinstance(url, str) or len(url) > LONGEST_ADDRESS or not host_of(url):
        return "it is not a plain http:// or https:// URL"
    return ""


_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9._])?|[0-9a-f:.]*:[0-9a-f:.]*")


def host_of(url: str) -> str:
    """The host that a URL leads to, in ASCII; empty if it is no http(s) URL with only a host before its path."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return ""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    plain = parts.scheme in ("http", "https") and "@" not in parts.netloc and _HOST.fullmatch(host)
    return host if plain else ""


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def caution(url: str) -> str:
    """What a person should know about an address besides its host."""
    host = host_of(url)
    if "xn--" in host:
        return " (check this name: it contains other letters than it seems to)"
    return "" if url.lower().startswith("https:") or host in _LOOPBACK else " (without encryption)"
