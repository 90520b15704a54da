"""Nothing of a project's folder decides what code a server of the user's own configuration runs."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.launching import needs_project, portable_words, safe_launch
from toolcrib.config.layers import load
from toolcrib.config.model import Config, ServerConfig, StartFolder
from toolcrib.config.paths import Paths, empty_folder
from toolcrib.servers.pool import instance_key

pytestmark = pytest.mark.req("BNS-10")

HERE = "${workspaceFolder}"


def loaded(tmp_path: Path, **servers: dict[str, Any]) -> Config:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(json.dumps({"servers": servers}))
    environ = {"TOOLCRIB_HOME": str(home), "HOME": str(tmp_path), "PYTHON_CODE": HERE}
    return load(paths=Paths.of_user(environ), root=tmp_path / "project", environ=environ)


def one(tmp_path: Path, *words: str, **entry: Any) -> ServerConfig:
    config = loaded(tmp_path, it={"command": words[0], "args": list(words[1:]), **entry})
    assert not config.problems, config.problems
    return config.servers["it"]


def refusal(tmp_path: Path, *words: str, **entry: Any) -> str:
    config = loaded(tmp_path, it={"command": words[0], "args": list(words[1:]), **entry})
    assert "it" not in config.servers
    (problem,) = config.problems
    return problem.key


def test_an_entry_that_names_no_folder_starts_in_a_neutral_one_and_is_one_for_all_projects(tmp_path: Path) -> None:
    server = one(tmp_path, "python", "-m", "mymcp")
    neutral = tmp_path / "home" / "state" / "start"
    assert server.works_in(tmp_path / "project") == neutral
    assert server.start is StartFolder.NEUTRAL
    assert instance_key(server, Path("/a")) == instance_key(server, Path("/b"))
    # Where it takes relative paths from is not known, so no rule judges them.
    assert server.reads_from(tmp_path / "project") is None


def test_the_neutral_folder_is_the_users_alone_and_nothing_can_be_put_there(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "start"
    for _ in range(2):
        empty_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o500


def test_cwd_project_is_each_projects_folder(tmp_path: Path) -> None:
    server = one(tmp_path, "uvx", "mcp-server-git", cwd="project")
    assert server.start is StartFolder.PROJECT
    assert server.works_in(Path("/a")) == server.reads_from(Path("/a")) == Path("/a")
    assert instance_key(server, Path("/a")) != instance_key(server, Path("/b"))


def test_the_variable_is_each_projects_folder_and_the_server_the_same_one(tmp_path: Path) -> None:
    server = one(tmp_path, "npx", "-y", "server-filesystem", HERE, f"--log={HERE}/log", env={"DATA": f"{HERE}/d"})
    words, env = server.launched(Path("/a"))
    assert words == ["npx", "-y", "server-filesystem", "/a", "--log=/a/log"]
    assert env == {"DATA": "/a/d"}
    assert instance_key(server, Path("/a")) != instance_key(server, Path("/b"))
    assert instance_key(server, Path("/a"))[0] == instance_key(server, Path("/b"))[0]


@pytest.mark.parametrize(
    "words",
    [
        (f"{HERE}/server",),
        ("python", f"{HERE}/server.py"),
        ("/usr/bin/python3.12", "-u", "-X", "utf8", f"{HERE}/server.py"),
        ("python", "-m", HERE),
        ("python3", "-c", f"import sys; sys.path.insert(0, '{HERE}')"),
        ("node", "--require", f"{HERE}/x.js", "/srv/server.js"),
        ("node", f"--import={HERE}/x.js", "/srv/server.js"),
        ("node", "--enable-source-maps", f"{HERE}/server.js"),
        ("ruby", "-I", HERE, "/srv/server.rb"),
        ("perl", "-I", "/lib", f"{HERE}/server.pl"),
        ("uv", "run", "--directory", HERE, "mymcp"),
        ("uv", "run", f"--project={HERE}", "mymcp"),
        ("uv", "--directory", HERE, "run", "mymcp"),
        ("uv", "run", f"{HERE}/server.py"),
        ("uv", "run", "python", f"{HERE}/server.py"),
        ("uvx", "--from", HERE, "mymcp"),
        ("uvx", "--with-editable", HERE, "mymcp"),
        ("npx", "--prefix", HERE, "-y", "mymcp"),
        ("npx", "-y", "tsx", f"{HERE}/server.ts"),
        ("npx", "-y", "tsx@4.19.2", f"{HERE}/server.ts"),
        ("npx", "-y", HERE),
        ("npx", "-c", f"{HERE}/server"),
        ("npm", "--prefix", HERE, "start"),
        ("npm", "run", "serve", "--prefix", HERE),
        ("npm", "exec", "mymcp", "--prefix", HERE),
        ("sh", "-c", f"cd {HERE} && ./server"),
        ("bash", "-lc", 'exec "$0"', f"{HERE}/server"),
        ("bash", f"{HERE}/start.sh"),
        ("env", f"PYTHONPATH={HERE}", "python", "-m", "mymcp"),
        ("env", "-C", HERE, "python", "-m", "mymcp"),
        ("timeout", "5", "python", f"{HERE}/server.py"),
        ("make", "-C", HERE, "serve"),
        ("cargo", "run", "--manifest-path", f"{HERE}/Cargo.toml"),
        ("docker", "compose", "-f", f"{HERE}/compose.yml", "run", "mymcp"),
        ("${PYTHON_CODE}/server",),
        ("fastmcp", "run", f"{HERE}/server.py"),
        ("uvx", "fastmcp", "run", f"{HERE}/server.py"),
        ("uv", "run", "--with", "mcp[cli]", "mcp", "run", f"{HERE}/server.py"),
        ("conda", "run", "-p", HERE, "python", "-m", "mymcp"),
        ("ionice", "-c3", f"{HERE}/server"),
        ("mise", "exec", "-C", HERE, "--", "mymcp"),
        ("xargs", "-n1", "python", f"{HERE}/server.py"),
        ("flock", "/tmp/lock", "python", f"{HERE}/server.py"),
        ("python", "-m", "cProfile", f"{HERE}/server.py"),
    ],
)
def test_the_variable_is_refused_where_it_decides_what_code_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert refusal(tmp_path, *words).startswith(("servers.it.args", "servers.it.command"))


CODE_VARIABLES = """
    PATH PYTHONPATH PYTHONSTARTUP PYTHONHOME NODE_PATH NODE_OPTIONS LD_PRELOAD LD_LIBRARY_PATH DYLD_INSERT_LIBRARIES
    RUBYLIB RUBYOPT PERL5LIB PERL5OPT CLASSPATH JAVA_TOOL_OPTIONS BASH_ENV ENV HOME XDG_CONFIG_HOME npm_config_prefix
    NPM_CONFIG_USERCONFIG UV_PROJECT UV_CONFIG_FILE PIP_INDEX_URL GIT_CONFIG_GLOBAL GIT_DIR VIRTUAL_ENV
    GIT_SSH_COMMAND GIT_SEQUENCE_EDITOR DOTNET_STARTUP_HOOKS JAVA_OPTS PUPPETEER_EXECUTABLE_PATH EDITOR
"""


@pytest.mark.parametrize("name", CODE_VARIABLES.split())
def test_the_variable_is_refused_in_variables_that_decide_what_code_runs(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, "mymcp", env={name: f"/lib:{HERE}/lib"}) == f"servers.it.env.{name}"


@pytest.mark.parametrize(
    "words",
    [
        ("npx", "-y", "@modelcontextprotocol/server-filesystem", HERE),
        ("npm", "exec", "--yes", "--", "mymcp", HERE),
        ("uvx", "mcp-server-git", "--repository", HERE),
        ("uvx", "--from", "serena", "--python", "3.12", "serena", "--project", HERE),
        ("python", "-m", "mcp_server_git", "--repository", HERE),
        ("python", "-u", "/srv/server.py", HERE),
        ("node", "--no-warnings", "/srv/server.js", "--root", HERE),
        ("uv", "run", "--directory", "/srv/mymcp", "mymcp", HERE),
        ("docker", "run", "-i", "-v", f"{HERE}:/work", "image"),
        ("bash", "/srv/start.sh", HERE),
        ("mymcp", "--root", HERE),
        ("npx", "-y", "@acme/mcp@latest", HERE),
        ("uvx", "mcp-run", HERE),
    ],
)
def test_the_variable_is_free_as_an_argument_of_the_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert HERE not in " ".join(one(tmp_path, *words).launched(Path("/a"))[0])


@pytest.mark.parametrize(
    "name", ["GIT_BASE_DIR", "GITHUB_WORKSPACE", "GEMINI_ROOT", "LDAP_SCHEMAS", "PIPELINE_DIR", "DATA"]
)
def test_the_variable_is_free_in_variables_of_the_server(tmp_path: Path, name: str) -> None:
    assert one(tmp_path, "mymcp", env={name: HERE}).launched(Path("/a"))[1] == {name: "/a"}


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("fastmcp", "run", "server.py"), {}),
        (("./server",), {}),
        (("python", "server.py"), {}),
        (("node", "server.js"), {}),
        (("node", "-r", "dotenv/config", "/srv/server.js"), {}),
        (("node", "--import=./x.mjs", "/srv/server.js"), {}),
        (("npx", "-y", "./mymcp"), {}),
        (("npx", "-y", "tsx", "server.ts"), {}),
        (("uv", "run", "mymcp"), {}),
        (("uv", "run", "--project", ".", "mymcp"), {}),
        # Both take a file or folder of that name for the program before they look elsewhere.
        (("uv", "run", "--project", "/srv/mymcp", "mymcp"), {}),
        (("uv", "run", "--project", "/srv/mymcp", "server.py"), {}),
        (("pipx", "run", "mymcp"), {}),
        (("python", "-m", "cProfile", "server.py"), {}),
        (("uvx", "--from", ".", "mymcp"), {}),
        (("bunx", "mymcp"), {}),
        (("pnpm", "dlx", "mymcp"), {}),
        (("yarn", "dlx", "mymcp"), {}),
        (("npm", "start"), {}),
        (("make", "serve"), {}),
        (("python", "-m", "mymcp"), {"PYTHONPATH": "src"}),
        (("mymcp",), {"PATH": "/usr/bin::/bin"}),
    ],
)
def test_in_the_projects_folder_no_code_of_it_is_looked_for(
    tmp_path: Path, words: tuple[str, ...], env: dict[str, str]
) -> None:
    refusal(tmp_path, *words, env=env, cwd="project")


@pytest.mark.parametrize(
    "words",
    [
        ("python", "-m", "mymcp"),
        ("python", "-X", "utf8", "/srv/server.py", "x.cfg"),
        ("npx", "-y", "-p", "mypackage", "mymcp"),
        ("uvx", "--python", "3.12", "mcp-server-git"),
        ("uv", "run", "--project", "/srv/mymcp", "-m", "mymcp"),
        ("uv", "run", "--project", "/srv/mymcp", "/srv/mymcp/server.py"),
        ("uv", "tool", "run", "mcp-server-git"),
        ("pipx", "run", "--spec", "mymcp", "mymcp"),
        ("node", "--max-old-space-size=4096", "/srv/server.js"),
    ],
)
def test_the_rest_may_start_in_the_projects_folder(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert one(tmp_path, *words, cwd="project").start is StartFolder.PROJECT


def test_a_folder_by_the_variable_is_cwd_project(tmp_path: Path) -> None:
    assert refusal(tmp_path, "mymcp", cwd=f"{HERE}/sub") == "servers.it.cwd"


def test_a_trusted_projects_entry_runs_in_its_root_and_says_what_it_runs(tmp_path: Path) -> None:
    root = (tmp_path / "project").resolve()
    (root / ".toolcrib").mkdir(parents=True)
    entries = {
        "a": {"command": "python", "args": ["-m", "mymcp"]},
        "b": {"command": "node", "args": [f"{HERE}/s.js"], "cwd": f"{HERE}/sub"},
    }
    (root / ".toolcrib" / "config.json").write_text(json.dumps({"servers": entries}))
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    config = load(paths=Paths.of_user(environ), root=root, environ=environ, is_trusted=lambda *_: True)
    assert not config.problems
    assert config.servers["a"].works_in(root) == root
    assert config.servers["b"].launched(root)[0] == ["node", f"{root}/s.js"]
    assert config.servers["b"].cwd == f"{root}/sub"


@pytest.mark.parametrize(
    ("words", "added", "variables"),
    [
        (["python", "-m", "mymcp"], [], {"PYTHONSAFEPATH": "1"}),
        (["uvx", "mcp-server-git"], [], {"PYTHONSAFEPATH": "1"}),
        (["python", "-c", "import mymcp"], [], {"PYTHONSAFEPATH": "1"}),
        (["python", "-cimport mymcp"], [], {"PYTHONSAFEPATH": "1"}),
        (["python", "/srv/server.py", "-m", "x"], [], {}),
        (["uv", "run", "--project", "/srv", "python", "/srv/server.py"], [], {}),
        # It finds the modules beside it by the path that the variable switches off.
        (["python", "/srv/server.py"], [], {}),
        (["npx", "-y", "mymcp"], ["--prefix=/"], {}),
        (["env", "A=1", "npx", "-y", "mymcp"], ["--prefix=/"], {}),
        (["mymcp", "npx"], [], {}),
    ],
)
def test_known_launchers_find_no_code_where_they_start(
    words: list[str], added: list[str], variables: dict[str, str]
) -> None:
    safe, env = safe_launch(words)
    assert [word for word in safe if word not in words] == added
    assert [word for word in safe if word not in added] == words
    assert env == variables


def test_typed_paths_hold_in_every_folder(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for folder in ("bin", "sub/deep", "server"):
        (root / folder).mkdir(parents=True)
    for file in ("server.py", "bin/tool", "sub/x.cfg"):
        (root / file).touch()
    (tmp_path / "outside").mkdir()

    def settled(*words: str, folder: Path = root) -> list[str]:
        made, told = portable_words(words, folder, root)
        assert len(told) == sum(old != new for old, new in zip(words, made, strict=True))
        return made

    assert settled("npx", "-y", "server-filesystem", ".") == ["npx", "-y", "server-filesystem", HERE]
    assert settled("uvx", "mcp-server-git", "--repository=.")[-1] == f"--repository={HERE}"
    assert settled("mymcp", "sub", "../outside") == ["mymcp", f"{HERE}/sub", f"{tmp_path}/outside"]
    assert settled("mymcp", ".", folder=root / "sub") == ["mymcp", f"{HERE}/sub"]
    assert settled("bin/tool", "sub/x.cfg") == [f"{root}/bin/tool", f"{root}/sub/x.cfg"]
    assert settled("python", "server.py", "--port", "80") == ["python", f"{root}/server.py", "--port", "80"]
    assert settled("uv", "run", "server.py")[-1] == f"{root}/server.py"
    # A folder with code in it is that folder, not each project's; a name is a name.
    assert settled("uv", "run", "--directory", "server", "mymcp")[3] == f"{root}/server"
    assert settled("npx", "-y", "server", "none/such") == ["npx", "-y", "server", "none/such"]
    assert settled("python", "-m", "server") == ["python", "-m", "server"]


def test_add_knows_the_servers_that_need_the_projects_folder() -> None:
    for words in (["uvx", "mcp-server-git"], ["python", "-m", "mcp_server_git"], ["uvx", "mcp-server-git==1.0", "-v"]):
        assert needs_project(words)
    for words in (["npx", "-y", "@modelcontextprotocol/server-filesystem"], ["echo", "mcp-server-git"]):
        assert not needs_project(words)


def test_the_start_folder_is_toolcribs_own(tmp_path: Path) -> None:
    paths = Paths.of_user({"HOME": str(tmp_path)})
    assert paths.start_folder.parent == paths.state_dir
    assert os.sep in str(paths.start_folder)
