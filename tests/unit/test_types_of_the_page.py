"""The programs of the documentation and the examples pass a strict type checker, as a user would write them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LIMIT = 100.0
CONFIG = f"""
[mypy]
mypy_path = {ROOT / "examples" / "testing"}:{ROOT / "src"}
[mypy-toolcrib.*]
follow_imports = silent
[mypy-anthropic.*,google.*,httpx2.*,mcp.*,openai.*,psycopg.*,pydantic.*,pydantic_ai.*,sqlalchemy.*,starlette.*,uvicorn.*]
follow_imports = skip
ignore_missing_imports = true
"""
"""Of the SDKs nothing is read: it would take a minute, and is not ours."""


def test_the_programs_of_the_page_and_the_examples_are_well_typed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "library.md").read_text()
    programs = [block for block in BLOCK.findall(page) if "asyncio.run(" in block]
    assert len(programs) > 5
    for number, program in enumerate(programs):
        (tmp_path / f"page_{number}.py").write_text(program)
    examples = [file for folder in ("library", "testing") for file in (ROOT / "examples" / folder).glob("*.py")]
    assert len(examples) >= 5
    (tmp_path / "mypy.ini").write_text(CONFIG)
    words = ["-m", "mypy", "--strict", "--config-file", "mypy.ini", "--cache-dir", str(ROOT / ".mypy_cache" / "page")]
    done = subprocess.run(
        [sys.executable, *words, *sorted(file.name for file in tmp_path.glob("*.py")), *map(str, examples)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
