"""The clients we know: for each its entry and its parser in one file, its launch in another."""
