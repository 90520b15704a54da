"""Clients' requests about tasks: calls whose result is fetched later, in both protocol generations.

In: a call that may become a task, or a `tasks/*` request. Out: the server's answer in the form of the client's
generation, with the client's own id of the task. Between generations, answers are translated; `servers.tasks` describes
both forms. Used by `dispatcher`; every request about a task goes through the door.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.tool import Tool
from toolcrib.core.project import Project
from toolcrib.errors import INTERNAL_ERROR, INVALID_PARAMS, ErrorCase, ToolcribError
from toolcrib.gateway import protocol
from toolcrib.gateway.asking import declared_capabilities
from toolcrib.gateway.messages import ClientMessage, Rejected
from toolcrib.gateway.parking import actions_in, responses_in
from toolcrib.identity.principal import RequestContext
from toolcrib.identity.tasks import MAX_PER_AGENT, KnownTask, TaskRegistry
from toolcrib.servers.model import Era, OnProgress, ServerAnswer
from toolcrib.servers.questions import (
    QUESTION_SECONDS,
    Asker,
    Question,
    QuestionUnanswered,
)
from toolcrib.servers.roots import roots_inside
from toolcrib.servers.tasks import (
    CANCEL,
    EXTENSION,
    GET,
    LONGEST_TTL,
    RESULT,
    UPDATE,
    TaskState,
    created_task,
    read_task,
    without_related_task,
)

LIST = "tasks/list"
_METHODS = {Era.LEGACY: frozenset({GET, RESULT, LIST, CANCEL}), Era.MODERN: frozenset({GET, UPDATE, CANCEL})}
TASK_METHODS = _METHODS[Era.LEGACY] | _METHODS[Era.MODERN]
_QUESTION_COMES = 2.0
"""Seconds that a legacy server may take to ask what its task waits for."""
_LARGEST = 2.0**53 - 1
"""Of the whole numbers that every client reads."""
_ACKNOWLEDGED = ServerAnswer(result=b"{}")

ProjectRequest = RequestContext[Project]


class _Wish(msgspec.Struct):
    ttl: float | None = None


class TaskRequests:
    def __init__(self, door: Door, known: TaskRegistry) -> None:
        self._door = door
        self._known = known

    def terms(self, message: ClientMessage, params: dict[str, Raw], era: Era, agent: str) -> tuple[bool, Raw | None]:
        """Whether the caller takes a task as the answer to its call, and what a legacy caller wants of it, which is
        removed from `params`: modern ones may still send it, without a meaning."""
        wish = params.pop("task", None)
        if era is Era.MODERN:
            claims = bool(message.meta.get(protocol.CAPABILITIES_KEY))
            return claims and _declares(message) and not self._known.is_full(agent), None
        if wish is None:
            return False, None
        try:
            ttl = msgspec.json.decode(wish, type=_Wish).ttl
        except msgspec.ValidationError as error:
            raise Rejected(ErrorCase.ARGUMENT, why=f"params.task is invalid: {error}") from None
        if self._known.is_full(agent):
            raise Rejected(ErrorCase.ARGUMENT, why=f"at most {MAX_PER_AGENT} tasks can be unfinished")
        if ttl is not None and ttl > LONGEST_TTL * 1000:
            fields = msgspec.json.decode(wish, type=dict[str, Raw])
            wish = Raw(msgspec.json.encode({**fields, "ttl": int(LONGEST_TTL * 1000)}))
        return True, wish

    def created(self, answer: ServerAnswer, tool: Tool, agent: str, era: Era) -> ServerAnswer:
        """The answer to a call whose caller takes a task."""
        state = created_task(tool.server, answer)
        if answer.result is None or (state is None and era is Era.MODERN):
            return answer
        if state is None:
            # A legacy client that asked for a task must get one, also if the server has finished already.
            own = self._known.add_finished(agent, tool.server, tool.name, answer)
            return _answer({"task": _listed(own)})
        # Its first look checks what it asks.
        fields = {key: value for key, value in state.fields.items() if key != "inputRequests"}
        state = msgspec.structs.replace(state, fields=fields)
        handle = self._known.created(agent, tool.server, tool.name, state).handle
        if era is Era.MODERN:
            return _answer(_modern_form(state, handle) | ({"resultType": "task"} if state.era is Era.LEGACY else {}))
        around = msgspec.json.decode(answer.result, type=dict[str, Raw]) if state.era is Era.LEGACY else {}
        return _answer({**around, "task": _legacy_form(state, handle)})

    async def answer(
        self,
        message: ClientMessage,
        era: Era,
        context: ProjectRequest,
        asker: Asker | None,
        on_progress: OnProgress | None,
    ) -> ServerAnswer:
        if message.method not in _METHODS[era]:
            raise Rejected(ErrorCase.METHOD, method=message.method)
        agent = context.principal.name
        if message.method == LIST:
            return _answer({"tasks": [_listed(self._known.sealed(one)) for one in self._known.of(agent)]})
        if era is Era.MODERN and not _declares(message):
            raise Rejected(ErrorCase.TASKS, data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}})
        known = self._known.opened(agent, _task_id(message))
        request = _TaskRequest(self._door, message, context, known, asker, on_progress)
        answer = await (request.modern() if era is Era.MODERN else request.legacy())
        if answer.result is None or era is Era.LEGACY:
            return answer
        return ServerAnswer(result=protocol.tool_result(answer.result, client=era))


class _TaskRequest:
    """One request about one task."""

    def __init__(
        self,
        door: Door,
        message: ClientMessage,
        context: ProjectRequest,
        known: KnownTask,
        asker: Asker | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._door = door
        self._message = message
        self._context = context
        self._known = known
        self._asker = asker
        self._on_progress = on_progress

    async def _ask(self, method: str, params: Mapping[str, Raw] | None = None, **more: Any) -> ServerAnswer:
        known = self._known
        own = {"taskId": Raw(msgspec.json.encode(known.task))} if method == RESULT else params or {}
        request = CallRequest(
            tool=f"{known.server}:{known.tool}",
            method=method,
            task=known.task,
            params=own,
            meta=protocol.forwarded_meta(self._message.meta),
            **more,
        )
        return (await self._door.call(self._context, request)).answer

    async def _look(self, **more: Any) -> ServerAnswer:
        await self._known.turn()
        return await self._ask(GET, **more)

    def _state(self, look: ServerAnswer) -> TaskState:
        era = Era.MODERN if self._known.modern else Era.LEGACY
        return read_task(self._known.server, look.result or b"", era)

    async def legacy(self) -> ServerAnswer:
        known, handle = self._known, self._known.handle
        if known.own is not None:
            return self._own_legacy(known.own)
        match self._message.method:
            case "tasks/result":
                asker = None if self._asker is None else _NamingTask(self._asker, handle)
                answer = await self._ask(RESULT, asker=asker, on_progress=self._on_progress)
                if answer.result is None:
                    return answer
                return ServerAnswer(result=without_related_task(answer.result, handle))
            case "tasks/get":
                look = await self._look()
                return look if look.result is None else _answer(_legacy_form(self._state(look), handle))
        if known.modern:
            return await self._cancel_modern()
        answer = await self._ask(CANCEL)
        return answer if answer.result is None else _answer(_legacy_form(self._state(answer), handle))

    def _own_legacy(self, own: ServerAnswer) -> ServerAnswer:
        match self._message.method:
            case "tasks/get":
                return _answer(_listed(self._known))
            case "tasks/result":
                result = without_related_task(own.result or b"{}", self._known.handle)
                return own if own.result is None else ServerAnswer(result=result)
        return _has_ended(self._known.status)

    async def _cancel_modern(self) -> ServerAnswer:
        """For a legacy client, whose answer is the cancelled task."""
        look = await self._look()
        if look.result is None:
            return look
        state = self._state(look)
        if state.has_ended:
            return _has_ended(state.status)
        answer = await self._ask(CANCEL)
        if answer.result is None:
            return answer
        self._known.status = "cancelled"
        return _answer({**_legacy_form(state, self._known.handle), "status": "cancelled"})

    async def modern(self) -> ServerAnswer:
        if self._known.own is not None:
            return self._own_modern(self._known.own)
        if not self._known.modern:
            return await self._modern_of_legacy()
        match self._message.method:
            case "tasks/get":
                return await self._look_modern()
            case "tasks/update":
                return await self._update_modern()
        return await self._ask(CANCEL)

    def _own_modern(self, own: ServerAnswer) -> ServerAnswer:
        known = self._known
        if self._message.method != GET:
            return _ACKNOWLEDGED
        times = {"createdAt": known.created_at, "lastUpdatedAt": known.updated_at, "ttlMs": _whole(known.ttl)}
        return _answer({"taskId": known.handle, "status": known.status, **times, "result": Raw(own.result or b"{}")})

    async def _look_modern(self) -> ServerAnswer:
        asker = _ModernAsker(declared_capabilities(self._message.meta.get(protocol.CAPABILITIES_KEY)))
        look = await self._look(asker=asker, takes_input=True)
        if look.result is None:
            return look
        state = self._state(look)
        asked = state.fields.get("inputRequests", b"{}")
        for key, one in msgspec.json.decode(asked, type=dict[str, dict[str, Any]]).items():
            question = Question(server=self._known.server, method=one["method"], params=one.get("params", {}))
            self._known.asked[key] = question.asked
        return _answer(_modern_form(state, self._known.handle))

    async def _update_modern(self) -> ServerAnswer:
        given, known = responses_in(self._message), self._known.asked
        if given.keys() - known.keys():
            # The client may have been asked before a restart.
            look = await self._look_modern()
            if look.result is None:
                return look
        answers: dict[str, Any] = {key: given[key] for key in given if key in known}
        answered = actions_in(known, answers)
        asked = {key: known.pop(key) for key in answers}
        for key, answer in answers.items():
            if asked[key].mode == "roots":
                answers[key] = await asyncio.to_thread(roots_inside, answer, self._context.project.root)
        params = {"inputResponses": Raw(msgspec.json.encode(answers))}
        return await self._ask(UPDATE, params, answered=answered)

    async def _modern_of_legacy(self) -> ServerAnswer:
        match self._message.method:
            case "tasks/update":
                if self._known.follower is not None:
                    self._known.follower.give(responses_in(self._message))
                return _ACKNOWLEDGED
            case "tasks/cancel":
                answer = await self._ask(CANCEL)
                if answer.error is not None:
                    look = await self._look()
                    if look.result is None or not self._state(look).has_ended:
                        return answer
                return _ACKNOWLEDGED
        return await self._follow()

    async def _follow(self) -> ServerAnswer:
        """A modern client's look at a legacy server's task, which has its questions and its result elsewhere."""
        known = self._known
        look = await self._look()
        if look.result is None:
            return look
        state = self._state(look)
        form = _modern_form(state, known.handle)
        if state.status == "cancelled" or (state.status == "working" and known.follower is None):
            return _answer(form)
        if known.follower is None:
            capabilities = declared_capabilities(self._message.meta.get(protocol.CAPABILITIES_KEY))
            known.follower = _Follower(capabilities, lambda asker: self._ask(RESULT, asker=asker))
        follower: _Follower = known.follower
        if state.has_ended or follower.fetching.done():
            known.follower = None
            end = await follower.fetching
            if state.has_ended and follower.failure is not None:
                raise follower.failure
            if end.result is None and not state.has_ended:
                # Only the wait for the result has ended, such as by its time limit. The next look begins another.
                return _answer({**form, "status": "working"})
            return _answer({**form, **_modern_end(end, state)})
        await follower.asked()
        if follower.open and not follower.fetching.done():
            requests = {key: one.input_request for key, one in follower.open.items()}
            return _answer({**form, "status": "input_required", "inputRequests": requests})
        return _answer({**form, "status": "working"})


class _NamingTask:
    """Puts a task's questions to a legacy client, with its id of the task."""

    def __init__(self, asker: Asker, handle: str) -> None:
        self._asker = asker
        self._handle = handle
        self.capabilities = asker.capabilities

    async def ask(self, question: Question) -> Mapping[str, Any]:
        return await self._asker.ask(msgspec.structs.replace(question, task=self._handle))


class _ModernAsker:
    """A modern client, which gets the questions of a task with its state."""

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self.capabilities = capabilities

    async def ask(self, question: Question) -> Mapping[str, Any]:
        raise QuestionUnanswered


class _Follower:
    """Waits for the result of a legacy server's task, and keeps its questions until a modern client answers them."""

    def __init__(self, capabilities: Mapping[str, Any], fetch: Callable[[Asker], Awaitable[ServerAnswer]]) -> None:
        self.capabilities = capabilities
        self.open: dict[str, Question] = {}
        self.failure: ToolcribError | None = None
        """Why the result could not be fetched."""
        self._answers: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()
        self.fetching = asyncio.create_task(self._fetched(fetch))

    async def _fetched(self, fetch: Callable[[Asker], Awaitable[ServerAnswer]]) -> ServerAnswer:
        try:
            return await fetch(self)
        except ToolcribError as error:
            self.failure = error
            return ServerAnswer()
        finally:
            self._news.set()

    async def asked(self) -> None:
        """Returns when something is asked, the result has come, or neither happens soon."""
        try:
            async with asyncio.timeout(_QUESTION_COMES):
                await self._news.wait()
        except TimeoutError:
            return

    async def ask(self, question: Question) -> Mapping[str, Any]:
        key = f"question_{next(self._numbers)}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        self.open[key] = question
        self._news.set()
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                return await answer
        except TimeoutError:
            raise QuestionUnanswered from None
        finally:
            del self._answers[key]
            self.open.pop(key, None)
            if not self.open and not self.fetching.done():
                self._news.clear()

    def give(self, responses: Mapping[str, Mapping[str, Any]]) -> None:
        for key, response in responses.items():
            waiting = self._answers.get(key)
            if waiting is not None and not waiting.done():
                self.open.pop(key, None)
                waiting.set_result(response)


def _declares(message: ClientMessage) -> bool:
    claimed = message.meta.get(protocol.CAPABILITIES_KEY)
    extensions = claimed.get("extensions") if isinstance(claimed, dict) else None
    return isinstance(extensions, dict) and isinstance(extensions.get(EXTENSION), dict)


def _task_id(message: ClientMessage) -> str:
    try:
        return msgspec.json.decode(message.params["taskId"], type=str)
    except (KeyError, msgspec.ValidationError):
        raise Rejected(ErrorCase.ARGUMENT, why="params.taskId must be a string") from None


def _answer(result: Mapping[str, Any]) -> ServerAnswer:
    return ServerAnswer(result=msgspec.json.encode(result))


def _has_ended(status: str) -> ServerAnswer:
    message = f"Cannot cancel task: already in terminal status '{status}'"
    return ServerAnswer(error=msgspec.json.encode({"code": INVALID_PARAMS, "message": message}))


def _common(state: TaskState, handle: str) -> dict[str, Any]:
    said = {"statusMessage": state.message} if state.message else {}
    times = {"createdAt": state.created_at, "lastUpdatedAt": state.updated_at}
    return {"taskId": handle, "status": state.status, **said, **times}


def _whole(number: float | None) -> int | None:
    return None if number is None else round(min(max(1.0, number), _LARGEST))


def _legacy_form(state: TaskState, handle: str) -> dict[str, Any]:
    """A server's own task stays as it is, except for the id."""
    if state.era is Era.LEGACY:
        return {**state.fields, "taskId": handle}
    pace = {} if state.poll is None else {"pollInterval": _whole(state.poll)}
    return {**_common(state, handle), "ttl": _whole(state.ttl), **pace}


def _modern_form(state: TaskState, handle: str) -> dict[str, Any]:
    if state.era is Era.MODERN:
        return {**state.fields, "taskId": handle}
    pace = {} if state.poll is None else {"pollIntervalMs": _whole(state.poll)}
    return {**_common(state, handle), "ttlMs": _whole(state.ttl), **pace}


def _modern_end(answer: ServerAnswer, state: TaskState) -> dict[str, Any]:
    """The result, in a modern task. A tool's failure is a result there, and only a JSON-RPC error is a failure."""
    if answer.error is not None:
        return {"status": "failed", "error": Raw(answer.error)}
    result = without_related_task(answer.result or b"{}")
    if state.status == "failed" and b'"content"' not in result:
        error = {"code": INTERNAL_ERROR, "message": state.message or "The task failed."}
        return {"status": "failed", "error": error}
    return {"status": "completed", "result": Raw(protocol.tool_result(result, client=Era.MODERN))}


def _listed(known: KnownTask) -> dict[str, Any]:
    """A task in a legacy client's list, as its server described it last."""
    said = {"statusMessage": known.message} if known.message else {}
    pace = {} if known.poll is None else {"pollInterval": _whole(known.poll)}
    times = {"createdAt": known.created_at, "lastUpdatedAt": known.updated_at, "ttl": _whole(known.ttl)}
    return {"taskId": known.handle, "status": known.status, **said, **times, **pace}
