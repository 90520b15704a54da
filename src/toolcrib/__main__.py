"""`python -m toolcrib`: the same as the console script."""

from toolcrib.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
