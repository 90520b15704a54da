"""Accounts when authorization servers, servers, disks and clocks misbehave: nothing is lost, and nobody is hammered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.responses import HTMLResponse, RedirectResponse, Response

from parts.authorization_server import READ, AuthorizationServer
from parts.signing_in import open_address
from parts.small_disk import small_disk
from parts.waiting import during, until
from toolcrib.config.from_code import server_config
from toolcrib.config.masking import HIDDEN, Masker
from toolcrib.config.model import ServerConfig
from toolcrib.config.paths import Paths
from toolcrib.credentials.vault import Vault
from toolcrib.errors import CallTimeout, ServerFailure, ServerUnavailable
from toolcrib.events import Bus
from toolcrib.servers import account as accounts
from toolcrib.servers import checked_http, renewal
from toolcrib.servers.account import AccountRecord, Accounts, account_key, load_account, store_account
from toolcrib.servers.model import ToolCall
from toolcrib.servers.pool import ServerPool
from toolcrib.servers.redirect_listener import RedirectListener
from toolcrib.servers.server import Server
from toolcrib.servers.sign_in import SignInOrder, sign_in

pytestmark = pytest.mark.req("BNS-6")

FAILED = "The sign-in at server 'web' could not be renewed: "


@pytest.fixture
def authorization() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


class User:
    """A person who has signed in, and their connection."""

    def __init__(self, home: Path, authorization: AuthorizationServer) -> None:
        self.authorization = authorization
        self.vault = Vault(Paths.of_user({"TOOLCRIB_HOME": str(home)}))
        self.config: ServerConfig = server_config("web", {"url": authorization.url})
        self.pool = ServerPool(bus=Bus(), on_tools=lambda _: None, vault=self.vault)
        self.server: Server

    @classmethod
    @contextlib.asynccontextmanager
    async def signed_in(cls, home: Path, authorization: AuthorizationServer) -> AsyncIterator[User]:
        user = cls(home, authorization)
        await user.sign_in()
        try:
            user.server = user.pool.acquire(user.config)
            await user.server.settled()
            yield user
        finally:
            await user.pool.close()

    async def sign_in(self) -> None:
        async def browse(url: str, _: RedirectListener) -> None:
            await asyncio.to_thread(open_address, url)

        await sign_in(SignInOrder(config=self.config, vault=self.vault, mask=Masker(), show=browse))

    @property
    def record(self) -> AccountRecord:
        record = load_account(self.vault, account_key(self.config))
        assert record is not None
        return record

    def change(self, **fields: Any) -> None:
        store_account(self.vault, account_key(self.config), msgspec.structs.replace(self.record, **fields))

    async def call(self, tool: str = "whoami", **how: Any) -> str:
        answer = await self.server.call(ToolCall(name=tool), **how)
        assert answer.result is not None
        return str(json.loads(answer.result)["content"][0]["text"])


@pytest.fixture
async def user(authorization: AuthorizationServer, tmp_path: Path) -> AsyncIterator[User]:
    async with User.signed_in(tmp_path, authorization) as user:
        yield user


BAD_TOKENS: dict[str, tuple[Response | str, str]] = {
    "10 MB": (Response(b" " * 10_000_000), "/token sent more than 1024 KB"),
    "endless": ("endless", "/token sent more than 1024 KB"),
    "compressed": (Response(b"", headers={"Content-Encoding": "gzip"}), "compresses its answers"),
    "a page": (HTMLResponse("<script>"), "answered without a usable token"),
    "a list": (Response("[1]"), "answered without a usable token"),
    "nested": (Response("[" * 100_000), "answered without a usable token"),
    "a failure": (HTMLResponse("<h1>secret", 500), r"refused to renew the token \(HTTP 500\)"),
}


@pytest.mark.parametrize("what", list(BAD_TOKENS))
async def test_a_bad_answer_to_a_renewal_is_reported_and_changes_nothing(user: User, what: str) -> None:
    answer, reason = BAD_TOKENS[what]
    before = user.record
    user.authorization.expire()
    user.authorization.answers["token"] = answer
    for _ in range(5):
        with pytest.raises(ServerUnavailable, match=f"{FAILED}.*{reason}.* The call did not run") as failed:
            await user.call()
        assert "<" not in failed.value.text()
        assert not any(token in failed.value.text() for token in user.authorization.grants)
    assert msgspec.structs.replace(user.record, pending=None) == before


BAD_MEMBERS: dict[str, dict[str, Any]] = {
    "no bearer": {"token_type": "mac"},
    "no type": {"token_type": None},
    "no token": {"access_token": None},
    "a number": {"access_token": 5},
    "a space": {"access_token": "a b"},
    "a huge token": {"access_token": "a" * 100_000},
}


@pytest.mark.parametrize("what", list(BAD_MEMBERS))
async def test_an_unusable_token_is_refused(user: User, what: str) -> None:
    user.authorization.expire()
    user.authorization.changes["token"] = BAD_MEMBERS[what]
    with pytest.raises(ServerUnavailable, match=f"{FAILED}.*answered without a usable token"):
        await user.call()
    assert user.record.pending is not None


async def test_a_moved_token_endpoint_gets_no_token(user: User) -> None:
    with AuthorizationServer.running() as other:
        user.authorization.expire()
        user.authorization.answers["token"] = RedirectResponse(f"{other.issuer}/token", 307)
        with pytest.raises(ServerUnavailable, match=rf"{FAILED}.*refused to renew the token \(HTTP 307\)"):
            await user.call()
        assert other.requests == []
    assert user.record.pending is None


async def test_a_moved_server_gets_no_token(user: User) -> None:
    with AuthorizationServer.running() as other:
        user.authorization.answers["mcp"] = RedirectResponse(other.url, 307)
        with pytest.raises(ServerUnavailable, match="redirects to"):
            await user.call()
        assert other.mcp_requests == []


async def test_a_slow_renewal_ends(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_http, "ANSWERS_WITHIN", 0.2)
    with user.authorization.holding("token"):
        assert "did not answer in time" in await during(renewal._renew, order_of(user))
    assert user.record.pending is not None


def order_of(user: User) -> renewal._Order:
    paths = {name: str(path) for name, path in vars(user.vault.paths).items()}
    known = user.record.refreshed_at
    key = account_key(user.config)
    return renewal._Order(paths=paths, key=key, verify_tls=True, refreshed_at=known)


@pytest.mark.parametrize("seconds", [-1, 0, 10**400, float("nan"), float("inf"), "soon", [1], None])
def test_an_impossible_lifetime_is_unknown(seconds: Any) -> None:
    assert accounts.token_end(seconds, 1000.0) is None


def test_a_lifetime_may_be_text() -> None:
    assert accounts.token_end("3600", 1000.0) == 4600.0


async def test_a_past_lifetime_does_not_cause_more_renewals(authorization: AuthorizationServer, tmp_path: Path) -> None:
    authorization.changes["token"] = {"expires_in": -1, "scope": f"{READ} \u00e9 " + "x " * 200_000}
    async with User.signed_in(tmp_path, authorization) as user:
        assert len(user.record.scopes) <= 64
        authorization.expire()
        for _ in range(5):
            assert await user.call() == "sign-in 1"
        assert len(user.record.scopes) <= 64
    assert len(authorization.refreshes) == 1


async def test_a_server_that_rejects_every_token_is_not_answered_with_renewals(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = r"needs a sign-in again \(the server rejects its token\): run `toolcrib login web`"
    user.authorization.answers["mcp"] = Response(status_code=401)
    for _ in range(3):
        calls = [user.call() for _ in range(20)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, ServerUnavailable) for error in errors)
        with pytest.raises(ServerUnavailable, match=needed):
            await user.call()
    assert len(user.authorization.refreshes) == 1
    # As soon as the server accepts it, the token is used, and renewed when the server rejects it again.
    del user.authorization.answers["mcp"]
    assert await user.call() == "sign-in 1"
    monkeypatch.setattr(accounts, "_USELESS", 0.0)
    await user.server.restart()
    user.authorization.expire()
    user.change(expires_at=1.0)
    await user.server.restart()
    assert await user.call() == "sign-in 1"
    assert len(user.authorization.refreshes) == 2


async def test_a_failing_token_endpoint_is_not_asked_with_every_call(user: User) -> None:
    """Neither while the token still works, nor later."""
    now = time.time()
    user.change(refreshed_at=now - 3600, expires_at=now + 100)
    user.authorization.answers["token"] = Response(status_code=503)
    account = Accounts(user.vault, Masker()).of(user.config)
    assert account is not None
    await account.open()
    for _ in range(5):
        assert await account.current()
        await until(lambda: account._renewing is None, "the renewal to end")
    for _ in range(5):
        with pytest.raises(ServerUnavailable, match="HTTP 503"):
            await account.rejected(account.header)
    assert user.authorization.asked["token"] == 2  # with the sign-in


async def test_an_unanswered_attempt_of_another_process_is_not_repeated_before_the_end(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authorization server may have used up the refresh token, and would end the whole sign-in."""
    monkeypatch.setattr(accounts, "_RETRY", 0.0)
    now = time.time()
    user.change(refreshed_at=now - 3600, expires_at=now + 100)
    account = Accounts(user.vault, Masker()).of(user.config)
    assert account is not None
    await account.open()
    user.change(pending=now)
    with contextlib.suppress(ServerUnavailable):
        await account._begin_renewal()
    assert user.authorization.refreshes == []
    assert await account.current()
    user.change(expires_at=1.0)
    await account.open()
    assert len(user.authorization.refreshes) == 1


CHALLENGES = {
    "huge": 'Bearer error="insufficient_scope", scope="' + "a:b " * 1000 + '", x="' + "y" * 50_000 + '"',
    "unclosed": 'Bearer error="insufficient_scope", scope="issues:write',
    "no scope": "Bearer error=insufficient_scope",
    "controls": 'Bearer error="insufficient_scope", scope="a\tb"',
    "markup": 'Bearer error="insufficient_scope", scope="<b>`rm`"',
}


@pytest.mark.parametrize("what", list(CHALLENGES))
async def test_an_odd_challenge_gives_a_short_error(user: User, what: str) -> None:
    headers = {"WWW-Authenticate": CHALLENGES[what]}
    user.authorization.answers["mcp"] = Response(status_code=403, headers=headers)
    with pytest.raises(ServerUnavailable, match=r"needs another permission.*: run `toolcrib login web`") as failed:
        await user.call()
    assert len(failed.value.text()) < 400
    assert len(user.record.asked) <= 64


async def test_one_of_several_challenges_names_the_scope(user: User) -> None:
    for scope in ('"issues:write"', "issues:write"):
        challenged = Response(status_code=403)
        challenged.headers.append("WWW-Authenticate", f'Bearer error="insufficient_scope", scope={scope}')
        challenged.headers.append("WWW-Authenticate", 'Basic realm="x"')
        user.authorization.answers["mcp"] = challenged
        with pytest.raises(ServerUnavailable, match=r"another permission \(issues:write\): run"):
            await user.call()


async def test_only_the_last_tokens_stay_in_mind(user: User) -> None:
    """Each secret costs time with every text that is masked, and a daemon renews tokens for months."""
    mask = Masker()
    account = Accounts(user.vault, mask).of(user.config)
    assert account is not None
    for number in range(20):
        user.change(access_token=f"access-number-{number}", refresh_token="the-same-refresh", expires_at=None)
        await account.open()
    assert mask.known("access-number-19 access-number-12 the-same-refresh") == " ".join([HIDDEN] * 3)
    assert mask.known("access-number-3") == "access-number-3"


@pytest.mark.parametrize("status", [200, 401, 403])
async def test_a_head_without_end_is_refused(user: User, status: int) -> None:
    headers = {f"X-{number}": "x" * 7000 for number in range(12)}
    user.authorization.answers["mcp"] = Response(status_code=status, headers=headers)
    with pytest.raises(ServerFailure, match="more than 64 KB of headers"):
        await user.call()
    assert user.authorization.refreshes == []


async def test_a_full_disk_costs_no_sign_in(
    authorization: AuthorizationServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_RETRY", 0.0)
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        async with User.signed_in(disk / "home", authorization) as user:
            before = user.record
            filler = disk.fill()
            authorization.expire()
            with pytest.raises(ServerUnavailable, match=f"{FAILED}.*No space left on device"):
                await user.call()
            assert authorization.refreshes == []
            assert user.record == before
            filler.unlink()
            await user.server.restart()
            assert await user.call() == "sign-in 1"
    assert len(authorization.refreshes) == 1


async def test_a_disk_that_fills_during_a_renewal_costs_no_sign_in(
    authorization: AuthorizationServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", kilobytes=256) as disk:
        async with User.signed_in(disk / "home", authorization) as user:
            freed: list[float] = []

            def free(seconds: float) -> None:
                filler.unlink(missing_ok=True)
                freed.append(seconds)

            monkeypatch.setattr(renewal, "time", SimpleNamespace(time=time.time, sleep=free))
            with authorization.holding("token"):
                renewing = asyncio.create_task(during(renewal._renew, order_of(user)))
                await until(lambda: authorization.waiting("token"), "the renewal")
                filler = disk.fill()
            assert await renewing == ""
            assert freed == [0.1]
            assert user.record.access_token == authorization.tokens("access")[-1]


@pytest.mark.parametrize("days", [-10, 10])
async def test_a_clock_that_was_set_costs_at_most_one_renewal(user: User, days: int) -> None:
    """As seen by the record: it ends long ago, or in a long time."""
    moved = days * 86400
    user.change(refreshed_at=user.record.refreshed_at - moved, expires_at=(user.record.expires_at or 0) - moved)
    user.authorization.expire()
    await user.server.restart()
    for _ in range(5):
        assert await user.call() == "sign-in 1"
    assert len(user.authorization.refreshes) == 1
    assert user.authorization.reused == []


async def test_homes_have_sign_ins_of_their_own(authorization: AuthorizationServer, tmp_path: Path) -> None:
    async with (
        User.signed_in(tmp_path / "a", authorization) as one,
        User.signed_in(tmp_path / "b", authorization) as two,
    ):
        authorization.expire()
        assert await asyncio.gather(one.call(), two.call()) == ["sign-in 1", "sign-in 2"]
    assert len(authorization.refreshes) == 2
    assert authorization.reused == []


@pytest.mark.parametrize("end", ["time limit", "cancellation"])
async def test_a_renewal_outlives_the_call_that_began_it(user: User, end: str) -> None:
    user.authorization.expire()
    with user.authorization.holding("token"):
        call = asyncio.create_task(user.call(timeout=0.2 if end == "time limit" else None))
        await until(lambda: user.authorization.waiting("token"), "the renewal")
        if end == "cancellation":
            call.cancel()
        with pytest.raises(CallTimeout if end == "time limit" else asyncio.CancelledError):
            await call
        next_call = asyncio.create_task(user.call())
    assert await next_call == "sign-in 1"
    assert len(user.authorization.refreshes) == 1
    assert user.authorization.reused == []
