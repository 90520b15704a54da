"""The workspace as a server of its own: stdio, HTTP, unix socket, and one shared by programs."""
