"""JSON and YAML text → data, with the line of every key and a list of duplicate keys.

In: untrusted text. Out: `ParsedText`, or `Unreadable` with the line; for YAML also a tree of nodes with their positions
(`YamlNode`), for `edit`. Only PyYAML's event parser is used, so tags can't create objects and deep nesting can't
exhaust the stack. Plain words have their JSON meaning: `true`, `null` and JSON's numbers; `yes`, `0x10`, `22:22` or a
date are text. Anchors, aliases and `<<` work, within a limit on the expanded size.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from toolcrib.config.model import KeyPath

DEPTH_LIMIT = 64


@dataclass(kw_only=True)
class ParsedText:
    """The result for both formats. The first value of a duplicate key is kept."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    duplicates: list[tuple[KeyPath, int]] = field(default_factory=list)
    """Each with the line of its second occurrence."""


class Unreadable(Exception):
    """The whole text is unusable."""

    def __init__(self, *, found: str, expected: str, line: int | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected
        self.line = line


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def parse_json(text: str) -> ParsedText:
    try:
        data = json.loads(text, object_pairs_hook=_first_wins, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Unreadable(
            found=f"a syntax error in column {error.colno}: {error.msg}", expected="JSON", line=error.lineno
        ) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError:
        # Python refuses to convert thousands of digits to a number.
        raise Unreadable(found="a number with too many digits", expected="JSON") from None
    parsed = ParsedText(data=data)
    _walk(text, parsed)
    return parsed


def too_deep(line: int | None = None) -> Unreadable:
    return Unreadable(
        found=f"more than {DEPTH_LIMIT} levels of nesting", expected=f"at most {DEPTH_LIMIT} levels", line=line
    )


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        result.setdefault(key, value)
    return result


def _no_constant(word: str) -> NoReturn:
    raise Unreadable(found=f"{word}, which is not a JSON number", expected="JSON")


@dataclass(kw_only=True)
class _Open:
    """An object or list that is not closed yet."""

    path: KeyPath
    keys: set[str] | None
    """None for a list."""
    position: int = 0
    key: str | None = None


def _walk(text: str, parsed: ParsedText) -> None:
    stack: list[_Open] = []
    line, counted = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        word = token[0]
        top = stack[-1] if stack else None
        if word in "]}":
            stack.pop()
        elif word == ",":
            if top and top.keys is None:
                top.position += 1
            elif top:
                top.key = None
        elif word != ":":
            if top and top.keys is not None and top.key is None:
                _enter_key(top, json.loads(word), line, parsed)
                continue
            path = _path_of(top)
            parsed.lines.setdefault(path, line)
            if word in "{[":
                if len(stack) >= DEPTH_LIMIT:
                    raise too_deep(line)
                stack.append(_Open(path=path, keys=set() if word == "{" else None))


def _enter_key(top: _Open, key: str, line: int, parsed: ParsedText) -> None:
    path = (*top.path, key)
    if top.keys is not None:
        if key in top.keys:
            parsed.duplicates.append((path, line))
        top.keys.add(key)
    top.key = key
    parsed.lines.setdefault(path, line)


def _path_of(top: _Open | None) -> KeyPath:
    if top is None:
        return ()
    return (*top.path, top.position if top.key is None else top.key)


NODE_LIMIT = 50_000
"""Values in one document; an alias counts each time it is used."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_PLAIN_TAGS = (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "int", "float", "bool", "null")))


class NodeKind(enum.Enum):
    SCALAR = enum.auto()
    MAPPING = enum.auto()
    LIST = enum.auto()
    ALIAS = enum.auto()


@dataclass(frozen=True, kw_only=True)
class TextPosition:
    line: int
    """Counted from zero, as columns and offsets are."""
    column: int
    offset: int


@dataclass(kw_only=True, eq=False)
class YamlNode:
    """Equal only to itself: two places may hold the same value."""

    kind: NodeKind
    start: TextPosition
    end: TextPosition
    """Right after the last character that belongs to it."""
    value: Any = None
    """A scalar's value."""
    text: str = ""
    """A scalar's text, which is what it means as a key."""
    children: list[YamlNode] = field(default_factory=list)
    """A list's items; a mapping's keys and values in turn; an alias's one target."""
    flow: bool = False
    plain: bool = False

    @property
    def pairs(self) -> list[tuple[YamlNode, YamlNode]]:
        return list(zip(self.children[::2], self.children[1::2], strict=True))


def parse_yaml(text: str) -> ParsedText:
    root = parse_nodes(text)
    parsed = ParsedText()
    if root:
        parsed.data = _Unfolding(parsed).value(root, (), 0)
    return parsed


def parse_nodes(text: str) -> YamlNode | None:
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
            found=f"a syntax error: {error.problem or error.context}",
            expected="YAML",
            line=mark.line + 1 if mark else None,
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Unreadable(found="characters that are invalid in YAML", expected="YAML") from None
    return builder.root


def _mark(mark: Any) -> TextPosition:
    return TextPosition(line=mark.line, column=mark.column, offset=mark.index)


class _Builder:
    """Builds nodes from the parser's events, with a list as its stack, so that nesting uses no recursion."""

    def __init__(self) -> None:
        self.root: YamlNode | None = None
        self._open: list[YamlNode] = []
        self._anchors: dict[str, YamlNode] = {}
        self._count = 0

    def take(self, event: Any, kind: str) -> None:
        match kind:
            case "DocumentStartEvent":
                if self.root is not None:
                    raise Unreadable(found="a second document", expected="one", line=event.start_mark.line + 1)
            case "MappingStartEvent":
                self._begin(event, NodeKind.MAPPING)
            case "SequenceStartEvent":
                self._begin(event, NodeKind.LIST)
            case "MappingEndEvent" | "SequenceEndEvent":
                node = self._open.pop()
                # For the parser, a block ends where the next token starts; a node ends with its last child.
                node.end = _mark(event.end_mark) if node.flow else (node.children or [node])[-1].end
            case "ScalarEvent":
                self._place(_scalar(event), event)
            case "AliasEvent":
                self._alias(event)

    def _begin(self, event: Any, kind: NodeKind) -> None:
        if event.tag not in _PLAIN_TAGS:
            raise _strange_tag(event)
        if len(self._open) >= DEPTH_LIMIT:
            raise too_deep(event.start_mark.line + 1)
        node = YamlNode(
            kind=kind, start=_mark(event.start_mark), end=_mark(event.end_mark), flow=bool(event.flow_style)
        )
        self._place(node, event)
        self._open.append(node)

    def _alias(self, event: Any) -> None:
        target = self._anchors.get(event.anchor)
        line = event.start_mark.line + 1
        if target is None:
            raise Unreadable(found="an alias without its anchor", expected="an anchor before it", line=line)
        if target in self._open:
            raise Unreadable(found="an alias inside its own anchor", expected="finite data", line=line)
        node = YamlNode(
            kind=NodeKind.ALIAS, start=_mark(event.start_mark), end=_mark(event.end_mark), children=[target]
        )
        self._place(node, None)

    def _place(self, node: YamlNode, event: Any) -> None:
        self._count += 1
        if self._count > NODE_LIMIT:
            raise _too_many()
        if event is not None and event.anchor:
            self._anchors[event.anchor] = node
        if self._open:
            self._open[-1].children.append(node)
        else:
            self.root = node


def _scalar(event: Any) -> YamlNode:
    plain = event.style in (None, "") and event.tag is None
    if event.tag not in _PLAIN_TAGS and event.tag not in _TEXT_TAGS:
        raise _strange_tag(event)
    text = str(event.value)
    value: Any = text
    if plain or (event.tag is not None and event.tag not in _TEXT_TAGS):
        value = _plain_value(text)
    return YamlNode(
        kind=NodeKind.SCALAR,
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
        found="a tag for something other than plain data",
        expected="text, numbers, lists and mappings",
        line=event.start_mark.line + 1,
    )


def _too_many() -> Unreadable:
    return Unreadable(found=f"more than {NODE_LIMIT} values", expected="fewer; aliases count each time they are used")


class _Unfolding:
    """Nodes → data; an alias counts as the values it expands to."""

    def __init__(self, parsed: ParsedText) -> None:
        self._parsed = parsed
        self._count = 0

    def value(self, node: YamlNode, path: KeyPath, depth: int) -> Any:
        self._count += 1
        if self._count > NODE_LIMIT:
            raise _too_many()
        if depth > DEPTH_LIMIT:
            raise too_deep(node.start.line + 1)
        self._parsed.lines.setdefault(path, node.start.line + 1)
        match node.kind:
            case NodeKind.SCALAR:
                return node.value
            case NodeKind.ALIAS:
                return self.value(node.children[0], path, depth)
            case NodeKind.LIST:
                return [self.value(item, (*path, position), depth + 1) for position, item in enumerate(node.children)]
            case NodeKind.MAPPING:
                return self._mapping(node, path, depth)

    def _mapping(self, node: YamlNode, path: KeyPath, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.pairs:
            line = key_node.start.line + 1
            named = key_node.children[0] if key_node.kind is NodeKind.ALIAS else key_node
            if named.kind is not NodeKind.SCALAR:
                raise Unreadable(found="a key that is not text", expected="text before the colon", line=line)
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
