"""Whether this process runs in continuous integration, where nobody watches what a shell does.

In: the environment. Out: the variable that says so.
"""

from __future__ import annotations

from collections.abc import Mapping

_VARIABLES = (
    "CI",
    "CONTINUOUS_INTEGRATION",
    "BUILD_NUMBER",
    "GITHUB_ACTIONS",
    "GITEA_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "JENKINS_URL",
    "HUDSON_URL",
    "TF_BUILD",
    "TEAMCITY_VERSION",
    "CIRCLECI",
    "TRAVIS",
    "APPVEYOR",
    "DRONE",
    "WOODPECKER_CI",
    "BITBUCKET_BUILD_NUMBER",
    "CODEBUILD_BUILD_ID",
    "CIRRUS_CI",
    "SEMAPHORE",
    "bamboo_buildKey",
)
_NO = frozenset({"", "0", "false", "no", "off"})


def in_ci(environ: Mapping[str, str]) -> str:
    """The first variable that says so, or nothing. One that is set to a no does not."""
    return next((name for name in _VARIABLES if environ.get(name, "").strip().lower() not in _NO), "")
