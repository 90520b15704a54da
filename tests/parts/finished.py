"""Results of commands that never ran, for tests of how results are shown."""

from __future__ import annotations

from toolcrib.workspace.sandbox.command import CapturedOutput, CommandEnding, SandboxResult


def finished(
    *,
    ending: CommandEnding = CommandEnding.EXITED,
    code: int | None = 0,
    signal: int | None = None,
    out: bytes = b"",
    err: bytes = b"",
) -> SandboxResult:
    return SandboxResult(
        ending=ending,
        code=code,
        signal=signal,
        stdout=CapturedOutput(head=out, total=len(out)),
        stderr=CapturedOutput(head=err, total=len(err)),
        report=b"",
        seconds=1.5,
    )
