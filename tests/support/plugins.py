"""SGLang plugins that exist for one test: a distribution on PYTHONPATH, found like any other.

A server under test runs the package exactly as it is installed; what a test must bend (a wrong
acceptance rule, the masked layout) is bent from outside, by a plugin that SGLang loads.
"""

from __future__ import annotations

import os
from pathlib import Path

SOURCES = Path(__file__).parent / "bent"


def environ_with(name: str, directory: Path) -> dict[str, str]:
    """Return the environment in which SGLang also loads the plugin ``tests/support/bent/NAME.py``.

    ``directory`` holds its metadata and must live as long as the server.
    """
    module = f"bent_{name}"
    (directory / f"{module}.py").write_text((SOURCES / f"{name}.py").read_text())
    info = directory / f"{module}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{module} = {module}:register\n")
    path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path}
