"""A provider's failures: whether and when to retry the request, and the message for people.

In: pydantic-ai's exceptions. Out: decisions for `retrying`, and the error and remedy of the run's last event.
"""

from __future__ import annotations

import re

from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)

from toolcrib.errors import ToolcribError


class EmptyAnswer(UnexpectedModelBehavior):
    """An answer without text, thinking or calls."""


class BrokenAnswer(UnexpectedModelBehavior):
    """An answer that is incomplete or unreadable."""


class AnswerStopped(UnexpectedModelBehavior):
    """The provider ended the answer for a reason that a retry would not change."""


Failure = (ModelAPIError, UnexpectedModelBehavior)
"""The ways in which a request fails; `may_retry` decides which are temporary."""

PASSING = frozenset({408, 409, 429})
"""Temporary errors, in addition to 500 and above."""
SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?s")
LONGEST = 300
"""Characters of a provider's message that are shown."""


def may_retry(error: Exception) -> bool:
    """Whether the same request may succeed later. A request without an answer has changed nothing, so it can be
    repeated. An exhausted quota or an invalid request will fail again."""
    if isinstance(error, ModelQuotaExceededError | ContentFilterError | AnswerStopped):
        return False
    if isinstance(error, ModelHTTPError):
        passing = error.status_code in PASSING or error.status_code >= 500
        return passing and error.provider_retry_hint is not False
    if isinstance(error, ModelRequestRejectedError):
        return False
    # The rest: connection failures, timeouts, broken streams, answers that are empty or not JSON.
    return isinstance(error, Failure)


def requested_delay(error: Exception) -> float:
    """Seconds from `Retry-After`, or from Google's equivalent in the body; 0 if the provider gives none."""
    if isinstance(error, ModelAPIError) and error.retry_after:
        return error.retry_after
    return _retry_info(error.body) if isinstance(error, ModelHTTPError) else 0.0


def _retry_info(body: object) -> float:
    """From `google.rpc.RetryInfo`, whose `retryDelay` is a number of seconds followed by an s."""
    error = body.get("error", body) if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and SECONDS.fullmatch(delay):
            return float(delay.removesuffix("s"))
    return 0.0


def toolcrib_cause(error: BaseException) -> ToolcribError | None:
    """Our own error, if an SDK wrapped it as a failed connection."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ToolcribError):
        cause = cause.__cause__
    return cause


def failure_reason(error: Exception) -> str:
    """One line: `429: the provider's message`."""
    if isinstance(error, ModelHTTPError):
        return _short(f"{error.status_code}: {_words(error.body)}".removesuffix(": "))
    if isinstance(error, ModelConnectionError):
        what = "timed out" if isinstance(error, ModelTimeoutError) else "connection failed"
        return _short(f"{what}: {_root(error)}")
    return _short(str(error))


def _root(error: BaseException) -> str:
    """The root cause, because the SDKs' own messages have no details."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _words(body: object) -> str:
    """Providers send `{"error": {"message": …}}` or plain text."""
    while isinstance(body, dict):
        body = body.get("error", body.get("message"))
    return body if isinstance(body, str) else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


BY_STATUS = {
    400: "The provider rejects this request: check the model's name, `settings`, and the tools' results.",
    401: "Check the key: `api_key`, or the provider's variable.",
    402: "The provider requires payment: check your account.",
    403: "This key may not use the model.",
    404: "Check the model's name, and `base_url` if you set it.",
    413: "The conversation is too long for the provider: start a new one.",
    429: "You reached the provider's rate limit: wait, or raise `retries`.",
}
LATER = "The provider has a problem: try again later, or raise `retries`."
SAYS_NOTHING = "Check the model's name and `settings`, or rephrase the prompt."
BROKEN = "Run it again with `history=` this run's `messages`, or raise `retries`."
STOPPED = "The provider's documentation explains this stop reason."
UNREACHED = "Check the network, and `base_url` if you set it."


def is_known_failure(error: Exception) -> bool:
    """Whether the message alone is enough. Other errors are logged with their traceback."""
    return isinstance(error, AgentRunError | UserError)


def error_text(error: Exception) -> str:
    return failure_reason(error) if is_known_failure(error) else f"{type(error).__name__}: {error}"


def error_remedy(error: Exception) -> str:
    if isinstance(error, ModelQuotaExceededError):
        return "The account's quota is exhausted: raise it with the provider."
    if isinstance(error, ModelHTTPError):
        return BY_STATUS.get(error.status_code, LATER if error.status_code >= 500 else "")
    if isinstance(error, EmptyAnswer):
        return SAYS_NOTHING
    if isinstance(error, BrokenAnswer):
        return BROKEN
    if isinstance(error, AnswerStopped):
        return STOPPED
    return UNREACHED if isinstance(error, ModelAPIError) else ""
