"""The audit log of calls and changes. Entries in; a tamper-evident chain of rows out."""
