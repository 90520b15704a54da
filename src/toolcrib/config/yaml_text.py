"""YAML text → a tree of nodes with their places → data.

In: text from outside. Out: `Node`s (for `yaml_edit`) and `Parsed` (for everybody else), or `Unreadable`.
Only the library's event parser is used, so no tag can build anything and no nesting can exhaust the stack.
Plain words mean what they mean in JSON: `true`, `null` and JSON's numbers; `yes`, `0x10`, `22:22` or a
date are text. Anchors, aliases and `<<` work, within a limit on what they may come to.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any

from toolcrib.config.json_text import DEPTH_LIMIT, Parsed, Unreadable, too_deep
from toolcrib.config.model import KeyPath

NODE_LIMIT = 50_000
"""Values in one document, aliases counted as often as they are used."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_PLAIN_TAGS = (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "int", "float", "bool", "null")))


class Kind(enum.Enum):
    SCALAR = enum.auto()
    MAPPING = enum.auto()
    LIST = enum.auto()
    ALIAS = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Mark:
    line: int
    """Counted from zero, as columns and offsets are."""
    column: int
    offset: int


@dataclass(kw_only=True, eq=False)
class Node:
    """Equal only to itself: two places may hold the same value."""

    kind: Kind
    start: Mark
    end: Mark
    """Right after the last character that belongs to it."""
    value: Any = None
    """A scalar's value."""
    text: str = ""
    """A scalar's text, which is what it means as a key."""
    children: list[Node] = field(default_factory=list)
    """A list's items; a mapping's keys and values in turn; an alias's one target."""
    flow: bool = False
    plain: bool = False

    @property
    def pairs(self) -> list[tuple[Node, Node]]:
        return list(zip(self.children[::2], self.children[1::2], strict=True))


def parse_yaml(text: str) -> Parsed:
    root = parse_nodes(text)
    parsed = Parsed()
    if root:
        parsed.data = _Unfolding(parsed).value(root, (), 0)
    return parsed


def parse_nodes(text: str) -> Node | None:
    """None for a text without a document."""
    import yaml  # noqa: PLC0415 - start-up must not pay for it when no YAML file exists

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event, type(event).__name__)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(
            found=f"a mistake: {error.problem or error.context}", expected="YAML", line=mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Unreadable(found="characters that YAML does not allow", expected="YAML") from None
    return builder.root


def _mark(mark: Any) -> Mark:
    return Mark(line=mark.line, column=mark.column, offset=mark.index)


class _Builder:
    """Takes the parser's events one by one; its stack is a list, so depth costs nothing."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Node] = []
        self._anchors: dict[str, Node] = {}
        self._count = 0

    def take(self, event: Any, kind: str) -> None:
        match kind:
            case "DocumentStartEvent":
                if self.root is not None:
                    raise Unreadable(found="a second document", expected="one", line=event.start_mark.line + 1)
            case "MappingStartEvent":
                self._begin(event, Kind.MAPPING)
            case "SequenceStartEvent":
                self._begin(event, Kind.LIST)
            case "MappingEndEvent" | "SequenceEndEvent":
                node = self._open.pop()
                # A block ends, for the parser, where the next thing begins; ours ends with its last child.
                node.end = _mark(event.end_mark) if node.flow else (node.children or [node])[-1].end
            case "ScalarEvent":
                self._place(_scalar(event), event)
            case "AliasEvent":
                self._alias(event)

    def _begin(self, event: Any, kind: Kind) -> None:
        if event.tag not in _PLAIN_TAGS:
            raise _strange_tag(event)
        if len(self._open) >= DEPTH_LIMIT:
            raise too_deep(event.start_mark.line + 1)
        node = Node(kind=kind, start=_mark(event.start_mark), end=_mark(event.end_mark), flow=bool(event.flow_style))
        self._place(node, event)
        self._open.append(node)

    def _alias(self, event: Any) -> None:
        target = self._anchors.get(event.anchor)
        line = event.start_mark.line + 1
        if target is None:
            raise Unreadable(found="an alias without its anchor", expected="an anchor before it", line=line)
        if target in self._open:
            raise Unreadable(found="an alias inside what it names", expected="data that ends", line=line)
        node = Node(kind=Kind.ALIAS, start=_mark(event.start_mark), end=_mark(event.end_mark), children=[target])
        self._place(node, None)

    def _place(self, node: Node, event: Any) -> None:
        self._count += 1
        if self._count > NODE_LIMIT:
            raise _too_many()
        if event is not None and event.anchor:
            self._anchors[event.anchor] = node
        if self._open:
            self._open[-1].children.append(node)
        else:
            self.root = node


def _scalar(event: Any) -> Node:
    plain = event.style in (None, "") and event.tag is None
    if event.tag not in _PLAIN_TAGS and event.tag not in _TEXT_TAGS:
        raise _strange_tag(event)
    text = str(event.value)
    value: Any = text
    if plain or (event.tag is not None and event.tag not in _TEXT_TAGS):
        value = _plain_value(text)
    return Node(
        kind=Kind.SCALAR,
        start=_mark(event.start_mark),
        end=_mark(event.end_mark),
        value=value,
        text=text,
        plain=plain,
    )


def _plain_value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _strange_tag(event: Any) -> Unreadable:
    return Unreadable(
        found="a tag that asks for more than plain data",
        expected="text, numbers, lists and mappings",
        line=event.start_mark.line + 1,
    )


def _too_many() -> Unreadable:
    return Unreadable(found=f"more than {NODE_LIMIT} values", expected="fewer; aliases count each time they are used")


class _Unfolding:
    """Nodes → data; here an alias costs what it stands for."""

    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._count = 0

    def value(self, node: Node, path: KeyPath, depth: int) -> Any:
        self._count += 1
        if self._count > NODE_LIMIT:
            raise _too_many()
        if depth > DEPTH_LIMIT:
            raise too_deep(node.start.line + 1)
        self._parsed.lines.setdefault(path, node.start.line + 1)
        match node.kind:
            case Kind.SCALAR:
                return node.value
            case Kind.ALIAS:
                return self.value(node.children[0], path, depth)
            case Kind.LIST:
                return [self.value(item, (*path, position), depth + 1) for position, item in enumerate(node.children)]
            case Kind.MAPPING:
                return self._mapping(node, path, depth)

    def _mapping(self, node: Node, path: KeyPath, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.pairs:
            line = key_node.start.line + 1
            named = key_node.children[0] if key_node.kind is Kind.ALIAS else key_node
            if named.kind is not Kind.SCALAR:
                raise Unreadable(found="a key that is no text", expected="text before the colon", line=line)
            key = named.text
            here = (*path, key)
            if key in own:
                self._parsed.duplicates.append((here, line))
                continue
            self._parsed.lines.setdefault(here, line)
            value = self.value(value_node, here, depth + 1)
            if key == "<<" and named.plain:
                merged = self._merge(value, merged, line)
            else:
                own[key] = value
        return {**merged, **own}

    def _merge(self, value: Any, merged: dict[str, Any], line: int) -> dict[str, Any]:
        sources = value if isinstance(value, list) else [value]
        for source in sources:
            if not isinstance(source, dict):
                raise Unreadable(found="<< before something else", expected="a mapping after <<", line=line)
            merged = {**source, **merged}
        return merged
