"""Cold start: time from an empty environment to the first plan over HTTP, by the README's own commands.

A fresh virtual environment, a copy of the committed sources, a home folder of its own, nothing cached by pip: what is
timed is each command of the block below the heading "A service". Nothing may listen on the port that the README names.

    python -m benchmarks.cold_start
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import record

ROOT = Path(__file__).resolve().parents[1]
_STOP_WITHIN_S = 60


def commands() -> list[str]:
    """Commands of the README, in their order."""
    section = (ROOT / "README.md").read_text("utf-8").partition("\n### A service\n")[2]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert block is not None, "the README has no such section"
    return block[1].splitlines()


def measured(folder: Path) -> dict[str, Any]:
    """Measure the seconds of each command in an empty ``folder``, and report the plan."""
    sources, environment = folder / "sources", folder / "environment"
    sources.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", "--directory", str(sources)], input=archive, check=True)
    steps = [_timed([sys.executable, "-m", "venv", str(environment)], "python -m venv", sources, dict(os.environ))]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOADMASTER_"))}
    path = os.pathsep.join([str(environment / "bin"), variables["PATH"]])
    variables |= {"HOME": str(folder), "PATH": path, "PIP_NO_CACHE_DIR": "1", "PIP_QUIET": "1"}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands():
            if command.endswith("&"):
                words = ["bash", "-c", f"exec {command.rstrip('& ')}"]
                running.append(subprocess.Popen(words, cwd=sources, env=variables))
            else:
                steps.append(_timed(["bash", "-c", command], command, sources, variables))
        assert all(service.poll() is None for service in running), "the service has ended: is its port taken?"
    finally:
        for service in running:
            service.terminate()
            service.wait(_STOP_WITHIN_S)
    plan = json.loads((sources / "plan.json").read_text("utf-8"))
    installed = sum(file.lstat().st_size for file in environment.rglob("*"))
    return {
        "steps": steps,
        "total_s": round(sum(step["seconds"] for step in steps), 1),
        "installed_bytes": installed,
        "plan": {name: plan[name] for name in ("status", "objective", "bound")},
    }


def _timed(words: list[str], shown: str, folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    began = time.monotonic()
    subprocess.run(words, cwd=folder, env=variables, check=True)
    return {"command": shown, "seconds": round(time.monotonic() - began, 2)}


def main() -> None:
    """Measure, record and print."""
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    path = record.write("cold_start", found)
    print(json.dumps(found, indent=2))
    print(path)


if __name__ == "__main__":
    main()
