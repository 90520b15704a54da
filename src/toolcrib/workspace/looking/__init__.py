"""The tools that list, find and search."""
