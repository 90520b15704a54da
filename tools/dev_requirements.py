"""Prints the `dev` group of pyproject.toml as a requirements file.

`pip install --group` needs pip 25.1, and a new venv of an older Python has an older pip.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    sys.stdout.write("\n".join(project["dependency-groups"]["dev"]) + "\n")


if __name__ == "__main__":
    main()
