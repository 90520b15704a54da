"""The folder, and the only way to its files: beneath it, whatever links and renames do."""
