"""What a provider's failure means: whether the same request may be made again, and when; and what a person reads of it.

In: what pydantic-ai raises. Out: a verdict for `retrying`, and an error and a remedy for the run's last event.
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
    """An answer without a word, a thought or a call."""


class BrokenAnswer(UnexpectedModelBehavior):
    """An answer that is not whole, or cannot be read."""


class AnswerStopped(UnexpectedModelBehavior):
    """The provider ended the answer for a reason that asking again does not change."""


Failure = (ModelAPIError, UnexpectedModelBehavior)
"""All that a request may end in, of which some will pass."""

PASSING = frozenset({408, 409, 429})
"""Besides 500 and more."""
SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?s")
LONGEST = 300
"""Characters of a provider's words that are passed on."""


def may_retry(error: Exception) -> bool:
    """Whether the same request may succeed later. One without an answer has done nothing on our side, so it may be
    repeated; a quota that is used up, or a request that is wrong, stays so."""
    if isinstance(error, ModelQuotaExceededError | ContentFilterError | AnswerStopped):
        return False
    if isinstance(error, ModelHTTPError):
        passing = error.status_code in PASSING or error.status_code >= 500
        return passing and error.provider_retry_hint is not False
    if isinstance(error, ModelRequestRejectedError):
        return False
    # What is left: no connection, a timeout, a stream that broke, an answer without content or that is no JSON.
    return isinstance(error, Failure)


def requested_delay(error: Exception) -> float:
    """Seconds, by the provider's `Retry-After`, or by what Google has for it in the body; 0: it does not say."""
    if isinstance(error, ModelAPIError) and error.retry_after:
        return error.retry_after
    return _retry_info(error.body) if isinstance(error, ModelHTTPError) else 0.0


def _retry_info(body: object) -> float:
    """Of `google.rpc.RetryInfo`: its `retryDelay` is a number of seconds with an s."""
    error = body.get("error", body) if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and SECONDS.fullmatch(delay):
            return float(delay.removesuffix("s"))
    return 0.0


def toolcrib_cause(error: BaseException) -> ToolcribError | None:
    """Our own word about an answer, where an SDK took it for a failed connection."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ToolcribError):
        cause = cause.__cause__
    return cause


def failure_reason(error: Exception) -> str:
    """In one line: `429: the words of the provider`."""
    if isinstance(error, ModelHTTPError):
        return _short(f"{error.status_code}: {_words(error.body)}".removesuffix(": "))
    if isinstance(error, ModelConnectionError):
        what = "timed out" if isinstance(error, ModelTimeoutError) else "connection failed"
        return _short(f"{what}: {_root(error)}")
    return _short(str(error))


def _root(error: BaseException) -> str:
    """What it all came from: the SDKs say no more than that there was an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _words(body: object) -> str:
    """Providers wrap their message as `{"error": {"message": …}}`, or send a text."""
    while isinstance(body, dict):
        body = body.get("error", body.get("message"))
    return body if isinstance(body, str) else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


BY_STATUS = {
    400: "The provider does not take this request: check the model's name, `settings`, and what the tools returned.",
    401: "Check the key: `api_key`, or the provider's variable.",
    402: "The provider wants to be paid first.",
    403: "This key may not use the model.",
    404: "Check the model's name, and `base_url` if you gave one.",
    413: "The conversation has become too long for the provider: begin a new one.",
    429: "The provider wants fewer requests: wait, or raise `retries`.",
}
LATER = "The provider is in trouble: try again later, or raise `retries`."
SAYS_NOTHING = "Check the model's name and `settings`, or ask in other words."
BROKEN = "Run it again with `history=` this run's `messages`, or raise `retries`."
STOPPED = "The provider's documentation explains this stop reason."
UNREACHED = "Check the network, and `base_url` if you gave one."


def is_known_failure(error: Exception) -> bool:
    """Whether the words say enough; of any other the log has the whole."""
    return isinstance(error, AgentRunError | UserError)


def error_text(error: Exception) -> str:
    return failure_reason(error) if is_known_failure(error) else f"{type(error).__name__}: {error}"


def error_remedy(error: Exception) -> str:
    if isinstance(error, ModelQuotaExceededError):
        return "The account's quota is used up: raise it with the provider."
    if isinstance(error, ModelHTTPError):
        return BY_STATUS.get(error.status_code, LATER if error.status_code >= 500 else "")
    if isinstance(error, EmptyAnswer):
        return SAYS_NOTHING
    if isinstance(error, BrokenAnswer):
        return BROKEN
    if isinstance(error, AnswerStopped):
        return STOPPED
    return UNREACHED if isinstance(error, ModelAPIError) else ""
