"""The figures of `make bench`, one file each: settings in, a `Figure` with its rows out."""
