"""`.toolcrib/workspace.yml`: what a workspace may do."""
