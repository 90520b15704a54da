"""The workspace as a stand-alone server: stdio, HTTP, unix socket."""
