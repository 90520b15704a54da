"""MCP clients of every protocol version, over HTTP and the bridge's pipe → principal → listing or call → bytes."""
