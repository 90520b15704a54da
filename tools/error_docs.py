"""Generates `docs/errors.md` from the gateway's table of answers.

In: `errors.ANSWERS`. Out: Markdown on stdout: `python tools/error_docs.py > docs/errors.md`. One test keeps the file up
to date, another checks each row against a running daemon.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from toolcrib.errors import ANSWERS, ErrorAnswer, ErrorCase

INTRODUCTION = """\
# Errors

This page lists every error that the gateway returns to an MCP client. It is generated from `toolcrib/errors.py` with
`python tools/error_docs.py > docs/errors.md`; tests keep it up to date and check every row against a running daemon.

One endpoint serves every version of MCP. The tables show the HTTP status for clients of version 2026-07-28 and for
clients of 2025-11-25 or earlier. An error before the request is parsed has its own HTTP status and a JSON-RPC error
with the id `null`, or the request's id if it could be read. After that, an earlier client always gets status 200,
because it treats any other status as a broken connection; a client of 2026-07-28 gets the status in the specification.
`401` comes with `WWW-Authenticate`, `405` with `Allow`.

Over the bridge (`toolcrib stdio`) there is no status: the same code and text arrive as a line. An unknown token ends
the bridge's connection with that line.

Names in braces are filled in: `{setting}` is the limit that applied, such as the server's `call_timeout` or
`call_timeouts.TOOL`. Toolcrib's own codes are outside -32768 to -32000, the range reserved by JSON-RPC and
MCP. If a server answers a call with an error, Toolcrib forwards it unchanged with status 200, or, for a client of
2026-07-28, with the status that the specification assigns to its code.
"""

MODEL = """\
These are results with `isError: true`, status 200 and no code, so that clients pass the text to the model. A denial
names the rule that decided. Suggestions and server details mention only tools that the agent may use.

A server may [ask for input](questions.md) before a call continues. A `requestState` that does not belong to the agent
and its request, or that has been used or has expired, is answered with -32602 and the reason; so is the id of a
[task](tasks.md) that the agent does not have. A result without a `resultType` is complete, and a client of 2026-07-28
gets it with that type.

Arguments are validated against the JSON Schema, with one difference: null is also accepted if the server allows it
outside JSON Schema's rules: with OpenAPI's `nullable: true`, a default of null, or null in only one of `type` and
`enum`.
"""


def errors_page() -> str:
    before = [case for case, answer in ANSWERS.items() if answer.code is not None and not _within(answer)]
    within = [case for case, answer in ANSWERS.items() if answer.code is not None and _within(answer)]
    model = [case for case, answer in ANSWERS.items() if answer.code is None]
    return "\n".join(
        [
            INTRODUCTION,
            "## Before the request is parsed\n",
            _table(before),
            "## Within MCP, as an error\n",
            _table(within),
            "## Within MCP, as a result for the model\n",
            MODEL,
            _table(model),
        ]
    )


def _within(answer: ErrorAnswer) -> bool:
    return answer.legacy == 200


def _table(cases: Iterable[ErrorCase]) -> str:
    lines = ["| case | 2026-07-28 | earlier | code | text |", "|---|---|---|---|---|"]
    for case in cases:
        answer = ANSWERS[case]
        cells = (case, answer.modern or "", answer.legacy or "", answer.code or "", answer.text.replace("\n", " ⏎ "))
        lines.append(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(errors_page())
