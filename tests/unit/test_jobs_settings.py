"""`jobs:` in the configuration: the person's own word on models, keys and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolcrib.commands.job import SubmitJob
from toolcrib.config.layers import load
from toolcrib.config.model import Config, JobSettings
from toolcrib.config.paths import Paths
from toolcrib.config.show import mask

pytestmark = pytest.mark.req("KAI-9")


def loaded(home: Path, jobs: Any, **environ: str) -> Config:
    surroundings = {"TOOLCRIB_HOME": str(home), "HOME": str(home), **environ}
    (home / "config.json").write_text(json.dumps({"jobs": jobs}))
    return load(paths=Paths.of_user(surroundings), root=None, environ=surroundings)


def test_what_is_written_is_what_counts_and_keys_are_never_shown(tmp_path: Path) -> None:
    given = {
        "model": "openai:a",
        "models": ["anthropic:*"],
        "programs": ["claude"],
        "base_urls": {"openai": "http://127.0.0.1:1/v1"},
        "api_keys": {"openai": "${KEY}"},
        "max_running": 1,
        "max_waiting": 2,
        "max_per_agent": 3,
        "timeout": 4,
        "max_timeout": 5,
        "keep_days": 6,
    }
    config = loaded(tmp_path, given, KEY="hunter2-hunter2")
    assert not config.problems
    jobs = config.settings.jobs
    read = {"models": ("anthropic:*",), "programs": ("claude",), "api_keys": {"openai": "hunter2-hunter2"}}
    assert jobs == JobSettings(for_agents=True, **{**given, **read})
    assert jobs.spelled == {"openai": "${KEY}"}
    assert [jobs.allows(model) for model in ("openai:a", "anthropic:x", "openai:b")] == [True, True, False]
    shown = mask(config)
    assert "hunter2" not in json.dumps(shown) + repr(config)
    assert shown["settings"]["jobs"]["base_urls"] == given["base_urls"]


@pytest.mark.parametrize(
    ("jobs", "key"),
    [
        ([], "jobs"),
        ({"model": "gpt"}, "jobs.model"),
        ({"model": 3.5}, "jobs.model"),
        ({"models": "openai:*"}, "jobs.models"),
        ({"programs": ["gemini"]}, "jobs.programs[0]"),
        ({"programs": "claude"}, "jobs.programs"),
        ({"base_urls": {"openai": "ftp://x"}}, "jobs.base_urls.openai"),
        ({"api_keys": {"openai": "${NO_SUCH_KEY}"}}, "jobs.api_keys.openai"),
        ({"max_running": 0}, "jobs.max_running"),
        ({"max_waiting": 1.5}, "jobs.max_waiting"),
        ({"timeout": 10, "max_timeout": 5}, "jobs.timeout"),
        ({"max_runing": 3}, "jobs.max_runing"),
    ],
)
def test_a_mistake_is_named_and_none_of_it_counts(tmp_path: Path, jobs: Any, key: str) -> None:
    config = loaded(tmp_path, jobs)
    assert [problem.key for problem in config.problems] == [key]
    assert config.settings.jobs == JobSettings()
    assert "jobs" in config.unusable, "no job begins on settings that nobody wrote"


def test_a_project_has_no_say_in_them(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / ".toolcrib").mkdir(parents=True)
    evil = {"jobs": {"base_urls": {"openai": "http://evil.example"}}}
    (root / ".toolcrib" / "config.json").write_text(json.dumps(evil))
    environ = {"TOOLCRIB_HOME": str(tmp_path / "t"), "HOME": str(tmp_path)}
    config = load(paths=Paths.of_user(environ), root=root, environ=environ, is_trusted=lambda *_: True)
    assert config.settings.jobs == JobSettings()
    assert [problem.key for problem in config.problems] == ["jobs"]


def test_an_order_s_kind_is_called_with() -> None:
    assert SubmitJob.model_validate({"prompt": "p", "with": "claude"}).runs == "claude"
    assert "with" in SubmitJob.model_json_schema()["properties"]
    assert SubmitJob.model_json_schema()["required"] == ["prompt"]


@pytest.mark.parametrize("timeout", ["nan", "inf", 0, -1])
def test_a_time_limit_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        SubmitJob.model_validate({"prompt": "p", "timeout": timeout})
