"""`docs/errors.md`, made of the table that the gateway answers by.

In: `errors.ANSWERS`. Out: Markdown on stdout: `python tools/error_docs.py > docs/errors.md`. A test holds
the file against it, and another walks the table against a running daemon.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from toolcrib.errors import ANSWERS, ErrorAnswer, ErrorCase

INTRODUCTION = """\
# What a client gets when something is wrong

Made from the table in `toolcrib/errors.py` by `python tools/error_docs.py > docs/errors.md`; a test keeps
it so, and another asks a running daemon for every row.

Every version of MCP is served at one endpoint. The tables have the HTTP status for clients of version 2026-07-28, and
for those of 2025-11-25 and earlier. What fails before a call is understood has an HTTP status of its own and a JSON-RPC
error with the id `null`, or the request's where that could be read. From then on an earlier client gets status 200,
since it takes any other for a broken connection; a client of 2026-07-28 gets what the specification says. `401` comes
with `WWW-Authenticate`, `405` with `Allow`.

Over the bridge (`toolcrib stdio`) there is no status: the same code and text come as a line. A token that is not known
ends the bridge's connection with that line.

Names in braces are filled in. Codes of Toolcrib's own lie outside -32768 to -32000, which JSON-RPC and MCP keep for
themselves. An error that a server itself answers a call with is passed on as it is, with status 200; to a client of
2026-07-28 with the status that the specification gives its code.
"""

MODEL = """\
These are results with `isError: true`, status 200 and no code, so that clients hand the text to the model. A tool that
is denied comes with the rule that decided. Suggestions, and what is known of a server, name only what the agent may
use.

A tool may ask for input before it goes on (`input_required`). A client of 2026-07-28 gets the question as the server
sent it. An earlier client cannot answer it: the call fails with a text that says so. It fails alike in the library and
on the command line. A tool whose `execution.taskSupport` is `required` is not listed, since tasks are not supported
yet; `toolcrib servers` names it, and a call is denied with that reason. A result without a `resultType` is complete,
and a client of 2026-07-28 gets it with that type.

Arguments are checked as JSON Schema says, with one difference: null is also taken where a server allows it in other
words, by OpenAPI's `nullable: true`, by a default of null, or by null in only one of `type` and `enum`.
"""


def errors_page() -> str:
    before = [case for case, answer in ANSWERS.items() if answer.code is not None and not _within(answer)]
    within = [case for case, answer in ANSWERS.items() if answer.code is not None and _within(answer)]
    model = [case for case, answer in ANSWERS.items() if answer.code is None]
    return "\n".join(
        [
            INTRODUCTION,
            "## Before a call is understood\n",
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
