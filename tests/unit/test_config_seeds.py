"""The configuration examples of the documents that Toolcrib is based on load unchanged."""

from pathlib import Path

import pytest

from toolcrib.config.layers import load
from toolcrib.config.model import Config, Retry, ServerConfig, Severity, Transport
from toolcrib.config.paths import Paths

BEANS = """
{"servers": {
  "database": {
    "transport": "stdio", "command": "npx", "args": ["-y", "@modelcontextprotocol/server-postgres"],
    "env": {"DATABASE_URL": "postgresql://localhost/mydb"}
  },
  "github": {
    "transport": "stdio", "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"],
    "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}
  },
  "custom-api": {
    "transport": "http", "url": "https://api.example.com/mcp",
    "auth": {"type": "api_key", "headerName": "X-API-Key", "apiKey": "${CUSTOM_API_KEY}"}
  }
}}
"""

KSI = """
{"mcpServers": {"ksi": {
  "type": "streamable-http",
  "url": "http://localhost:8080",
  "headers": {"X-KSI-Agent-ID": "agent_123", "X-KSI-Conversation-ID": "conv_456"},
  "verifySsl": false,
  "retry": {"maxAttempts": 3, "backoffMs": 1000}
}}}
"""

KAI_HTTP = """
model: "anthropic/claude-3.5-sonnet"
apiKey: "..."
mcpServers: [
    {name: "backbone-jobs", transport: { type: "http", url: "http://localhost:8004/mcp" }}
  ]
"""

KAI_STDIO = """
{
  model: "anthropic/claude-3.5-sonnet", apiKey: "...",
  mcpServers: [
    {name: "github", transport: {type: "stdio", command: "npx", args: ["-y", "@modelcontextprotocol/server-github"]}}
  ]
}
"""

KAI_HEADERS = """
mcpServers:
  - name: jobs
    transport: {type: http, url: "http://localhost:8004/mcp", headers: {X-Team: blue}}
"""

ENG_STDIO = """
{
  serverName: 'filesystem-mcp', transport: 'stdio',
  connection: {
    command: 'npx',
    args: ['-y', '@modelcontextprotocol/server-filesystem', '/path/to/allowed/dir'],
  },
}
"""

ENG_SSE = """
{
  serverName: 'api-mcp', transport: 'sse', connection: {url: 'https://mcp.example.com/sse',},
  auth: {type: 'bearer', token: 'your-api-token',},
}
"""

ENG_WEBSOCKET = """
{
  serverName: 'cloud-mcp',
  transport: 'websocket', # Maps to StreamableHTTPClientTransport
  connection: {url: 'https://mcp.cloud.example.com',},
}
"""

ENG_ENGINE = """
{
  model: myModel,
  mcpServers: {
    filesystem: {command: 'npx', args: ['-y', '@modelcontextprotocol/server-filesystem', '/allowed/path'],},
  },
}
"""


ENVIRON = {"GITHUB_TOKEN": "gh-value", "CUSTOM_API_KEY": "custom-value"}


def load_file(folder: Path, name: str, text: str) -> Config:
    (folder / name).write_text(text)
    config = load(paths=Paths.of_user({"TOOLCRIB_HOME": str(folder)}), root=None, environ=ENVIRON)
    assert [str(problem) for problem in config.problems if problem.severity is Severity.ERROR] == []
    return config


def only_server(folder: Path, text: str) -> ServerConfig:
    (server,) = load_file(folder, "config.yml", text).servers.values()
    return server


@pytest.mark.req("BNS-3")
def test_the_three_servers_of_the_client_document_load(tmp_path):
    config = load_file(tmp_path, "config.json", BEANS)
    assert config.problems == ()
    database, github, custom = config.servers.values()
    assert (database.name, database.transport, database.command) == ("database", Transport.STDIO, "npx")
    assert database.args == ("-y", "@modelcontextprotocol/server-postgres")
    assert database.env == {"DATABASE_URL": "postgresql://localhost/mydb"}
    assert github.env == {"GITHUB_TOKEN": "gh-value"}
    assert (custom.name, custom.transport, custom.url) == ("custom-api", Transport.HTTP, "https://api.example.com/mcp")
    assert custom.headers == {"X-API-Key": "custom-value"}


@pytest.mark.req("BNS-3")
def test_the_client_configuration_of_the_daemon_document_loads(tmp_path):
    config = load_file(tmp_path, "config.json", KSI)
    assert config.problems == ()
    (server,) = config.servers.values()
    assert (server.name, server.transport, server.url) == ("ksi", Transport.HTTP, "http://localhost:8080")
    assert server.headers == {"X-KSI-Agent-ID": "agent_123", "X-KSI-Conversation-ID": "conv_456"}
    assert server.verify_tls is False
    assert server.retry == Retry(max_attempts=3, backoff=1.0)


@pytest.mark.req("BNS-3")
def test_lists_with_transport_mappings_load(tmp_path):
    server = only_server(tmp_path, KAI_HTTP)
    assert (server.name, server.transport, server.url) == ("backbone-jobs", Transport.HTTP, "http://localhost:8004/mcp")
    server = only_server(tmp_path, KAI_STDIO)
    assert (server.name, server.transport, server.command) == ("github", Transport.STDIO, "npx")
    assert server.args == ("-y", "@modelcontextprotocol/server-github")
    assert only_server(tmp_path, KAI_HEADERS).headers == {"X-Team": "blue"}


@pytest.mark.req("ENG-1", "BNS-3")
@pytest.mark.parametrize("wrap", ["{}", "servers: [{}]", "mcpServers: [{}]"])
def test_the_entries_of_the_engine_document_load_alone_and_in_lists(tmp_path, wrap):
    stdio, sse, cloud = (
        only_server(tmp_path, wrap.replace("{}", text)) for text in (ENG_STDIO, ENG_SSE, ENG_WEBSOCKET)
    )
    assert (stdio.name, stdio.transport, stdio.command) == ("filesystem-mcp", Transport.STDIO, "npx")
    assert stdio.args == ("-y", "@modelcontextprotocol/server-filesystem", "/path/to/allowed/dir")
    assert (sse.name, sse.transport, sse.url) == ("api-mcp", Transport.SSE, "https://mcp.example.com/sse")
    assert sse.headers == {"Authorization": "Bearer your-api-token"}
    assert (cloud.name, cloud.transport, cloud.url) == ("cloud-mcp", Transport.HTTP, "https://mcp.cloud.example.com")
    server = only_server(tmp_path, ENG_ENGINE)
    assert (server.name, server.transport, server.command) == ("filesystem", Transport.STDIO, "npx")
    assert server.args == ("-y", "@modelcontextprotocol/server-filesystem", "/allowed/path")
