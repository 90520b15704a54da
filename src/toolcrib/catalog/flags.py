"""Signs that a tool's definition tries to deceive its reader: a model, or a person.

In: a definition's bytes, or the names of tools. Out: short reasons for people. These are heuristics: a reason is a
hint to read the definition, and a definition without one is not proven harmless. `core.pins` computes them when a
server's definitions change.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_USER = r"(?:the |your )?(?:human|end[- ]?user|user|person|operator)s?\b"
_TEXTS: tuple[tuple[str, str, str], ...] = (
    (
        "ignore disregard forget override bypass",
        r"\b(?:ignore|disregard|forget|override|bypass)\s+(?:\w+\s+){0,3}?"
        r"(?:previous|prior|above|earlier|preceding|system|safety|developer)\s+(?:\w+\s+)?"
        r"(?:instruction|prompt|rule|message|guideline|polic|direction|context)",
        "tells the model to ignore its instructions",
    ),
    (
        "< [",
        r"<\s*/?\s*(?:important|system|secret|hidden|admin|assistant|developer|sys|inst|instructions?)\s*>"
        r"|\[/?INST\]|<\|im_(?:start|end)\|>|<<SYS>>",
        "has a tag that imitates a system prompt",
    ),
    (
        "tell inform notify mention alert warn hide conceal keep",
        rf"\b(?:do not|don't|never|must not|should not|without|avoid)\s+(?:\w+\s+){{0,2}}?"
        rf"(?:tell(?:ing)?|inform(?:ing)?|notify(?:ing)?|mention(?:ing)?|alert(?:ing)?|warn(?:ing)?)\s+"
        rf"(?:\w+\s+){{0,4}}?(?:to\s+)?{_USER}"
        rf"|\b(?:hide|conceal|keep)\s+(?:this|it|that)\s+(?:secret\s+)?from\s+{_USER}",
        "asks the model to hide something from the user",
    ),
    (
        ".ssh id_ .aws .gnupg .netrc .npmrc .kube .docker .cursor .claude .env gcloud /etc/ _config.json mcp.json",
        r"\b(?:read|open|cat|load|fetch|send|include|pass|attach|upload|copy|contents? of|reading|loading)\b"
        r"[^.\n]{0,60}?(?:(?:~|\$HOME|/root|/home/\w+|%USERPROFILE%)[/\\]\.\w|\.ssh[/\\]|\bid_(?:rsa|ed25519|ecdsa)\b"
        r"|\.aws[/\\]credentials|/etc/(?:passwd|shadow|sudoers)\b|\b(?:claude_desktop_config|mcp)\.json\b)",
        "tells the model to read a file that holds secrets",
    ),
    (
        "before",
        r"\bbefore\s+(?:using|calling|invoking|running|executing)\s+(?:this|any|another|other|the other)\s+tools?\b"
        r"[^.]{0,60}?\b(?:read|open|cat|send|fetch|load|include|pass)\b"
        r"|\b(?:always|must)\s+(?:call|use|run|invoke)\s+this\s+(?:tool\s+)?(?:first\s*,?\s*)?"
        r"before\s+(?:any|all|every)\s+(?:other\s+)?tools?\b",
        "tells the model what to do before other tools",
    ),
    (
        "prompt conversation chat key",
        r"\b(?:send|forward|upload|post|transmit|exfiltrate|leak|bcc|copy|include|pass)\s+(?:\w+\s+){0,5}?"
        r"(?:system prompt|(?:whole|entire|full|complete)\s+(?:conversation|chat)|(?:conversation|chat)\s+history"
        r"|private keys?|ssh keys?)",
        "asks for the conversation or for secrets",
    ),
)
"""Words of which the text must contain one, which is quicker to check; the pattern; the reason."""
_SUSPECT = tuple((words.split(), re.compile(pattern, re.IGNORECASE), reason) for words, pattern, reason in _TEXTS)
_FAR_AWAY = re.compile(r"(?<!\s)\s{100}")

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
    # Joiners belong between letters or emoji that are not ASCII, selectors after a single such character.
    "|(?:^|[\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?:$|[\x00-\x7f])|[\ufe00-\ufe0d]|[\ufe0e\ufe0f]{2}"
    "|(?:^|[A-Za-z\\s])[\ufe0e\ufe0f]"
)
_SEARCHED = 50_000
"""Characters of a definition. More would block other work for long; real definitions have at most some thousands."""
_PROSE = frozenset({"description", "title", "instructions", "examples", "default", "enum", "const", "$comment"})
"""The keys of a definition whose texts a model reads as prose."""


_SENTENCES = re.compile(r"[.\n]")
_ORDERS = re.compile(
    r"\b(?:always|must|never|before|instead|first|whenever|every time|is (?:called|used|invoked|available))\b",
    re.IGNORECASE,
)
_COMPOUND_NAME = re.compile(r"\b[A-Za-z][a-z0-9]*(?:[_-]\w+|[A-Z]\w*)")


@dataclass(frozen=True, kw_only=True)
class InspectedTexts:
    flags: tuple[str, ...]
    """The reasons to look at the definition, in alphabetical order."""
    ordered: frozenset[str]
    """Words like names of tools, in sentences that say when to use them. No reason if they are the server's own."""


def inspect(definition: bytes) -> InspectedTexts:
    try:
        decoded = json.loads(definition)
    except (ValueError, RecursionError):
        # It has a number that Python cannot represent; the texts are still searched.
        decoded = {"description": definition.decode(errors="replace")}
    texts = tuple(_texts(decoded))
    found = {_hidden(text) for _, text in texts if not (text.isascii() and text.isprintable())}
    prose = "\n".join(text for key, text in texts if key in _PROSE)
    if len(prose) > _SEARCHED:
        found.add(f"has more than {_SEARCHED:,} characters of text, so not all of it was searched")
        prose = prose[:_SEARCHED]
    lower = prose.lower()
    for words, pattern, reason in _SUSPECT:
        if any(word in lower for word in words) and pattern.search(prose):
            found.add(reason)
    if _FAR_AWAY.search(prose):
        found.add("hides text behind a long empty space")
    return InspectedTexts(flags=tuple(sorted(found - {""})), ordered=frozenset(_ordered(prose)))


def _ordered(prose: str) -> Iterator[str]:
    if _ORDERS.search(prose) and _COMPOUND_NAME.search(prose):
        for sentence in _SENTENCES.split(prose):
            if _ORDERS.search(sentence):
                yield from _COMPOUND_NAME.findall(sentence)


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """All texts, each with the key that it is under; keys are texts too. Definitions are limited in depth."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        key, one = left.pop()
        if isinstance(one, str):
            yield key, one
        elif isinstance(one, Mapping):
            for name, inner in one.items():
                yield "", name
                left.append((name, inner))
        elif isinstance(one, list):
            left += [(key, inner) for inner in one]


def _hidden(text: str) -> str:
    if "\x1b" in text or "\x9b" in text:
        return "contains terminal escape codes"
    found = (_CONTROL if text.isascii() else _HIDDEN).search(text)
    if found is None:
        return ""
    character = next(c for c in found[0] if not c.isascii() or not c.isprintable())
    return f"contains invisible characters (U+{ord(character):04X})"


_LIKE = str.maketrans(
    "аеорсухіјѕһԁԛԝӏвкмнтгαγικνορυχωτεβηζϲϳօսհոցզքıɑɡɩɪɴʀʏʙʜʟ",
    "aeopcyxijshdqwlbkmhtrayikvopuxwtebnzcjouhngqpiagiinrybhl",
)
"""Letters of other scripts, and the Latin letter that each looks like, after case is folded."""


def skeleton(name: str) -> str:
    """The same for all names that look alike: case, accents, width and look-alike letters make no difference."""
    plain = name.casefold()
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", plain).casefold())
        plain = "".join(c for c in plain if unicodedata.category(c)[0] != "M" and c.isprintable()).translate(_LIKE)
    return plain.replace("0", "o").replace("1", "l").replace("|", "l").replace("rn", "m").replace("vv", "w")


def look_alikes(names: Iterable[str]) -> dict[str, str]:
    """The names that look like another one of these without being the same, each with the other one."""
    by_look: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        by_look.setdefault(skeleton(name), []).append(name)
    found: dict[str, str] = {}
    for alike in by_look.values():
        for name in alike:
            others = [other for other in alike if other.casefold() != name.casefold()]
            if others:
                found[name] = min(others, key=lambda other: (not other.isascii(), other))
    return found
