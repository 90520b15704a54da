"""The line of a server's stderr that explains its end. The texts were printed by real programs."""

import textwrap

import pytest

from toolcrib.servers.last_words import ProbeNoise, cache_remedy, explanation, fetch_failed
from toolcrib.servers.stdio import _how_it_ended

pytestmark = pytest.mark.req("BNS-9")

NPM_MISSING = """
    npm warn exec The following package was not found and will be installed: no-such-server
    npm error code E404
    npm error 404 Not Found - GET https://registry.example/no-such-server
    npm error 404
    npm error 404  The requested resource 'no-such-server@*' could not be found.
    npm error 404
    npm error 404 Note that you can also install from a
    npm error 404 tarball, folder, http url, or git url.
    npm error A complete log of this run can be found in: /home/u/.npm/_logs/2026-11-18T20_41_13_838Z-debug-0.log
"""
NPM_VERSION = """
    npm error code ETARGET
    npm error notarget No matching version found for server@99.0.0.
    npm error notarget In most cases you are requesting a package version that doesn't exist.
    npm error A complete log of this run can be found in: /home/u/.npm/_logs/2026-11-18T20_41_55_998Z-debug-0.log
"""
NPM_OFFLINE = """
    npm error code ECONNREFUSED
    npm error syscall connect
    npm error errno ECONNREFUSED
    npm error FetchError: request to http://127.0.0.1:9/server failed, reason: connect ECONNREFUSED 127.0.0.1:9
    npm error     at ClientRequest.<anonymous> (/usr/lib/node_modules/npm/index.js:130:14)
    npm error   type: 'system'
    npm error }
    npm error
    npm error If you are behind a proxy, please make sure that the 'proxy' config is set properly.
    npm error A complete log of this run can be found in: /home/u/.npm/_logs/2026-11-18T20_42_07_785Z-debug-0.log
"""
NPM_NOT_EMPTY = """
    npm error code ENOTEMPTY
    npm error syscall rename
    npm error path /home/u/.npm/_npx/15b07286cbcc3329/node_modules/zod
    npm error dest /home/u/.npm/_npx/15b07286cbcc3329/node_modules/.zod-9DKb0Mwb
    npm error errno -39
    npm error ENOTEMPTY: directory not empty, rename '/home/u/.npm/_npx/15b07286cbcc3329/node_modules/zod' -> '/x'
"""
NPM_COMPROMISED = """
    npm error code ECOMPROMISED
    npm error Lock compromised
    npm error A complete log of this run can be found in: /home/u/.npm/_logs/2026-11-18T20_42_07_785Z-debug-0.log
"""
NODE_IN_CACHE = """
    node:internal/modules/run_main:123
        triggerUncaughtException(
        ^

    Error [ERR_MODULE_NOT_FOUND]: Cannot find module '/home/u/.npm/_npx/15b07286cbcc3329/a.js' imported from /b
    Did you mean to import "@modelcontextprotocol/sdk/dist/cjs/server/mcp.js"?
        at finalizeResolution (node:internal/modules/esm/resolve:283:11)
      code: 'ERR_MODULE_NOT_FOUND',
    }

    Node.js v20.20.2
"""
NODE_SYNTAX = """
    /srv/w.js:1
    let x = ;
            ^

    SyntaxError: Unexpected token ';'
        at wrapSafe (node:internal/modules/cjs/loader:1464:18)

    Node.js v20.20.2
"""
PYTHON = """
    Traceback (most recent call last):
      File "/srv/f.py", line 2, in f
        g()
    ValueError: DATABASE_URL is not set
"""
PYTHON_GROUP = """
      |   File "/usr/lib/python3.11/asyncio/taskgroups.py", line 145, in __aexit__
      |     raise me from None
      | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
      +-+---------------- 1 ----------------
        | Traceback (most recent call last):
        |   File "<string>", line 3, in a
        | RuntimeError: no connection to db
        +------------------------------------
"""
UV_MISSING = """
    error: No solution found when resolving tool dependencies
      cause: Because no-such-server was not found in the package registry, your requirements are unsatisfiable.
"""
UV_OLDER = """
      \N{MULTIPLICATION SIGN} No solution found when resolving tool dependencies:
      ╰─▶ Because no-such-server was not found in the package registry, your requirements are unsatisfiable.
"""
UV_EXPLAINED = (
    "No solution found when resolving tool dependencies: "
    "Because no-such-server was not found in the package registry, your requirements are unsatisfiable."
)
DOCKER = """
    docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?

    Run 'docker run --help' for more information
"""
GO = """
    panic: runtime error: invalid memory address or nil pointer dereference

    goroutine 1 [running]:
    main.main()
"""
CLICK = """
    usage: srv [-h] --key KEY
    srv: error: the following arguments are required: --key
"""
LOGGED = """
    2026-11-18 21:00:00 [info] starting
    2026-11-18 21:00:01 ERROR no permission for /data
    bye
"""


def lines(text: str) -> list[str]:
    return textwrap.dedent(text).strip("\n").splitlines()


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (NPM_MISSING, "npm error: 404 Not Found - GET https://registry.example/no-such-server"),
        (NPM_VERSION, "npm error: notarget No matching version found for server@99.0.0."),
        (NPM_OFFLINE, lines(NPM_OFFLINE)[3].replace("npm error", "npm error:")),
        (NPM_NOT_EMPTY, lines(NPM_NOT_EMPTY)[-1].replace("npm error", "npm error:")),
        (NPM_COMPROMISED, "npm error: Lock compromised"),
        (NODE_IN_CACHE, lines(NODE_IN_CACHE)[4]),
        (NODE_SYNTAX, "SyntaxError: Unexpected token ';'"),
        (PYTHON, "ValueError: DATABASE_URL is not set"),
        (PYTHON_GROUP, "RuntimeError: no connection to db"),
        (UV_MISSING, f"error: {UV_EXPLAINED}"),
        (UV_OLDER, UV_EXPLAINED),
        (DOCKER, lines(DOCKER)[0]),
        (GO, lines(GO)[0]),
        (CLICK, "srv: error: the following arguments are required: --key"),
        (LOGGED, "2026-11-18 21:00:01 ERROR no permission for /data"),
        ("Error: GITHUB_TOKEN is not set\nExiting", "Error: GITHUB_TOKEN is not set"),
        ("sh: 1: nosuchprogram: not found", "sh: 1: nosuchprogram: not found"),
        ("started\nI am dying of thirst\n\n}", "I am dying of thirst"),
        ("", ""),
    ],
)
def test_the_line_that_explains_the_end_is_found(printed, shown):
    assert explanation(lines(printed)) == shown


@pytest.mark.parametrize(
    ("printed", "names"),
    [
        (NPM_NOT_EMPTY, "Delete /home/u/.npm/_npx/15b07286cbcc3329, then"),
        (NODE_IN_CACHE, "Delete /home/u/.npm/_npx/15b07286cbcc3329, then"),
        (NPM_COMPROMISED, "`npm config get cache`"),
        ("Error: Cannot find module '/home/u/mine/server.js'", ""),
        ("Error: Cannot find module '/home/u/_npx.js'", ""),
        (NPM_MISSING, ""),
    ],
)
def test_a_broken_npx_cache_has_a_remedy(printed, names):
    found = cache_remedy(lines(printed))
    assert names in found
    assert bool(found) == bool(names)


def test_the_remedy_and_the_cause_come_first():
    told = _how_it_ended(1, lines(NODE_IN_CACHE))
    assert told.startswith("npx's copy of the package is broken. Delete /home/u/.npm/_npx/15b07286cbcc3329, then ")
    assert _how_it_ended(-9, ["Error: no"]) == "Error: no (its process was killed by signal 9)."
    assert _how_it_ended(3, []) == "Its process exited with code 3."


def test_a_launchers_own_failure_is_told_from_the_servers():
    assert all(fetch_failed(lines(text)) for text in (NPM_MISSING, UV_MISSING, UV_OLDER, DOCKER))
    assert not any(fetch_failed(lines(text)) for text in (NODE_IN_CACHE, PYTHON, CLICK))


def test_the_complaint_about_the_probe_is_removed_whatever_its_form():
    noise = """
        Failed to validate request: 2 validation errors for ClientRequest
        PingRequest.method
          Input should be 'ping' [type=literal_error, input_value='server/discover', input_type=str]
            For further information visit https://errors.example/2.14/v/literal_error
        InitializeRequest.params.protocolVersion
          Field required [type=missing, input_value={'_meta': {'io.modelconte...: '1'}}}, input_type=dict]
    """
    rich = """
        [11/18/26 21:00:00] WARNING  Failed to validate request: 2 validation errors for ClientRequest    session.py:1
                                     PingRequest.method
                                       Input should be 'ping' [type=literal_error,
                                     input_value='server/discover', input_type=str]
    """
    assert ProbeNoise().removed(["before", *lines(noise), "after", *lines(rich), "end"]) == ["before", "after", "end"]
    kept = ["PingRequest.method", "  Field required [type=missing, input_value=1, input_type=int]"]
    assert ProbeNoise().removed(kept) == kept, "only after the complaint"
