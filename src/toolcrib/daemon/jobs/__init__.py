"""Agents that run in the background, each in a process of its own.

In: orders of agents and of the owner. Out: rows of `store.jobs`. `desk` is what the commands see, `order` says what a
submitter may ask for, `worker` is the process and its end; `toolcrib.jobs` is what runs in it.
"""
