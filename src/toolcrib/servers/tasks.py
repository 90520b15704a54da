"""Tasks: calls whose result is fetched later, in both protocol generations.

In: a server's answer that names a task. Out: its `TaskState`; the final answer for a caller that doesn't know tasks
(`finished`). `server` calls this; `gateway.task_requests` writes states for clients.

2025-11-25 (the experimental capability `tasks`): the caller decides. `params.task` with a `ttl` makes a call a task,
if the tool's `execution.taskSupport` is `optional` or `required`; the answer is `{"task": ...}`, with `ttl` (null:
without limit) and `pollInterval`, in milliseconds. `tasks/result` waits for the result, and its stream carries the
questions, each with `related-task` in `_meta`. A tool's `isError` is the status `failed`. `tasks/cancel` answers with
the task, and -32602 if it has ended.

2026-07-28 (the extension `io.modelcontextprotocol/tasks`): the server decides, if the request declares the extension;
one that needs a task refuses others with -32021. The answer is the task itself, with `resultType: "task"`, `ttlMs` and
`pollIntervalMs`. `tasks/get` has the `result`, or the `error` of the status `failed`, which is only for JSON-RPC
errors. Questions are its `inputRequests` in the status `input_required`, and `tasks/update` answers them. The answer to
`tasks/cancel` is empty, also for a task that has ended, and the server may go on. Over HTTP, `Mcp-Name` is the id.

The statuses are `working`, `input_required`, `completed`, `failed` and `cancelled`; an unknown id is -32602.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw

from toolcrib.errors import METHOD_NOT_FOUND, MISSING_CAPABILITY, CallTimeout, ProtocolViolation, ServerUnavailable
from toolcrib.events import TaskSeen
from toolcrib.servers.model import Era, OnProgress, ServerAnswer, TaskTerms, ToolCall
from toolcrib.servers.questions import (
    MAX_QUESTIONS,
    MAX_ROUNDS,
    RELATED_TASK,
    NeededInput,
    Question,
    settle_round,
)
from toolcrib.servers.wire import CLIENT_CAPABILITIES_KEY, error_in, result_type

if TYPE_CHECKING:
    from toolcrib.servers.link import ServerLink
    from toolcrib.servers.server import Server

EXTENSION = "io.modelcontextprotocol/tasks"
GET, RESULT, UPDATE, CANCEL = "tasks/get", "tasks/result", "tasks/update", "tasks/cancel"
REQUESTS = frozenset({GET, RESULT, UPDATE, CANCEL})
"""The requests about one task."""
ENDED = frozenset({"completed", "failed", "cancelled"})
LONGEST_TTL = 24 * 3600.0
"""Seconds that a server is asked to keep a task, at most."""
KEPT = 3600.0
"""Seconds that a task is expected to be kept if nobody says how long."""
_POLL, _SHORTEST_POLL, _LONGEST_POLL = 1.0, 0.05, 30.0
_MARGIN = 60.0
_PATIENCE = 5.0
_LOST_POLLS = 3
"""How often in a row a task's state may be out of reach before its caller gives up."""
_LONGEST_ID = 1024

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]


class _Task(msgspec.Struct):
    task_id: str = msgspec.field(name="taskId")
    status: Status
    message: str | None = msgspec.field(name="statusMessage", default=None)
    created_at: str = msgspec.field(name="createdAt", default="")
    updated_at: str = msgspec.field(name="lastUpdatedAt", default="")
    ttl: float | None = None
    ttl_ms: float | None = msgspec.field(name="ttlMs", default=None)
    poll: float | None = msgspec.field(name="pollInterval", default=None)
    poll_ms: float | None = msgspec.field(name="pollIntervalMs", default=None)


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its server described it last."""

    id: str
    """The server's."""
    era: Era
    status: Status
    message: str = ""
    created_at: str = ""
    updated_at: str = ""
    ttl: float | None = None
    """Milliseconds, as in both generations."""
    poll: float | None = None
    fields: Mapping[str, Raw] = {}
    """All members of the task."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def pause(self) -> float:
        """Seconds until it should be looked at again."""
        return _POLL if self.poll is None else min(max(self.poll / 1000, _SHORTEST_POLL), _LONGEST_POLL)


def read_task(server: str, task: bytes, era: Era) -> TaskState:
    """Raises `ProtocolViolation`."""
    try:
        read = msgspec.json.decode(task, type=_Task)
        fields = msgspec.json.decode(task, type=dict[str, Raw])
        if not 0 < len(read.task_id) <= _LONGEST_ID:
            raise ValueError("its id is empty or too long")
        if result_type(bytes(fields.get("result", b""))) not in (None, "complete"):
            raise ValueError("its result is not complete")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{server}' sent an invalid task: {error}. The call may have run.") from None
    if read.status != "input_required":
        # Nobody would check these.
        fields.pop("inputRequests", None)
    modern = era is Era.MODERN
    return TaskState(
        id=read.task_id,
        era=era,
        status=read.status,
        message=read.message or "",
        created_at=read.created_at,
        updated_at=read.updated_at,
        ttl=read.ttl_ms if modern else read.ttl,
        poll=read.poll_ms if modern else read.poll,
        fields=fields,
    )


class _Created(msgspec.Struct):
    task: Raw = Raw()
    content: Raw = Raw()


def created_task(server: str, answer: ServerAnswer) -> TaskState | None:
    """The task that an answer to a call says was created, if it says so. Raises `ProtocolViolation`."""
    result = answer.result
    if result is None:
        return None
    if result_type(result) == "task":
        return read_task(server, result, Era.MODERN)
    if b'"task"' not in result:
        return None
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        created = msgspec.json.decode(result, type=_Created)
        if bytes(created.task) and not bytes(created.content):
            return read_task(server, bytes(created.task), Era.LEGACY)
    return None


def needs_extension(answer: ServerAnswer) -> bool:
    """Whether the server refused a call because it would have to be a task. It did not run."""
    error = answer.error
    return error is not None and EXTENSION.encode() in error and error_in(error).code == MISSING_CAPABILITY


def request_params(link: ServerLink, call: ToolCall, terms: TaskTerms, limit: float) -> Mapping[str, Raw] | None:
    """A call's params, as a task if its server knows tasks and the call can or must be one. None: the caller may not
    make it a task."""
    if link.peer.era is Era.MODERN:
        return call.params
    if "tasks" not in link.peer.capabilities or not terms.support:
        return None if terms.wish is not None else call.params
    if terms.support != "required" and not terms.taken:
        return call.params
    seconds = KEPT if terms.taken else limit + _MARGIN
    return {**call.params, "task": terms.wish or Raw(msgspec.json.encode({"ttl": int(seconds * 1000)}))}


NOT_A_TASK = ServerAnswer(
    error=msgspec.json.encode({"code": METHOD_NOT_FOUND, "message": "This tool cannot be called as a task."})
)


def declaring(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request's `_meta` that says that the caller takes a task as the answer."""
    held = meta.get(CLIENT_CAPABILITIES_KEY, {})
    extensions = {**held.get("extensions", {}), EXTENSION: {}}
    return {**meta, CLIENT_CAPABILITIES_KEY: {**held, "extensions": extensions}}


class OpenTasks:
    """The tasks that a server may still work on, so that it is not idle."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._questions: dict[str, dict[str, Question | None]] = {}

    def __bool__(self) -> bool:
        now = time.monotonic()
        self._until = {id: until for id, until in self._until.items() if until > now}
        return bool(self._until)

    def note(self, state: TaskState) -> None:
        if state.has_ended:
            self._until.pop(state.id, None)
            self._questions.pop(state.id, None)
        elif state.id not in self._until:
            kept = KEPT if state.ttl is None else min(state.ttl / 1000, LONGEST_TTL)
            self._until[state.id] = time.monotonic() + kept
            self._questions = {id: asked for id, asked in self._questions.items() if id in self._until}

    def questions_of(self, task: str) -> dict[str, Question | None]:
        """What the task has asked: the questions that its caller gets, and None for those that it doesn't get."""
        return self._questions.setdefault(task, {})


def digest_of(server: str, task: str) -> str:
    """What the audit log and `toolcrib tasks` call a task: servers' ids may be secrets."""
    return hashlib.sha256(f"{server}\n{task}".encode()).hexdigest()[:12]


def seen(server: Server, call: ToolCall, state: TaskState) -> None:
    server.tasks.note(state)
    server.publish(
        TaskSeen(
            agent=call.agent,
            server=server.name,
            tool=call.name if call.method == "tools/call" else "",
            task=state.id,
            modern=state.era is Era.MODERN,
            status=state.status,
            message=server.mask.line(state.message),
            created_at=state.created_at,
            updated_at=state.updated_at,
            ttl=state.ttl,
            poll=state.poll,
        )
    )


async def finished(server: Server, link: ServerLink, call: ToolCall, state: TaskState, how: Any) -> ServerAnswer:
    """Waits for a task's result, and answers its questions. `how` has the options of `ServerLink.request`; the limit is
    for everything together, without the time that a person takes. If the caller leaves, the task is cancelled."""
    run = _Run(server, link, call, state, how)
    try:
        answer = await (run.legacy() if state.era is Era.LEGACY else run.modern())
        if answer.error is None or link.questions is None:
            return answer
        return link.questions.required_pages(answer.error, call)
    except ServerUnavailable as error:
        # What did not run is only the last look at it.
        raise link.interrupted(link.reason_in(error)) from None
    except (asyncio.CancelledError, CallTimeout, ProtocolViolation):
        if call.method == "tools/call":
            run.cancel()
        raise


class TaskProgress:
    """Reports the server's progress. If it sends none, the messages of its task."""

    def __init__(self, report: OnProgress) -> None:
        self._report = report
        self._is_reported = False
        self._last = ""
        self._count = 0

    def __call__(self, params: dict[str, Any]) -> None:
        done = params.get("progress")
        # A client may take less progress than before for a mistake.
        if isinstance(done, int | float) and done > self._count:
            self._is_reported = True
            self._report(params)

    def say(self, message: str) -> None:
        if message and not self._is_reported and message != self._last:
            self._last, self._count = message, self._count + 1
            self._report({"progress": self._count, "message": message})


class _Run:
    def __init__(self, server: Server, link: ServerLink, call: ToolCall, state: TaskState, how: Any) -> None:
        self._server = server
        self._link = link
        self._call = call
        self._state = state
        self._limit: float = how["limit"]
        self._setting: str = how["setting"]
        report = how["on_progress"]
        self._progress = report if isinstance(report, TaskProgress) or report is None else TaskProgress(report)
        self._meta = declaring(how["meta"]) if state.era is Era.MODERN else {}
        self._params = {"taskId": state.id}
        self._answered: set[str] = set()

    def cancel(self) -> None:
        """Nobody looks at it any more, so it counts as cancelled whatever the server answers."""
        self._link.send_unawaited(CANCEL, self._params, meta=self._meta, limit=_PATIENCE)
        self._note_end("cancelled")

    async def legacy(self) -> ServerAnswer:
        async with self._reporting():
            answer = await self._lasting(RESULT, limit=self._limit, call=self._call, task=self._state.id)
        if answer.result is None or not _has_content(answer.result):
            # A task that was cancelled, or that failed without a result, has nothing but its status. For some servers
            # that is an error.
            await self._look()
            if answer.error is None or self._state.status == "cancelled":
                return _ended_without_result(self._state)
        self._note_end("failed" if answer.error is not None else "completed")
        return answer if answer.result is None else ServerAnswer(result=without_related_task(answer.result))

    def _note_end(self, status: Status) -> None:
        seen(self._server, self._call, msgspec.structs.replace(self._state, status=status, message=""))

    @contextlib.asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        """Looks at the task from time to time, to say how far it is."""
        polling = asyncio.create_task(self._poll()) if self._progress is not None else None
        try:
            yield
        finally:
            if polling is not None:
                polling.cancel()
                await asyncio.gather(polling, return_exceptions=True)

    async def _poll(self) -> None:
        while not self._state.has_ended:
            await asyncio.sleep(self._state.pause)
            with contextlib.suppress(CallTimeout, ServerUnavailable):
                if await self._look() is not None:
                    return

    async def _lasting(self, method: str, **more: Any) -> ServerAnswer:
        """A request that only reads, so it is sent again if the connection breaks. A process that ended took its tasks
        with it."""
        for attempt in range(_LOST_POLLS):
            try:
                return await self._link.request(method, self._params, meta=self._meta, setting=self._setting, **more)
            except ServerUnavailable:
                if self._link.pid is not None or attempt == _LOST_POLLS - 1:
                    raise
            await asyncio.sleep(self._state.pause)
            self._link = await self._server.connected()
        raise AssertionError("unreachable")

    async def _look(self) -> ServerAnswer | None:
        """Updates the state. Returns the server's error, if it has no such task."""
        answer = await self._lasting(GET, limit=self._limit)
        if answer.result is None:
            return answer
        self._state = read_task(self._server.name, answer.result, self._state.era)
        seen(self._server, self._call, self._state)
        self._report()
        return None

    def _report(self) -> None:
        if self._progress is not None:
            self._progress.say(self._state.message)

    async def modern(self) -> ServerAnswer:
        loop = asyncio.get_running_loop()
        left = self._limit
        rounds = 0
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout(left):
                    if (gone := await self._observed()) is not None:
                        return gone
            except TimeoutError:
                raise CallTimeout(
                    f"Server '{self._server.name}' did not finish its task within {self._limit:g} s. The task was "
                    "cancelled; it may have run.",
                    remedy=f"Raise {self._setting} if it needs longer.",
                ) from None
            left -= loop.time() - began
            if self._state.has_ended:
                return _ended_modern(self._server.name, self._state)
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise ProtocolViolation(
                    f"Server '{self._server.name}' asked more than {MAX_ROUNDS} times during one task."
                )
            await self._answer()

    async def _observed(self) -> ServerAnswer | None:
        """Returns when the task has ended or asks something new, or with the server's error."""
        if self._call.method == RESULT and (gone := await self._look()) is not None:
            return gone
        while not (self._state.has_ended or self._new_requests()):
            await asyncio.sleep(self._state.pause)
            if (gone := await self._look()) is not None:
                return gone
        return None

    def _new_requests(self) -> dict[str, Any]:
        asked = needed_by(self._server.name, self._state).requests
        return {key: one for key, one in asked.items() if key not in self._answered}

    async def _answer(self) -> None:
        needed = NeededInput(requests=self._new_requests())
        settled = await settle_round(self._server.config, needed, self._call.asker, self._server.root, passes=False)
        await update(self._link, self._state.id, settled.answers, meta=self._meta, limit=self._limit)
        self._answered |= settled.answers.keys()


def needed_by(server: str, state: TaskState) -> NeededInput:
    """What a modern task asks. Raises `ProtocolViolation`."""
    if state.status != "input_required" or "inputRequests" not in state.fields:
        return NeededInput()
    try:
        needed = msgspec.json.decode(b'{"inputRequests":%b}' % bytes(state.fields["inputRequests"]), type=NeededInput)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"Server '{server}' asked for input in an invalid form: {error}.") from None
    if len(needed.requests) > MAX_QUESTIONS:
        raise ProtocolViolation(f"Server '{server}' asked more than {MAX_QUESTIONS} questions at once.")
    return needed


async def update(link: ServerLink, task: str, answers: Mapping[str, Any], *, meta: Any, limit: float) -> ServerAnswer:
    return await link.request(UPDATE, {"taskId": task, "inputResponses": answers}, meta=meta, limit=limit)


async def asked_of_caller(server: Server, link: ServerLink, call: ToolCall, state: TaskState, how: Any) -> ServerAnswer:
    """A modern task's state for a caller that answers questions itself: those that only it can answer, prepared like
    all others."""
    requests = needed_by(server.name, state).requests
    known = server.tasks.questions_of(state.id)
    if new := {key: one for key, one in requests.items() if key not in known}:
        if len(known) + len(new) > MAX_QUESTIONS * MAX_ROUNDS:
            raise ProtocolViolation(f"Server '{server.name}' asked too many questions during one task.")
        settled = await settle_round(server.config, NeededInput(requests=new), call.asker, server.root, passes=True)
        known |= {**dict.fromkeys(settled.answers), **settled.questions}
        if settled.answers:
            await update(link, state.id, settled.answers, meta=how["meta"], limit=how["limit"])
    fields: dict[str, Any] = {**state.fields}
    if state.status == "input_required":
        passed = {key: one for key in requests if (one := known.get(key)) is not None}
        fields["inputRequests"] = {key: one.input_request for key, one in passed.items()}
        if not passed:
            fields = {**fields, "status": "working"}
            del fields["inputRequests"]
    return ServerAnswer(result=msgspec.json.encode(fields))


def _ended_modern(server: str, state: TaskState) -> ServerAnswer:
    member = {"completed": "result", "failed": "error"}.get(state.status)
    if member is None:
        return _ended_without_result(state)
    value = bytes(state.fields.get(member, b""))
    if value[:1] != b"{":
        raise ProtocolViolation(f"Server '{server}' sent a task that ended without a {member}. The call may have run.")
    return ServerAnswer(error=value) if member == "error" else ServerAnswer(result=value)


def _ended_without_result(state: TaskState) -> ServerAnswer:
    said = f": {state.message}" if state.message else ""
    text = f"The task was cancelled{said}." if state.status == "cancelled" else f"The task has no result{said}."
    return ServerAnswer(result=msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True}))


def _has_content(result: bytes) -> bool:
    try:
        return bool(bytes(msgspec.json.decode(result, type=_Created).content))
    except (msgspec.MsgspecError, RecursionError):
        return True


def without_related_task(result: bytes, handle: str = "") -> bytes:
    """A task's result without its server's id of the task, or with the caller's."""
    if RELATED_TASK.encode() not in result and not handle:
        return result
    try:
        fields = msgspec.json.decode(result, type=dict[str, Raw])
        meta = msgspec.json.decode(fields.pop("_meta", b"{}"), type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        return result
    meta.pop(RELATED_TASK, None)
    if handle:
        meta[RELATED_TASK] = Raw(msgspec.json.encode({"taskId": handle}))
    return msgspec.json.encode({**fields, "_meta": meta} if meta else fields)
