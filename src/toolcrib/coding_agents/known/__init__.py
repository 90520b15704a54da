"""The clients that Toolcrib can run. Each has one file for its entry and parser, and one that launches it."""
