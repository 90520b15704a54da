"""Results of harmless tools, kept as long as the configuration allows (`cache` in a server's entry).

In: a call that was decided and checked. Out: the result of an earlier, equal call of a caller with the same permission,
marked as such in its `_meta` and in the audit log; otherwise the server's own answer. Used only by `door`.

A result counts only for the definition, the instance of the server and the account that it came from. A call of the
same server that may change something ends all earlier results, when it starts and when it ends.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from toolcrib.calls.outcome import outcome_of
from toolcrib.events import CallOutcome
from toolcrib.policy import Decision, Verdict
from toolcrib.servers.model import ServerAnswer
from toolcrib.servers.wire import result_type

if TYPE_CHECKING:
    from toolcrib.calls.door import CallRequest, CallTarget
    from toolcrib.calls.record import CallRecord

CACHED_KEY = "toolcrib/cached"
"""The key in a result's `_meta`: `{"age_seconds": 12}`."""
MAX_RESULT = 1024 * 1024
MAX_TOTAL = 32 * 1024 * 1024
_ENTRY = 1024
"""What an entry counts besides its result, so that tiny results are limited too."""

_Forward = Callable[["CallRecord", "CallRequest", Mapping[str, Raw]], Awaitable[ServerAnswer]]
_Key = tuple[object, ...]
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class _Kept(msgspec.Struct, frozen=True):
    fields: Mapping[str, Raw]
    """The result, decoded one level only."""
    meta: Mapping[str, Raw]
    at: float
    until: float
    changes: int
    account: object
    size: int


class ResultCache:
    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._size = 0
        self._changes: dict[str, int] = {}
        """By server: how often something may have changed."""

    async def call(
        self, forward: _Forward, record: CallRecord, request: CallRequest, params: Mapping[str, Raw]
    ) -> ServerAnswer:
        server = record.tool.server
        if not record.tool.reads_only:
            self._note_change(server)
            try:
                return await forward(record, request, params)
            finally:
                self._note_change(server)
        found = self._instance(record, request, params)
        if found is None:
            return await forward(record, request, params)
        key, account = _key(record, request, found), _account_of(found)
        if (kept := self._find(key, server, account)) is not None:
            return _answered(record, kept)
        changes = self._changes.get(server, 0)
        answer = await forward(record, request, params)
        if not record.asked and changes == self._changes.get(server, 0) and account is _account_of(found):
            self._keep(key, answer, record.tool.cache_seconds, changes, account)
        return answer

    def _note_change(self, server: str) -> None:
        self._changes[server] = self._changes.get(server, 0) + 1

    def _instance(self, record: CallRecord, request: CallRequest, params: Mapping[str, Raw]) -> CallTarget | None:
        """The instance of the server, if the result may be kept. An agent's own instance exists from its first call."""
        tool = record.tool
        if not tool.cache_seconds or record.decision.verdict is not Verdict.ALLOW or request.task:
            return None
        if not params.keys() <= {"arguments"}:
            return None
        instance: CallTarget | None = record.context.project.instance(tool.server, record.agent)
        return instance

    def _find(self, key: _Key, server: str, account: object) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until < monotonic() or kept.changes != self._changes.get(server, 0) or kept.account is not account:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def _keep(self, key: _Key, answer: ServerAnswer, seconds: float, changes: int, account: object) -> None:
        result = answer.result
        if result is None or len(result) > MAX_RESULT or outcome_of(answer)[0] is not CallOutcome.OK:
            return
        try:
            fields = _decode_fields(result)
            meta = _decode_fields(fields.pop("_meta", b"{}"))
        except (msgspec.MsgspecError, RecursionError):
            return
        # A task has no content.
        if "content" not in fields or result_type(result) not in (None, "complete"):
            return
        now = monotonic()
        self._drop(key)
        self._kept[key] = _Kept(fields, meta, now, now + seconds, changes, account, len(result) + _ENTRY)
        self._size += len(result) + _ENTRY
        while self._size > MAX_TOTAL:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        kept = self._kept.pop(key, None)
        self._size -= 0 if kept is None else kept.size


def _answered(record: CallRecord, kept: _Kept) -> ServerAnswer:
    age = int(monotonic() - kept.at)
    result = msgspec.json.encode({**kept.fields, "_meta": {**kept.meta, CACHED_KEY: {"age_seconds": age}}})
    record.decision = Decision(record.decision.verdict, f"{record.decision.rule}; cached answer, {age} s old")
    if b'"resource_link"' in result:
        record.context.project.remember_links(record.agent, record.tool.server, result)
    record.finish(CallOutcome.OK, result)
    return ServerAnswer(result=result)


def _key(record: CallRecord, request: CallRequest, instance: CallTarget) -> _Key:
    """References, so that neither a tool nor an instance lives longer because of its results. A tool belongs to one
    project. Servers may heed `_meta`, so calls that have any share results only with the same agent's and the same."""
    tool = record.tool
    meta = {key: value for key, value in request.meta.items() if key not in _OF_ONE_CALL}
    caller = record.agent if meta else ""
    given = _digest({"arguments": record.checked, "meta": meta})
    return weakref.ref(tool), weakref.ref(instance), record.permission.key, caller, given


_OF_ONE_CALL = frozenset({"claudecode/toolUseId", "progressToken"})
"""Keys of `_meta` that are different for each call, and mean nothing to servers."""


def _digest(arguments: Mapping[str, Any]) -> bytes:
    # Unlike msgspec, `json` also writes integers of more than 64 bits.
    return hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).digest()


def _account_of(instance: CallTarget) -> object:
    """Another object after each change of the account; None while nobody is signed in."""
    return None if instance.account is None else instance.account.described
