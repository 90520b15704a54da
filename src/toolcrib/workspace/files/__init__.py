"""The tools that read and write one file."""
