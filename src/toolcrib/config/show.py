"""Output for people: a configuration without secrets, and text without deceptive characters.

In: a `Config`; a text whose author may want to deceive its reader. Out: a plain JSON object for `config show`, where
values of env and headers are hidden and values from a variable are `${VAR}`; text with an escape (`\\u202e`) for each
character that is invisible or looks like an ASCII character. Ordinary words of any language stay readable. Backslashes
are not escaped: where the difference matters, pass the text as JSON. Use `visible` for text that a person approves or
trusts; `masking.printable` is enough for the rest.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from toolcrib.config.job_settings import JobSettings
from toolcrib.config.masking import HIDDEN, mask_args, mask_spelling, mask_text, mask_tree, printable
from toolcrib.config.model import Config, Grant, KeyPath, OAuthSettings, ServerConfig, Transport
from toolcrib.config.tool_rules import shown_rule

# ruff: noqa: RUF001


_WORD = re.compile(r"[0-9A-Za-z_\u0080-\U0010ffff]+")
_NO_SHAPE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible characters that Python calls printable."""
_LIKE_A_SIGN = re.compile(
    "[\u00b4\u00b7\u01c0-\u01c3\u02b9-\u02bf\u02c2-\u02df\u055a\u055d\u0589\u05c0\u05c3\u05f3\u05f4\u0609-\u061f\u066a-\u066d"
    "\u06d4\u0701-\u0704\u0964\u1735\u2010-\u2015\u2018-\u201f\u2022-\u2027\u2032-\u203a\u2041-\u2044\u204e\u204f\u2053"
    "\u2055-\u205e\u2212\u2215-\u2219\u2223\u2236\u223c\u22c5\u23d0\u2500-\u2503\u2571-\u2573\u2758\u275b-\u275f\u2768-\u2775"
    "\u27cb\u27cd\u29f5-\u29f9\u2e31-\u2e33\u3003\u3014\u3015\u4e28\u4e36\u4e3f\ua4ee-\ua4ff\ua718\ua789-\ua78c"
    "\u1173\u141f\u1420\u1427\u144a\u16cc\u1736\u23af\u2796\u2e3a\u2e3b\u3033\u3161\ua71d\ufe58]"
)
"""Look like ASCII punctuation, which decides what a command or a path means."""
_LIKE_LETTERS = frozenset(
    "аеорсухіјѕһԁԛԝӏАВЕЅІЈКМНОРСТУХҮӀԌԚԜҺЬЗ"
    "αγικνορυχωϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϜͿ"
    "օսհոցզքԼՍՕԱ"
    "ꓐꓑꓒꓓꓔꓕꓖꓗꓙꓚꓜꓝꓞꓟꓠꓡꓢꓣꓤꓥꓦꓧꓨꓩꓪꓫꓬꓭꓮꓯꓰꓱꓲꓳꓴ"
    "ᎠᎡᎢᎥᎩᎪᎫᎬᎳᎷᎻᎽᏀᏂᏃᏎᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏧ"
    "ıɑɡɩɪɴʀʏʙʜʟǀ"
)
_BESIDE_ASCII = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC")
"""Scripts that are written next to Latin words without a space."""


def visible(text: str) -> str:
    if not text.isascii():
        text = _WORD.sub(lambda found: _word(found[0]), text)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _word(word: str) -> str:
    if word.isascii():
        return word
    letters = [c for c in word if c.isalpha()]
    latin = any(c.isascii() for c in word if c.isalnum())
    alike = latin or all(c in _LIKE_LETTERS for c in letters)
    return "".join(_escaped(c) if _deceives(c, alike=alike) else c for c in word)


def _deceives(character: str, *, alike: bool) -> bool:
    """`alike`: the word around it has ASCII letters, or looks as if it had only those."""
    if character.isascii():
        return False
    if not character.isprintable() or _NO_SHAPE.match(character) or _LIKE_A_SIGN.match(character):
        return True
    plain = unicodedata.normalize("NFKC", character)
    if plain.isascii() and (len(plain) == 1 or plain.isalnum()):
        return True
    return alike and unicodedata.category(character)[0] in "LMN" and not _belongs_to_ascii(character)


def _belongs_to_ascii(character: str) -> bool:
    """Whether it is a Latin letter with a diacritic, or from a script that is written next to Latin letters."""
    if character in _LIKE_LETTERS:
        return False
    if "\u00c0" <= character <= "\u017f" or unicodedata.normalize("NFD", character)[0].isascii():
        return True
    return unicodedata.name(character, "").startswith(_BESIDE_ASCII)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def mask(config: Config) -> dict[str, Any]:
    """The configuration without secrets and without deceptive characters."""
    shown: dict[str, Any] = mask_tree(_masked(config), visible)
    return shown


def _masked(config: Config) -> dict[str, Any]:
    return {
        "servers": {printable(name): mask_server(server) for name, server in config.servers.items()},
        "settings": {
            "port": config.settings.port,
            "names": str(config.settings.names),
            "log_level": config.settings.log_level,
            "store": mask_text(config.settings.store),
            "audit_values": config.settings.audit_values,
            "audit_keep_days": config.settings.audit_keep_days,
            "audit_keep_mb": config.settings.audit_keep_mb,
            "session_idle_hours": config.settings.session_idle_hours,
            "result_tokens": config.settings.result_tokens,
            "workspace": config.settings.workspace,
            "pins": str(config.settings.pins),
            "jobs": _jobs(config.settings.jobs),
        },
        "tools": [shown_rule(rule.written) for rule in config.tools],
        "problems": [str(problem) for problem in config.problems],
        "untrusted": [printable(str(file)) for file in config.untrusted],
    }


def _jobs(jobs: JobSettings) -> dict[str, Any]:
    urls = {printable(provider): mask_args([url])[0] for provider, url in jobs.base_urls.items()}
    models = [printable(model) for model in jobs.models]
    keys = {printable(provider): HIDDEN for provider in jobs.api_keys}
    settings = {name: value for name, value in vars(jobs).items() if name != "spelled"}
    return {**settings, "model": printable(jobs.model), "models": models, "base_urls": urls, "api_keys": keys}


def mask_server(server: ServerConfig) -> dict[str, Any]:
    shown: dict[str, Any] = {"transport": str(server.transport), "source": printable(str(server.source))}
    if server.transport is Transport.STDIO:
        words = [_written(server, ("command",), server.command)]
        words += [_written(server, ("args", position), arg) for position, arg in enumerate(server.args)]
        command, *args = mask_args(words)
        shown |= {"command": command, "args": args, "env": _hidden(server, "env", server.env)}
        if server.cwd:
            shown["cwd"] = printable(_written(server, ("cwd",), server.cwd))
    else:
        shown |= {
            "url": mask_args([_written(server, ("url",), server.url)])[0],
            "headers": _hidden(server, "headers", server.headers),
            "verify_tls": server.verify_tls,
            **({"auth": _oauth(server, server.oauth)} if server.oauth not in (None, OAuthSettings()) else {}),
        }
    retry = {"max_attempts": server.retry.max_attempts, "backoff": server.retry.backoff}
    return shown | {
        "enabled": server.enabled,
        "disabled_tools": [printable(tool) for tool in server.disabled_tools],
        "connect_timeout": server.connect_timeout,
        "call_timeout": server.call_timeout,
        "call_timeouts": {printable(tool): seconds for tool, seconds in server.call_timeouts.items()},
        "cache": {printable(tool): seconds for tool, seconds in server.cache.items()},
        "max_waiting_calls": server.max_waiting_calls,
        "max_message_mb": server.max_message_mb,
        "retry": retry,
        "sampling": str(server.sampling),
        "roots": str(server.roots_mode),
        **({"pins": str(server.pins)} if server.pins is not None else {}),
    }


def _oauth(server: ServerConfig, oauth: OAuthSettings) -> dict[str, Any]:
    found = {key: value for key, value in vars(oauth).items() if value and key != "grant"}
    shown = {key: server.spelled.get(("auth", key), value) for key, value in found.items()}
    for secret in {"client_secret", "private_key"} & set(shown):
        shown[secret] = mask_spelling(server.spelled.get(("auth", secret), HIDDEN))
    kind = "oauth" if oauth.grant is Grant.SIGN_IN else "client_credentials"
    return {"type": kind, **shown}


def _written(server: ServerConfig, path: KeyPath, value: str) -> str:
    return server.spelled.get(path, value)


def _hidden(server: ServerConfig, table: str, values: Mapping[str, str]) -> dict[str, str]:
    """Literal values are hidden; `Bearer ${KEY}` stays readable."""
    spelled = server.spelled
    return {
        mask_text(name): mask_spelling(spelled[table, name]) if (table, name) in spelled else HIDDEN for name in values
    }
