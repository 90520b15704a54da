"""All resources, resource templates and prompts known at one moment.

In: each server's `Offers`, and the addresses of apps in its tools. Out: an immutable `OfferCatalog`, which finds the
server of an address, and a prompt by its name. Resources and prompts are `Tool`s of another kind, so that `policy` and
`calls` treat them alike. `core` builds it together with the `Catalog`.

An address stays as its server wrote it while only one server can mean it. Otherwise each server's gets a prefix:
`files+file:///a`, and `ui://map+view` for apps, because their hosts look for this scheme.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from toolcrib.catalog.names import Names, folded_name, name_tools
from toolcrib.catalog.tool import OfferKind, Tool
from toolcrib.config.model import RESERVED_SERVER_NAMES, NameStyle
from toolcrib.errors import UnknownOffer
from toolcrib.servers.model import LONGEST_ADDRESS, Offers

log = logging.getLogger(__name__)

_UI = "ui://"
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_IGNORED_BY_PARSERS = re.compile(r"^\s|\s$|[\x00-\x1f\x7f]")
"""What no address has, and parsers remove: `file:///a/.<tab>./b` would be another one for a rule than for a server."""
_SHOWN = 200


@functools.lru_cache(maxsize=1024)
def spellings(uri: str) -> frozenset[str]:
    """The address, and what a server may read in it: percent-encoding, dot segments, double slashes and backslashes
    resolved, with the host as a part of the path or not."""
    # A query is part of an address, except behind `..`, which may hide in front of it.
    return _spellings(uri, lambda one: (one, _address(one)) if _UP.search(_address(one)) else (one,))


@functools.lru_cache(maxsize=1024)
def loose_spellings(uri: str) -> frozenset[str]:
    """Also without what a server may ignore: a query, a fragment, line breaks, a final slash, a file's host."""
    found = _spellings(uri, lambda one: (one, _address(one)))
    for ignored, instead in _IGNORED:
        found |= {ignored.sub(instead, one) for one in found}
    return found


_ODD = re.compile(r"[%\\?#\s]|//|/\.|^\.|/$")
"""What makes an address have several spellings."""
_HOST_OF_FILE = re.compile(r"^file://[^/]", re.IGNORECASE)
_UP = re.compile(r"[/\\]\.\.")
_MOST_ENCODED = 5
_IGNORED = (
    (re.compile(r"[\t\r\n]"), ""),
    (re.compile(r"^file:/+", re.IGNORECASE), "file:///"),
    (re.compile(r"^file://[^/]*/+", re.IGNORECASE), "file:///"),
    (re.compile(r"(?<=[^/])/+$"), ""),
)


def _spellings(uri: str, parts: Callable[[str], Iterable[str]]) -> frozenset[str]:
    _, slashes, path = uri.partition("://")
    found = {uri}
    if slashes and not _ODD.search(path) and not _HOST_OF_FILE.match(uri):
        return frozenset(found)
    plain = uri
    for _ in range(_MOST_ENCODED + 1):
        for one in parts(plain):
            for slashed in {one, one.replace("\\", "/")}:
                for path in {slashed, _one_slash(slashed)}:
                    found |= {path, _without_dots(path, 0), _without_dots(path, 1)}
        encoded, plain = plain, unquote(plain)
        if plain == encoded:
            break
    return frozenset(found)


def _address(uri: str) -> str:
    """Without a query and a fragment."""
    return re.sub(r"[?#].*", "", uri, flags=re.DOTALL)


def _one_slash(uri: str) -> str:
    head, slashes, path = uri.partition("://")
    return f"{head}{slashes}{re.sub('//+', '/', path)}" if slashes else re.sub("//+", "/", head)


def _without_dots(uri: str, kept: int) -> str:
    """Resolves `.` and `..`, but no `..` removes the first `kept` segments."""
    head, slashes, path = uri.partition("://")
    if not slashes:
        head, path = "", uri
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[max(kept, len(parts) - 1) :]
        elif part != ".":
            parts.append(part)
    return f"{head}{slashes}{'/'.join(parts)}"


def with_server(uri: str, prefix: str) -> str:
    """The address with its server's prefix."""
    return f"{_UI}{prefix}+{uri[len(_UI) :]}" if uri.startswith(_UI) else f"{prefix}+{uri}"


def without_server(uri: str) -> tuple[str, str] | None:
    """The prefix of an address and the server's own address; None without a prefix."""
    if uri.startswith(_UI):
        prefix, plus, rest = uri[len(_UI) :].partition("+")
        return (prefix, f"{_UI}{rest}") if plus and "/" not in prefix else None
    prefix, plus, rest = uri.partition("+")
    return (prefix, rest) if plus and ":" not in prefix and "://" in rest else None


@functools.lru_cache(maxsize=4096)
def _fixed_parts(template: str) -> tuple[str, ...]:
    """The text between a template's expressions (RFC 6570)."""
    return tuple(_EXPRESSION.split(template))


def _describes(template: str, uri: str) -> bool:
    """Whether the address may be one of the template's. Takes linear time: an expression stands for any text."""
    first, *rest = _fixed_parts(template)
    if not rest:
        return uri == first
    *middle, last = rest
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    at, end = len(first), len(uri) - len(last)
    for part in middle:
        found = uri.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Offer:
    """A resource, a template or a prompt in a list."""

    tool: Tool
    shown_as: str
    """Its public name or address."""
    key: str
    """The member of the definition that has it."""

    def render(self) -> bytes:
        """The definition; all other values keep their bytes."""
        if bytes(self.tool.fields[self.key]) == msgspec.json.encode(self.shown_as):
            return self.tool.raw()
        return msgspec.json.encode({**self.tool.fields, self.key: Raw(msgspec.json.encode(self.shown_as))})


@dataclass(frozen=True, kw_only=True, eq=False)
class OfferCatalog:
    resources: tuple[Offer, ...] = ()
    templates: tuple[Offer, ...] = ()
    prompts: tuple[Offer, ...] = ()
    style: NameStyle = NameStyle.SERVER
    offers: Mapping[str, Offers] = field(default_factory=dict)
    """By server."""
    version: int = field(default_factory=itertools.count(1).__next__)
    """Different for each catalog of this process."""
    _apps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _shared: frozenset[str] = frozenset()
    """The addresses that are shown with their servers' prefixes."""
    _prefixes: Mapping[str, str] = field(default_factory=dict)
    _by_uri: Mapping[str, Offer] = field(default_factory=dict)
    _by_name: Mapping[str, Offer] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        offers: Mapping[str, Offers],
        apps: Mapping[str, frozenset[str]],
        *,
        style: NameStyle,
        limit: int,
        previous: OfferCatalog,
    ) -> Self | OfferCatalog:
        """`apps` has the addresses in the `_meta` of each server's tools; `style` and `limit` are for the names of
        prompts. The previous one if nothing has changed."""
        if previous.style is style and previous.offers == offers and previous._apps == apps:
            return previous
        prefixes = prefixes_of(offers)
        reused = {(one.tool.kind, one.tool.server, one.tool.raw()): one.tool for one in previous.everything()}
        read = _read("resources", "uri", offers, reused)
        shared = _shared((*read, *((server, uri) for server, uris in apps.items() for uri in uris)), prefixes)
        resources = _shown("uri", read, shared, prefixes, previous.resources)
        read_templates = _read("templates", "uriTemplate", offers, reused)
        unclear = _shared(read_templates, prefixes)
        templates = _shown("uriTemplate", read_templates, unclear, prefixes, previous.templates)
        prompts = _as_before(_prompts(offers, style, limit, reused), previous.prompts)
        return cls(
            style=style,
            resources=resources,
            templates=templates,
            prompts=prompts,
            offers=dict(offers),
            _apps=dict(apps),
            _shared=shared,
            _prefixes={prefix: server for server, prefix in prefixes.items()},
            _by_uri={one.shown_as: one for one in resources},
            _by_name={
                name: one
                for one in prompts
                for name in (
                    f"{one.tool.server}:{one.tool.name}",
                    one.tool.display,
                    *(folded_name(one.tool.names.of(style)) for style in NameStyle),
                )
            },
        )

    def everything(self) -> Iterable[Offer]:
        return (*self.resources, *self.templates, *self.prompts)

    @functools.cached_property
    def by_server(self) -> Mapping[str, tuple[Tool, ...]]:
        """Everything that is listed, by server."""
        found: dict[str, list[Tool]] = {}
        for one in self.everything():
            found.setdefault(one.tool.server, []).append(one.tool)
        return {server: tuple(tools) for server, tools in found.items()}

    def prompt(self, name: str) -> Tool:
        """By its name in any style, `server:name` or `prompt:server:name`. Raises `UnknownOffer`."""
        found = self._by_name.get(name) or self._by_name.get(folded_name(name))
        if found is None:
            raise UnknownOffer(f"There is no prompt {name[:_SHOWN]!r}.", remedy="List the prompts to see their names.")
        return found.tool

    def template(self, uri: str) -> Tool:
        """By its public text. Raises `UnknownOffer`."""
        for one in self.templates:
            if one.shown_as == uri:
                return one.tool
        raise UnknownOffer(
            f"There is no resource template {uri[:_SHOWN]!r}.", remedy="List the resource templates to see them."
        )

    def resource(self, uri: str, linked_by: str = "", shown: Callable[[Tool], bool] | None = None) -> Tool:
        """The resource of this address. Of several servers that may have it, `linked_by` is preferred, the server whose
        result had it; otherwise only those whose resource is `shown` count. Raises `UnknownOffer`."""
        if len(uri) <= LONGEST_ADDRESS:
            if (listed := self._by_uri.get(uri)) is not None:
                return listed.tool
            server, own = self._place(uri, linked_by, shown)
            if server and not _IGNORED_BY_PARSERS.search(own):
                return self._of_server(server, own)
        raise UnknownOffer(
            f"No server offers the resource {uri[:_SHOWN]!r}.", remedy="List the resources to see their addresses."
        )

    def displayed(self, name: str) -> Tool:
        """By the name that rules and the audit log have: `prompt:server:name`, `resource:server:uri`. Raises
        `UnknownOffer`."""
        kind, _, rest = name.partition(":")
        if kind != OfferKind.RESOURCE:
            return self.prompt(name)
        for server, offers in self.offers.items():
            if "resources" in offers.capabilities and rest.startswith(f"{server}:"):
                return self._of_server(server, rest.removeprefix(f"{server}:"))
        raise UnknownOffer(
            f"No connected server offers the resource {name[:_SHOWN]!r}.",
            remedy="`toolcrib resources` lists the resources.",
        )

    def _of_server(self, server: str, uri: str) -> Tool:
        listed = self._by_uri.get(self.public_uri(server, uri))
        if listed is not None and listed.tool.server == server:
            return listed.tool
        return resource_or_prompt(OfferKind.RESOURCE, server, uri, {"uri": Raw(msgspec.json.encode(uri))})

    def public_uri(self, server: str, uri: str) -> str:
        """The public address of a server's resource."""
        if uri not in self._shared:
            return uri
        return with_server(uri, next(prefix for prefix, name in self._prefixes.items() if name == server))

    def _place(self, uri: str, linked_by: str, shown: Callable[[Tool], bool] | None) -> tuple[str, str]:
        """The server of an address that is in no list, and its own form of it; empty if there is none."""
        if (split := without_server(uri)) is not None and (server := self._prefixes.get(split[0])) is not None:
            return server, split[1]
        for holders in (
            [server for server, addresses in self._apps.items() if uri in addresses],
            self._by_template(uri),
            [linked_by] if linked_by in self.offers else [],
            self._with_more_resources(),
        ):
            if len(holders) == 1:
                return holders[0], uri
            if linked_by in holders:
                return linked_by, uri
            if holders:
                return self._only(holders, uri, shown)
        return "", ""

    def _with_more_resources(self) -> list[str]:
        """The servers that may have resources which no list has; Toolcrib's own list all of theirs."""
        return [
            server
            for server, offers in self.offers.items()
            if "resources" in offers.capabilities and server not in RESERVED_SERVER_NAMES
        ]

    def lists(self, name: str) -> bool:
        """Whether it is the address of a listed resource or the name of a listed prompt."""
        return name in self._by_uri or name in self._by_name or folded_name(name) in self._by_name

    def _only(self, holders: list[str], uri: str, shown: Callable[[Tool], bool] | None) -> tuple[str, str]:
        """The one of these servers that the caller may use. A caller does not learn which others there are."""
        left = [server for server in holders if shown is None or shown(self._of_server(server, uri))]
        if len(left) <= 1:
            return (left[0], uri) if left else ("", "")
        named = sorted(with_server(uri, prefix) for prefix, server in self._prefixes.items() if server in left)
        raise UnknownOffer(
            f"Several servers may have the resource {uri[:_SHOWN]!r}.",
            remedy=f"Name the server: {', '.join(one[:_SHOWN] for one in named[:5])}.",
        )

    def _by_template(self, uri: str) -> list[str]:
        """The servers whose templates describe the address most closely."""
        best, found = -1, list[str]()
        for one in self.templates:
            if not _describes(one.tool.name, uri):
                continue
            fixed = sum(map(len, _fixed_parts(one.tool.name)))
            if fixed > best:
                best, found = fixed, []
            if fixed == best and one.tool.server not in found:
                found.append(one.tool.server)
        return found


_decode_text = msgspec.json.Decoder(str).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def json_text(raw: Raw) -> str:
    return _decode_text(raw)


def prefixes_of(servers: Iterable[str]) -> dict[str, str]:
    """Each server's prefix: a legal URI scheme, unique."""
    slugs = {server: re.sub(r"[^a-z0-9.-]", "-", server.lower()) for server in servers}
    slugs = {server: slug if slug[:1].isalpha() else f"s{slug}" for server, slug in slugs.items()}
    taken = list(slugs.values())
    return {
        server: slug if taken.count(slug) == 1 else f"{slug}-{hashlib.sha256(server.encode()).hexdigest()[:8]}"
        for server, slug in slugs.items()
    }


_Reused = Mapping[tuple[OfferKind, str, bytes], Tool]


def app_of(tool: Tool) -> Tool:
    """The resource with the app that shows this tool's results."""
    return resource_or_prompt(OfferKind.RESOURCE, tool.server, tool.app_uri, {})


def resource_or_prompt(kind: OfferKind, server: str, name: str, fields: Mapping[str, Raw]) -> Tool:
    """One that needs no public name: a resource, or a prompt that is not listed."""
    names = Names(plain=name, mcp=name, server=name, display=f"{kind}:{server}:{name}")
    return Tool(server=server, name=name, fields=fields, names=names, kind=kind)


def _read(which: str, key: str, offers: Mapping[str, Offers], reused: _Reused) -> dict[tuple[str, str], Tool]:
    found = {}
    for server in sorted(offers):
        for raw in getattr(offers[server], which):
            fields = _decode_fields(raw)
            uri = json_text(fields[key])
            tool = reused.get((OfferKind.RESOURCE, server, msgspec.json.encode(fields)))
            found[server, uri] = tool or resource_or_prompt(OfferKind.RESOURCE, server, uri, fields)
    return found


def _shared(addresses: Iterable[tuple[str, str]], prefixes: Mapping[str, str]) -> frozenset[str]:
    """Those of several servers, and those that look like another server's with its prefix."""
    holders: dict[str, set[str]] = {}
    for server, uri in addresses:
        holders.setdefault(uri, set()).add(server)
    taken = set(prefixes.values())
    return frozenset(
        uri
        for uri, servers in holders.items()
        if len(servers) > 1 or ((split := without_server(uri)) is not None and split[0] in taken)
    )


def _shown(
    key: str,
    read: Mapping[tuple[str, str], Tool],
    shared: frozenset[str],
    prefixes: Mapping[str, str],
    before: tuple[Offer, ...],
) -> tuple[Offer, ...]:
    shown = (
        Offer(tool=tool, shown_as=with_server(uri, prefixes[server]) if uri in shared else uri, key=key)
        for (server, uri), tool in read.items()
    )
    return _as_before(shown, before)


def _as_before(offers: Iterable[Offer], before: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """The previous tuple if the list is the same, so that its clients are not notified."""
    made = tuple(offers)
    same = [(one.tool, one.shown_as) for one in made] == [(one.tool, one.shown_as) for one in before]
    return before if same else made


def _prompts(offers: Mapping[str, Offers], style: NameStyle, limit: int, reused: _Reused) -> Iterable[Offer]:
    fields = {
        (server, json_text(fields["name"])): fields
        for server in sorted(offers)
        for fields in map(_decode_fields, offers[server].prompts)
    }
    names = name_tools(fields, limit=limit)
    for (server, name), one in fields.items():
        named = names[server, name]
        tool = reused.get((OfferKind.PROMPT, server, msgspec.json.encode(one)))
        shown = Names(
            plain=named.plain, mcp=named.mcp, server=named.server, display=f"prompt:{server}:{name}", also=named.also
        )
        if tool is None or tool.names != shown:
            tool = Tool(server=server, name=name, fields=one, names=shown, kind=OfferKind.PROMPT)
        yield Offer(tool=tool, shown_as=shown.of(style), key="name")


def with_addresses(result: bytes, offers: OfferCatalog, tool: Tool) -> bytes:
    """The result of a read with the public addresses of its contents."""
    try:
        fields = _decode_fields(result)
        contents = msgspec.json.decode(fields["contents"], type=list[dict[str, Raw]])
        for one in contents:
            one["uri"] = Raw(msgspec.json.encode(offers.public_uri(tool.server, json_text(one["uri"]))))
    except (KeyError, msgspec.MsgspecError, RecursionError):
        return result
    return msgspec.json.encode({**fields, "contents": contents})
