"""A project's folder never decides which code a server of the user's own configuration runs."""

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.launching import needs_project, portable_words, safe_launch
from toolcrib.config.layers import load
from toolcrib.config.model import Config, RootsMode, ServerConfig, ShareMode, StartFolder
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


def one(tmp_path: Path, line: str, **entry: Any) -> ServerConfig:
    command, *args = shlex.split(line)
    config = loaded(tmp_path, it={"command": command, "args": args, **entry})
    assert not config.problems, config.problems
    return config.servers["it"]


def refusal(tmp_path: Path, line: str, **entry: Any) -> str:
    """The key of the error."""
    command, *args = shlex.split(line)
    config = loaded(tmp_path, it={"command": command, "args": args, **entry})
    assert "it" not in config.servers
    (problem,) = config.problems
    return problem.key


def commands(table: str) -> list[str]:
    """A table of command lines, in which `@` is the project's folder."""
    return [line.strip().replace("@", HERE, 1) for row in table.strip().splitlines() for line in row.split(" | ")]


def test_a_server_without_a_cwd_starts_in_an_empty_folder_and_is_shared_by_all_projects(tmp_path):
    server = one(tmp_path, "python -m mymcp")
    folder = tmp_path / "home" / "state" / "start"
    assert server.works_in(tmp_path / "project") == folder
    assert server.start_folder is StartFolder.NEUTRAL
    assert instance_key(server, Path("/a")) == instance_key(server, Path("/b"))
    assert server.reads_from(tmp_path / "project") is None, "rules can't check relative paths"
    for _ in range(2):
        empty_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o500


def test_a_server_with_cwd_project_starts_in_each_projects_folder(tmp_path):
    server = one(tmp_path, "uvx mcp-server-git", cwd="project")
    assert server.start_folder is StartFolder.PROJECT
    assert server.works_in(Path("/a")) == server.reads_from(Path("/a")) == Path("/a")
    assert instance_key(server, Path("/a")) != instance_key(server, Path("/b"))
    assert refusal(tmp_path, "mymcp", cwd=f"{HERE}/sub") == "servers.it.cwd"


def test_the_variable_is_each_projects_folder(tmp_path):
    server = one(tmp_path, f"npx -y server-filesystem {HERE} --log={HERE}/log", env={"DATA": f"{HERE}/d"})
    words, env = server.launched(Path("/a"))
    assert words == ["npx", "-y", "server-filesystem", "/a", "--log=/a/log"]
    assert env == {"DATA": "/a/d"}
    assert instance_key(server, Path("/a")) != instance_key(server, Path("/b"))
    assert instance_key(server, Path("/a"))[0] == instance_key(server, Path("/b"))[0]


DECIDES_CODE = """
    @/server | python @/server.py | /usr/bin/python3.12 -u -X utf8 @/server.py | python -m @
    python3 -c "import sys; sys.path.insert(0, '@')" | node --require @/x.js /srv/server.js
    node --import=@/x.js /srv/server.js | node --enable-source-maps @/server.js | ruby -I @ /srv/server.rb
    perl -I /lib @/server.pl | uv run --directory @ mymcp | uv run --project=@ mymcp | uv --directory @ run mymcp
    uv run @/server.py | uv run python @/server.py | uvx --from @ mymcp | uvx --with-editable @ mymcp
    npx --prefix @ -y mymcp | npx -y tsx @/server.ts | npx -y @ | npx -c @/server | npm --prefix @ start
    npm run serve --prefix @ | npm exec mymcp --prefix @ | sh -c "cd @ && ./server" | bash @/start.sh
    bash -lc 'exec "$0"' @/server | env PYTHONPATH=@ python -m mymcp | env -C @ python -m mymcp
    timeout 5 python @/server.py | make -C @ serve | cargo run --manifest-path @/Cargo.toml
    docker compose -f @/compose.yml run mymcp | ${PYTHON_CODE}/server | fastmcp run @/server.py
    uvx fastmcp run @/server.py | uv run --with mcp[cli] mcp run @/server.py | conda run -p @ python -m mymcp
    ionice -c3 @/server | mise exec -C @ -- mymcp | xargs -n1 python @/server.py | flock /tmp/lock python @/server.py
    python -m cProfile @/server.py
"""


@pytest.mark.parametrize("line", [*commands(DECIDES_CODE), f"npx -y tsx@4.19.2 {HERE}/server.ts"])
def test_the_variable_is_refused_where_it_decides_what_code_runs(tmp_path, line):
    assert refusal(tmp_path, line).startswith(("servers.it.args", "servers.it.command"))


CODE_VARIABLES = """
    PATH PYTHONPATH PYTHONSTARTUP PYTHONHOME NODE_PATH NODE_OPTIONS LD_PRELOAD LD_LIBRARY_PATH DYLD_INSERT_LIBRARIES
    RUBYLIB RUBYOPT PERL5LIB PERL5OPT CLASSPATH JAVA_TOOL_OPTIONS BASH_ENV ENV HOME XDG_CONFIG_HOME npm_config_prefix
    NPM_CONFIG_USERCONFIG UV_PROJECT UV_CONFIG_FILE PIP_INDEX_URL GIT_CONFIG_GLOBAL GIT_DIR VIRTUAL_ENV
    GIT_SSH_COMMAND GIT_SEQUENCE_EDITOR DOTNET_STARTUP_HOOKS JAVA_OPTS PUPPETEER_EXECUTABLE_PATH EDITOR
"""


@pytest.mark.parametrize("name", CODE_VARIABLES.split())
def test_the_variable_is_refused_in_other_variables_that_decide_what_code_runs(tmp_path, name):
    assert refusal(tmp_path, "mymcp", env={name: f"/lib:{HERE}/lib"}) == f"servers.it.env.{name}"


FREE = """
    npm exec --yes -- mymcp @ | uvx mcp-server-git --repository @ | python -m mcp_server_git --repository @
    uvx --from serena --python 3.12 serena --project @ | python -u /srv/server.py @ | mymcp --root @ | uvx mcp-run @
    node --no-warnings /srv/server.js --root @ | uv run --directory /srv/mymcp mymcp @ | bash /srv/start.sh @
    docker run -i -v @:/work image
"""
PACKAGES = [f"npx -y {name} {HERE}" for name in ("@modelcontextprotocol/server-filesystem", "@acme/mcp@latest")]


@pytest.mark.parametrize("line", [*commands(FREE), *PACKAGES])
def test_the_variable_is_allowed_as_an_argument_of_the_server(tmp_path, line):
    assert HERE not in " ".join(one(tmp_path, line).launched(Path("/a"))[0])


@pytest.mark.parametrize(
    "name", ["GIT_BASE_DIR", "GITHUB_WORKSPACE", "GEMINI_ROOT", "LDAP_SCHEMAS", "PIPELINE_DIR", "DATA"]
)
def test_the_variable_is_allowed_in_the_servers_own_variables(tmp_path, name):
    assert one(tmp_path, "mymcp", env={name: HERE}).launched(Path("/a"))[1] == {name: "/a"}


# `uv run NAME` and `pipx run NAME` look for a file or folder of that name first.
IN_PROJECT = """
    fastmcp run server.py | ./server | python server.py | node server.js | node -r dotenv/config /srv/server.js
    node --import=./x.mjs /srv/server.js | npx -y ./mymcp | npx -y tsx server.ts | uv run mymcp
    uv run --project . mymcp | uv run --project /srv/mymcp mymcp | uv run --project /srv/mymcp server.py
    pipx run mymcp | python -m cProfile server.py | uvx --from . mymcp | bunx mymcp | pnpm dlx mymcp | yarn dlx mymcp
    npm start | make serve
"""
SAFE_IN_PROJECT = """
    python -m mymcp | python -X utf8 /srv/server.py x.cfg | npx -y -p mypackage mymcp
    uvx --python 3.12 mcp-server-git | uv run --project /srv/mymcp -m mymcp | uv tool run mcp-server-git
    uv run --project /srv/mymcp /srv/mymcp/server.py | pipx run --spec mymcp mymcp
    node --max-old-space-size=4096 /srv/server.js
"""


@pytest.mark.parametrize(
    ("line", "env"),
    [
        *((line, {}) for line in commands(IN_PROJECT)),
        ("python -m mymcp", {"PYTHONPATH": "src"}),
        ("mymcp", {"PATH": "/usr/bin::/bin"}),
    ],
)
def test_commands_that_load_code_from_the_project_cannot_start_there(tmp_path, line, env):
    refusal(tmp_path, line, env=env, cwd="project")


@pytest.mark.parametrize("line", commands(SAFE_IN_PROJECT))
def test_other_commands_can_start_in_the_projects_folder(tmp_path, line):
    assert one(tmp_path, line, cwd="project").start_folder is StartFolder.PROJECT


def test_an_entry_of_a_trusted_project_runs_in_its_root(tmp_path):
    root = (tmp_path / "project").resolve()
    (root / ".toolcrib").mkdir(parents=True)
    b = {"command": "node", "args": [f"{HERE}/s.js"], "cwd": f"{HERE}/sub"}
    entries = {"a": {"command": "python", "args": ["-m", "mymcp"]}, "b": b}
    (root / ".toolcrib" / "config.json").write_text(json.dumps({"servers": entries}))
    environ = {"TOOLCRIB_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    config = load(paths=Paths.of_user(environ), root=root, environ=environ, is_trusted=lambda *_: True)
    assert not config.problems
    assert config.servers["a"].works_in(root) == root
    assert config.servers["b"].launched(root)[0] == ["node", f"{root}/s.js"]
    assert config.servers["b"].cwd == f"{root}/sub"


SAFE_PATH = {"PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize(
    ("line", "added", "variables"),
    [
        ("python -m mymcp", [], SAFE_PATH),
        ("uvx mcp-server-git", [], SAFE_PATH),
        ("python -c 'import mymcp'", [], SAFE_PATH),
        ("python '-cimport mymcp'", [], SAFE_PATH),
        ("python /srv/server.py -m x", [], {}),
        ("uv run --project /srv python /srv/server.py", [], {}),
        # With the variable, it could not import the modules beside it.
        ("python /srv/server.py", [], {}),
        ("npx -y mymcp", ["--prefix=/"], {}),
        ("env A=1 npx -y mymcp", ["--prefix=/"], {}),
        ("mymcp npx", [], {}),
    ],
)
def test_known_launchers_load_no_code_from_the_folder_they_start_in(line, added, variables):
    safe, env = safe_launch(words := shlex.split(line))
    assert [word for word in safe if word not in words] == added
    assert [word for word in safe if word not in added] == words
    assert env == variables


def test_typed_paths_are_adapted_to_work_in_every_folder(tmp_path):
    root = tmp_path / "project"
    for folder in ("bin", "sub/deep", "server"):
        (root / folder).mkdir(parents=True)
    for file in ("server.py", "bin/tool", "sub/x.cfg"):
        (root / file).touch()
    (tmp_path / "outside").mkdir()

    def settled(*words, folder=root):
        made, notes = portable_words(words, folder, root)
        assert len(notes) == sum(old != new for old, new in zip(words, made, strict=True))
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


def test_add_knows_the_servers_that_need_the_projects_folder():
    for words in (["uvx", "mcp-server-git"], ["python", "-m", "mcp_server_git"], ["uvx", "mcp-server-git==1.0", "-v"]):
        assert needs_project(words)
    for words in (["npx", "-y", "@modelcontextprotocol/server-filesystem"], ["echo", "mcp-server-git"]):
        assert not needs_project(words)


@pytest.mark.req("BNS-7")
@pytest.mark.parametrize(
    "line",
    [
        "npx -y @playwright/mcp@latest --headless",
        "node /srv/node_modules/@playwright/mcp/cli.js",
        "docker run -i --rm mcr.microsoft.com/playwright/mcp:v1",
        "npx chrome-devtools-mcp@1",
        "npx -y @modelcontextprotocol/server-puppeteer",
        "uvx browser-use==0.5 --mcp",
    ],
)
def test_each_agent_has_its_own_browser_unless_the_entry_says_otherwise(tmp_path, line):
    assert one(tmp_path, line).share is ShareMode.AGENT
    assert one(tmp_path, line, share="project").share is ShareMode.PROJECT


def test_a_folder_named_like_a_browser_makes_no_browser(tmp_path):
    assert one(tmp_path, "npx -y @modelcontextprotocol/server-filesystem /srv/browser-use").share is None


@pytest.mark.req("KSI-8")
@pytest.mark.parametrize(
    "line",
    [
        "npx -y @modelcontextprotocol/server-filesystem /data",
        "npx -y @modelcontextprotocol/server-filesystem@2026.1.1 data",
        "npx -y @modelcontextprotocol/server-filesystem ${workspaceFolder}",
        "npx -y @modelcontextprotocol/server-filesystem ${workspaceFolder}/docs",
        "npx -y some-server ~/notes",
        "npx -y some-server ~",
        "npx -y some-server ..",
        "npx -y some-server --root=../x",
        "npx -y some-server --dirs a,/b",
        "npx -y some-server file:///data",
        "npx -y some-server FILE:///data",
        "uvx mcp-server-git --repository /src/repo",
        "node /opt/server.js /data",
        "docker run -i --rm -v /data:/projects mcp/filesystem /projects",
        "docker run -i --rm --mount type=bind,src=/data,dst=/projects image",
        "sh -c 'exec npx -y @modelcontextprotocol/server-filesystem /data'",
        "npx -y supergateway --stdio 'npx -y @modelcontextprotocol/server-filesystem /data'",
    ],
)
def test_an_entry_that_names_folders_gives_its_server_no_roots(tmp_path, line):
    assert one(tmp_path, line).roots_mode is RootsMode.NONE
    assert one(tmp_path, line, roots="project").roots_mode is RootsMode.PROJECT


@pytest.mark.req("KSI-8")
@pytest.mark.parametrize(
    "line",
    [
        "npx -y @modelcontextprotocol/server-filesystem",
        "npx -y @modelcontextprotocol/server-everything stdio",
        "npx -y mcp-remote https://host.example/mcp --header 'A:b'",
        "npx -y runner @scope/package",
        "node /opt/server.js",
        "/opt/bin/server serve",
        "python /opt/server.py --verbose",
        "python -m some_server",
        "uv --directory /srv/code run server.py",
        "uvx mcp-server-time --local-timezone=UTC",
    ],
)
def test_an_entry_without_folders_gives_its_server_the_projects_root(tmp_path, line):
    config = one(tmp_path, line)
    assert config.roots_mode is RootsMode.PROJECT
    assert not config.is_per_project


@pytest.mark.req("KSI-8")
def test_a_variable_that_names_a_folder_counts_but_not_one_that_is_about_code(tmp_path):
    assert one(tmp_path, "npx -y a-server", env={"VAULT_PATH": "/notes"}).roots_mode is RootsMode.NONE
    assert one(tmp_path, "npx -y a-server", env={"DATA_DIR": "${workspaceFolder}/x"}).roots_mode is RootsMode.NONE
    settings = {"PATH": "/usr/bin", "NODE_PATH": "/lib", "API_URL": "https://h.example/a", "MODE": "a/b"}
    assert one(tmp_path, "npx -y a-server", env=settings).roots_mode is RootsMode.PROJECT


@pytest.mark.req("KSI-8")
def test_a_bare_word_counts_if_it_is_a_folder_where_the_server_starts(tmp_path):
    (tmp_path / "start" / "data").mkdir(parents=True)
    assert one(tmp_path, "npx -y a-server data", cwd=str(tmp_path / "start")).roots_mode is RootsMode.NONE
    assert one(tmp_path, "npx -y a-server other", cwd=str(tmp_path / "start")).roots_mode is RootsMode.PROJECT


@pytest.mark.req("KSI-8")
def test_chosen_roots_are_of_one_project_unless_each_question_belongs_to_a_call(tmp_path):
    assert one(tmp_path, "npx -y a-server", roots="project").is_per_project
    assert one(tmp_path, "npx -y a-server", roots="client").is_per_project
    assert not one(tmp_path, "npx -y a-server", roots="none").is_per_project
    assert not one(tmp_path, "npx -y a-server", roots="project", share="all").is_per_project
    remote = loaded(tmp_path, far={"url": "https://h.example/mcp", "roots": "project"}).servers["far"]
    assert not remote.is_per_project


@pytest.mark.req("KSI-8")
def test_entries_that_permit_different_questions_share_no_process(tmp_path):
    keys = {
        instance_key(one(tmp_path, "npx -y a-server", share="all", **entry), tmp_path)
        for entry in ({}, {"sampling": "ask"}, {"sampling": "allow"}, {"roots": "none"}, {"roots": "client"})
    }
    assert len(keys) == 5
