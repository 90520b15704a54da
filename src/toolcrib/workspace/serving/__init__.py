"""The workspace as a server of its own: stdio, HTTP, unix socket."""
