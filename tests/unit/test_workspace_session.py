"""What a session of the workspace may use up."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.session import WorkspaceSession
from toolcrib.workspace.settings.model import Limits


def limits(**chosen: float) -> Limits:
    return dataclasses.replace(Limits(), **chosen)


@pytest.mark.req("FRG-10")
def test_calls_end_with_the_limit_and_the_error_names_the_key():
    session = WorkspaceSession(limits(session_calls=3))
    for _ in range(3):
        session.count_call()
    with pytest.raises(WorkspaceError, match=r"all 3 calls") as refused:
        session.count_call()
    assert session.calls == 3
    assert "limits.session_calls" in refused.value.remedy


@pytest.mark.req("FRG-10")
def test_what_does_not_fit_the_quota_is_not_counted_and_less_still_fits():
    session = WorkspaceSession(limits(session_bytes=100))
    session.count_written(60)
    with pytest.raises(WorkspaceError, match="At most 40 bytes"):
        session.count_written(41)
    assert session.written == 60
    session.count_written(40)
    with pytest.raises(WorkspaceError, match="At most 0 bytes"):
        session.count_written(1)
    session.count_written(0)
    assert session.written == 100


@pytest.mark.req("FRG-10")
def test_seconds_of_commands_add_up_until_none_is_left():
    session = WorkspaceSession(limits(session_seconds=10.0))
    assert session.seconds_left() == 10.0
    session.count_seconds(4.0)
    assert session.seconds_left() == 6.0
    session.count_seconds(6.5)
    assert session.seconds == 10.5
    with pytest.raises(WorkspaceError, match="all 10 seconds of commands") as refused:
        session.seconds_left()
    assert "limits.session_seconds" in refused.value.remedy
    session.count_call()
    session.count_written(1)


@pytest.mark.req("FRG-10")
def test_a_limit_that_is_raised_while_the_session_runs_holds_at_once():
    session = WorkspaceSession(limits(session_calls=1))
    session.count_call()
    session.limits = limits(session_calls=2)
    session.count_call()
    with pytest.raises(WorkspaceError):
        session.count_call()


@pytest.mark.req("FRG-10")
def test_threads_together_never_get_more_than_the_limit():
    session = WorkspaceSession(limits(session_calls=500, session_bytes=3000))

    def use(_: int) -> tuple[int, int]:
        called = written = 0
        for _ in range(200):
            try:
                session.count_call()
                called += 1
            except WorkspaceError:
                pass
            try:
                session.count_written(7)
                written += 7
            except WorkspaceError:
                pass
            session.count_seconds(0.5)
        return called, written

    with ThreadPoolExecutor(8) as pool:
        used = list(pool.map(use, range(8)))
    assert sum(called for called, _ in used) == session.calls == 500
    assert sum(written for _, written in used) == session.written == 3000 // 7 * 7
    assert session.seconds == 8 * 200 * 0.5
