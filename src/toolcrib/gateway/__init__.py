"""Clients of every protocol version → identity → listing or call → bytes, over HTTP and over the bridge's pipe."""
