"""Everything wired together, without a process.

The daemon hosts a `Crib`; one-shot commands and the library use one directly. `Kit` and `Connection` are its lighter
siblings, so nothing is imported here: a program that names its servers needs no database.
"""
