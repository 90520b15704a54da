"""The end of a command that never ran, for tests of how ends are told."""

from __future__ import annotations

from toolcrib.workspace.sandbox.model import Captured, Ending, Finished


def finished(
    *,
    ending: Ending = Ending.EXITED,
    code: int | None = 0,
    signal: int | None = None,
    out: bytes = b"",
    err: bytes = b"",
) -> Finished:
    return Finished(
        ending=ending,
        code=code,
        signal=signal,
        stdout=Captured(head=out, total=len(out)),
        stderr=Captured(head=err, total=len(err)),
        report=b"",
        seconds=1.5,
    )
