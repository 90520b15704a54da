"""`${NAME}` and `${input:NAME}` stand for the user's secrets, which are masked and named before a file is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.layers import LastGood, load
from toolcrib.config.masking import Masker, secrets_of
from toolcrib.config.model import Config, Severity
from toolcrib.config.paths import Paths
from toolcrib.config.show import mask
from toolcrib.config.values import Secrets
from toolcrib.errors import StoreError

SECRET = "very-secret-value"


def loaded(
    folder: Path,
    value: str,
    secrets: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    last_good: LastGood | None = None,
    **more: Any,
) -> Config:
    """The configuration with a server whose variable V has this value."""
    (folder / "config.json").write_text(json.dumps({"servers": {"it": {"command": "x", "env": {"V": value}}}, **more}))
    paths = Paths.of_user({"TOOLCRIB_HOME": str(folder)})
    return load(paths=paths, root=None, environ=environ or {}, secrets=Secrets(dict(secrets).get), last_good=last_good)


def value_of(config: Config) -> str | None:
    return config.servers["it"].env["V"] if "it" in config.servers else None


@pytest.mark.req("BNS-3", "BNS-6")
@pytest.mark.parametrize(
    ("written", "environ", "value"),
    [
        ("${A}", {}, "secret"),
        ("${env:A}", {}, "secret"),
        ("${A}", {"A": "variable"}, "variable"),
        ("${A}", {"A": ""}, ""),
        ("${A:-default}", {}, "secret"),
        ("${B:-default}", {}, "default"),
        ("${input:A}", {"A": "variable"}, "secret"),
        ("${input:a-key.2}", {}, "with a dash"),
        ("<${input:A}>${A}", {}, "<secret>secret"),
        ("${input:A:-default}", {}, None),
        ("${input:B}", {"B": "variable", "input:B": "variable"}, None),
        ("${B}", {}, None),
    ],
)
def test_a_name_stands_for_the_variable_then_the_secret_and_an_input_only_for_the_secret(
    tmp_path: Path, written: str, environ: dict[str, str], value: str | None
) -> None:
    config = loaded(tmp_path, written, {"A": "secret", "a-key.2": "with a dash"}, environ)
    assert value_of(config) == value
    assert bool(config.problems) == (value is None)


def test_only_secrets_that_the_configuration_names_are_read(tmp_path: Path) -> None:
    asked: list[str] = []
    environ = {"HOME": "/h", "A": "x"}
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    (tmp_path / "config.json").write_text(json.dumps({"servers": {"it": {"command": "${A}", "args": ["${B:-}"]}}}))
    load(paths=paths, root=tmp_path, environ=environ, secrets=Secrets(asked.append))
    assert asked == ["B"], "neither HOME nor TOOLCRIB_PORT, whose value a secret must not decide"


def test_what_is_missing_is_told_with_the_command_and_the_files_own_description(tmp_path: Path) -> None:
    (problem,) = loaded(tmp_path, "${B}", {}).problems
    assert str(problem).endswith(
        "servers.it.env.V: found ${B}, which is not set, expected the environment variable B, or a secret of that "
        "name. Run `toolcrib secret set B`, set the variable where Toolcrib starts, or write ${B:-default}."
    )
    asks = [{"type": "promptString", "id": "key", "description": "Key of the shop\x1b", "password": True}, "odd", {}]
    config = loaded(tmp_path, "${input:key}", {}, inputs=asks)
    (problem,) = config.problems
    assert str(problem).endswith(
        "found ${input:key}, which is not set, expected a secret named key (Key of the shop\\x1b). "
        "Run `toolcrib secret set key`."
    )
    assert config.inputs == {"key": "Key of the shop\x1b"}


def test_a_secret_that_cannot_be_read_is_a_problem_of_its_entry_only(tmp_path: Path) -> None:
    def read(name: str) -> str | None:
        raise StoreError("/s/1234 cannot be decrypted.", remedy="Enter it again.")

    good, bad = {"command": "x"}, {"command": "x", "env": {"V": "${input:A}"}}
    (tmp_path / "config.json").write_text(json.dumps({"servers": {"good": good, "bad": bad}}))
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    config = load(paths=paths, root=None, environ={}, secrets=Secrets(read))
    assert list(config.servers) == ["good"]
    (problem,) = config.problems
    assert problem.severity is Severity.ERROR
    assert "/s/1234 cannot be decrypted" in str(problem)
    assert "Enter it again." in str(problem)


@pytest.mark.req("KSI-5")
def test_used_secrets_are_masked_wherever_they_are_used_and_shown_by_name(tmp_path: Path) -> None:
    entry = {"command": "x", "args": ["--on=${input:plain}"], "env": {"V": "a ${A}"}}
    store = {"store": "postgresql://u:${PG}@h/db"}
    (tmp_path / "config.json").write_text(json.dumps({"servers": {"it": entry}, **store}))
    secrets = {"plain": "plain-words", "A": SECRET, "PG": "pg-password", "OTHER": "unused-value"}
    paths = Paths.of_user({"TOOLCRIB_HOME": str(tmp_path)})
    config = load(paths=paths, root=None, environ={}, secrets=Secrets(secrets.get))
    assert config.servers["it"].secrets == {"plain", "A"}
    masker = Masker(secrets_of(config))
    assert masker("plain-words very-secret-value pg-password") == "**** **** ****"
    assert masker.named("plain-words") == "[secret plain of your secrets]"
    shown = mask(config)["servers"]["it"]
    assert shown["args"] == ["--on=${input:plain}"]
    assert not any(value in str(mask(config)) for value in secrets.values())


def test_a_removed_secret_is_not_used_any_longer(tmp_path: Path) -> None:
    good = LastGood()
    assert value_of(loaded(tmp_path, "${A}", {"A": SECRET}, last_good=good)) == SECRET
    assert value_of(loaded(tmp_path, "${input:A", {"A": SECRET}, last_good=good)) == SECRET, "a typing error"
    assert value_of(loaded(tmp_path, "${A}", {}, last_good=good)) is None


@pytest.mark.req("BNS-10")
def test_the_secrets_that_a_projects_file_would_use_are_named_before_it_is_trusted(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    headers = {"A": "${MINE}", "B": "${input:key}", "C": "${input:other}", "D": "${BROKEN}", "E": "${NOT:-x}"}
    (project / ".toolcrib").mkdir(parents=True)
    entry = {"servers": {"far": {"url": "https://far.example/mcp", "headers": headers}}}
    (project / ".toolcrib" / "config.json").write_text(json.dumps(entry))

    def read(name: str) -> str | None:
        if name == "BROKEN":
            raise StoreError("damaged")
        return {"MINE": SECRET, "key": SECRET}.get(name)

    secrets = Secrets(read)
    config = load(
        paths=Paths.of_user({"TOOLCRIB_HOME": str(home)}), root=project, environ={"HOME": "/h"}, secrets=secrets
    )
    (waiting,) = config.waiting
    assert [line.strip() for line in waiting.effects if line.startswith("  ${")] == [
        "${MINE} is your secret MINE, and its value is used",
        "${input:key} is your secret key, and its value is used",
        "${input:other} is not among your secrets",
        "${BROKEN} is your secret BROKEN, and its value is used",
        "${NOT} is not set in Toolcrib's environment: the text after :- is used",
    ]
    assert SECRET not in "".join(waiting.effects)
    assert secrets.used == {}
