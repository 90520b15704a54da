"""One file for each client we know, and one for how it tells of a run."""
