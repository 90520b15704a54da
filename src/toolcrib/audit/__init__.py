"""The audit log: who called what. Entries in; a chain of rows that cannot be changed unseen out."""
