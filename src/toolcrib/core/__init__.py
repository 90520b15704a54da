"""All packages wired together, in one object without a process.

The daemon hosts a `Crib`; one-shot commands and the library use one directly. `Kit` and `Connection` are lighter, so
this file imports nothing: a program that names its servers needs no database.
"""
