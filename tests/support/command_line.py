"""The installed command, run as a user runs it, and installations that are not as they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def as_a_user(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``sglang-tetris WORDS`` with further variables in its environment."""
    command = Path(sys.executable).with_name("sglang-tetris")
    return subprocess.run(
        [command, *words], env=os.environ | environ, capture_output=True, text=True, check=False
    )


def fake_distribution(directory: Path, name: str, version: str, entry_points: str = "") -> Path:
    """Write metadata that, with ``directory`` on PYTHONPATH, hides the installed one's."""
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    return directory
