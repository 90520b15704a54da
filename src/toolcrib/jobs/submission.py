"""Checks a submission: the job's permissions, its folder, its model or program.

In: a principal, its project, its order. Out: a row for the store, or an error with a remedy. A job never has more
permissions than its submitter: an agent's job is a child of that agent, the job of a client without an agent has the
client's profile, and only the owner chooses freely. Only the owner's configuration determines where an API key is
sent. Conditions that can change while a job waits are checked again when it starts.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from pathlib import Path

from toolcrib.agent_loop.models.endpoint import find_endpoint
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.coding_agents.clients import client_named
from toolcrib.coding_agents.program import find_program
from toolcrib.commands.job import SubmitJob
from toolcrib.config.job_settings import JobSettings
from toolcrib.config.masking import storable
from toolcrib.config.paths import is_project, project_of
from toolcrib.config.settings import AGENT_LOOP, PROGRAMS
from toolcrib.core.crib import Crib
from toolcrib.errors import ConfigError, Denied, UsageError
from toolcrib.identity.agent import Agent
from toolcrib.identity.principal import CLIENT, OWNER, Principal
from toolcrib.policy import Verdict
from toolcrib.store.jobs import JobRow, JobStatus

SUBMIT_TOOL = ("crib", "job_submit")
LONGEST_PROMPT = 256 * 1024
"""Bytes."""
_OWNERS = "developer"
"""The default profile of the owner's jobs."""
_AGENTS = "trusted"
"""The default profile of an agent's jobs; as a child of that agent, the job has exactly the agent's permissions."""
_CLIENTS = frozenset({CLIENT.profile, "read-only", "nothing"})
"""The profiles for jobs of a client without an agent: its own, and those that allow strictly less."""
_MENTION = re.compile(r"(?<!\w)@\S")
"""Coding agents read a mentioned file and show it to the model, whatever their tools may do."""


def settings_of(crib: Crib) -> JobSettings:
    config = crib.projects.home.config
    if problem := config.unusable.get("jobs"):
        raise ConfigError(str(problem), remedy="Correct it in your configuration; no job starts before that.")
    return config.settings.jobs


def submitter_of(crib: Crib, principal: Principal) -> Agent | None:
    """None for the owner and for a client without an agent."""
    return None if principal.name in (OWNER.name, CLIENT.name) else crib.services.agents.find(principal.name)


def row_for(crib: Crib, principal: Principal, root: Path, order: SubmitJob, *, daemon: str) -> JobRow:
    settings, agent = settings_of(crib), submitter_of(crib, principal)
    prompt = _checked_prompt(order.prompt)
    if order.runs != AGENT_LOOP and principal.name != OWNER.name:
        _check_allowed(order.runs, settings)
        _refuse_mentions(prompt)
    kept = storable(crib.environment.mask.known(prompt))
    folder = _folder(principal, agent, root, order.workdir or "")
    return JobRow(
        id=f"job-{secrets.token_hex(5)}",
        daemon=daemon,
        submitter=principal.name,
        submitter_since=0.0 if agent is None else agent.created_at,
        runs=order.runs,
        model=_model(crib, principal, order, settings),
        profile=_profile(crib, principal, agent, order.profile or ""),
        workdir=str(folder),
        root=str(project_of(folder)),
        prompt=kept,
        masked=kept != prompt,
        timeout=_timeout(order.timeout, settings),
        max_steps=order.max_steps,
        status=JobStatus.QUEUED,
        submitted_at=time.time(),
    )


def _checked_prompt(prompt: str) -> str:
    if not prompt.strip():
        raise UsageError("The prompt is empty.", remedy="Describe the job's task.")
    if len(prompt.encode(errors="surrogatepass")) > LONGEST_PROMPT:
        raise UsageError(
            f"The prompt has more than {LONGEST_PROMPT // 1024} KiB.",
            remedy="Put long text into a file in the job's folder, and name the file.",
        )
    return prompt


def _check_allowed(program: str, settings: JobSettings) -> None:
    if program in settings.programs:
        return
    if program not in PROGRAMS:
        raise Denied(
            f"{program} runs only in the owner's jobs, because it follows links when it reads context files.",
            remedy="Omit `with` to run a model with your tools.",
        )
    raise Denied(
        f"Agents may not run {program}.",
        remedy=f"Omit `with`, or ask the owner to set `jobs: {{programs: [{program}]}}` in the configuration.",
    )


def _refuse_mentions(prompt: str) -> None:
    if found := _MENTION.search(prompt):
        word = prompt[found.start() :].split(maxsplit=1)[0]
        raise UsageError(
            f"The prompt mentions {word[:80]!r}: the program would read that file without a permission check.",
            remedy="Name it without the @; the program reads it with its tools.",
        )


def _profile(crib: Crib, principal: Principal, agent: Agent | None, wanted: str) -> str:
    if agent is not None:
        if wanted and wanted not in crib.services.agents.profiles:
            # Agents need not know the profiles.
            raise UsageError(f"There is no profile {wanted[:80]!r}.", remedy="Omit it to use yours.")
        return _no_owner(wanted or _AGENTS)
    if principal.name == OWNER.name:
        return crib.services.agents.profile(_no_owner(wanted or _OWNERS)).name
    if wanted and wanted not in _CLIENTS:
        raise Denied(
            f"Jobs of a client without an agent have the profile {CLIENT.profile}, not {wanted[:80]!r}.",
            remedy="Omit it, or use read-only.",
        )
    return wanted or principal.profile


def _no_owner(profile: str) -> str:
    if profile == OWNER.profile:
        raise UsageError("No job can have the profile owner.", remedy="`trusted` is the widest profile for a job.")
    return profile


def _folder(principal: Principal, agent: Agent | None, root: Path, wanted: str) -> Path:
    """The submitter's folder, or one inside it. The owner may choose any."""
    own = (root if agent is None or agent.workdir is None else agent.workdir).resolve()
    # `os.path`, because pathlib raises for a loop of links and for an unreadable folder.
    folder = Path(os.path.realpath(own / wanted))
    if principal.name != OWNER.name and not folder.is_relative_to(own):
        raise Denied(
            f"{wanted[:200]!r} is not inside {own}, the folder of {principal.name}.",
            remedy="Choose a folder inside it.",
        )
    if not os.path.isdir(folder):  # noqa: PTH112
        raise UsageError(f"{folder} is not a folder.", remedy="Give an existing folder.")
    project = project_of(folder)
    if principal.name != OWNER.name and project != project_of(own) and is_project(project):
        raise Denied(
            f"{folder} is in another project, {project}, with its own servers and settings.",
            remedy="Choose a folder in your own project.",
        )
    return folder


def _timeout(wanted: float | None, settings: JobSettings) -> float:
    if wanted is not None and wanted > settings.max_timeout:
        raise UsageError(
            f"A job may take {settings.max_timeout:.0f} s at most.",
            remedy="Lower timeout; the owner sets the limit with `jobs: max_timeout` in the configuration.",
        )
    return settings.timeout if wanted is None else wanted


def _model(crib: Crib, principal: Principal, order: SubmitJob, settings: JobSettings) -> str:
    if order.runs != AGENT_LOOP:
        if order.model:
            raise UsageError(
                f"{order.runs} takes its model from its own configuration.", remedy="Omit model, or omit `with`."
            )
        return ""
    model = order.model or settings.model
    if not model:
        raise UsageError(
            "The job has no model, and no default model is configured.",
            remedy="Give one with `--model PROVIDER:MODEL`, or set `jobs: {model: provider:model}` in the "
            "configuration."
            if principal.name == OWNER.name
            else "The owner can set `jobs: {model: provider:model}` in the configuration.",
        )
    if principal.name != OWNER.name:
        _check_choice(principal.name, model, settings)
    _check_model(crib, model, order.max_steps, settings)
    return model


def _check_choice(submitter: str, model: str, settings: JobSettings) -> None:
    if not settings.allows(model):
        allowed = ", ".join(one for one in (settings.model, *settings.models) if one)
        raise Denied(
            f"Jobs of {submitter} may not use the model {model[:120]!r}.",
            remedy=f"Allowed: {allowed}." if allowed else "The owner allows models with `jobs: models`.",
        )


def _check_model(crib: Crib, model: str, max_steps: int, settings: JobSettings) -> None:
    provider = model.partition(":")[0]
    try:
        find_endpoint(
            AgentOptions(
                model=model,
                base_url=settings.base_urls.get(provider, ""),
                api_key=settings.api_keys.get(provider, ""),
                max_steps=max_steps,
                environ=crib.environment.variables,
            )
        )
    except UsageError as error:
        variables = error.data.get("variables")
        if not variables:
            raise
        raise UsageError(
            error.message,
            remedy=f"The owner can set {' or '.join(variables)} in the daemon's environment, or `jobs: api_keys` in "
            "the configuration.",
        ) from None


def check_again(crib: Crib, row: JobRow) -> None:
    """Raises `Denied` if its submitter may no longer submit the job. That the submitter exists was checked before."""
    if row.submitter == OWNER.name:
        return
    settings = settings_of(crib)
    permission = crib.services.agents.find(row.submitter).permission if row.submitter_since else CLIENT.permission()
    tool = next(
        (one for one in crib.projects.home.catalog.of_server(SUBMIT_TOOL[0]) if one.name == SUBMIT_TOOL[1]), None
    )
    decision = None if tool is None else permission.decide(tool, {})
    if decision is None or decision.verdict is Verdict.DENY:
        raise Denied(f"{row.submitter} may no longer submit jobs.", remedy="Ask the owner.")
    if row.runs == AGENT_LOOP:
        _check_choice(row.submitter, row.model, settings)
    else:
        _check_allowed(row.runs, settings)


async def check_program(crib: Crib, row: JobRow) -> None:
    """Raises `NotFound` if the job's coding agent is not installed or too old."""
    if row.runs == AGENT_LOOP:
        return
    await asyncio.to_thread(find_program, client_named(row.runs), crib.environment.variables, Path(row.workdir))
