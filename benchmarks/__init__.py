"""Speed and memory, each against a plain reference, in one run: `python -m benchmarks.<name>`."""

import sys
from pathlib import Path

# The package beside these scripts, not an installed one: a queued experiment runs in a copy of the project.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
