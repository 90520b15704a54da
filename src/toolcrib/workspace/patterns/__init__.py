"""Patterns of paths and of text that take linear time, whoever wrote them."""
