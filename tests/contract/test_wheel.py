"""The wheel works away from the checkout: command line, plugin and operators in spawned children."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
IMPORT_OPERATORS_IN_A_CHILD = """
import multiprocessing

def show():
    import sgl_kernel
    print(sgl_kernel.__file__)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=show)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
"""

pytestmark = [pytest.mark.e2e, pytest.mark.sglang, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a fresh environment that borrows this one's dependencies."""
    root = tmp_path_factory.mktemp("wheel")
    python = root / "venv" / "bin" / "python"
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", root, CHECKOUT)
    (wheel,) = root.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", root / "venv")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel)
    (site_packages,) = root.glob("venv/lib/python*/site-packages")
    # A plain line in a .pth file adds a path at the end and does not read the .pth files there, so
    # the checkout, which this environment knows by such a file, stays out of sight.
    (site_packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root


def run(*command: str | Path, cwd: Path | None = None, **environ: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command, cwd=cwd, env=inherited | environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout


def test_the_package_comes_from_the_wheel(environment: Path) -> None:
    code = "import sglang_tetris, sys; print(sglang_tetris.__file__)"

    (path,) = run(environment / "venv/bin/python", "-c", code, cwd=environment).splitlines()

    assert Path(path).is_relative_to(environment / "venv")


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_of_ours_is_imported_without_the_cpu_engine(environment: Path, value: str) -> None:
    code = "import sys; print([name for name in sys.modules if 'tetris' in name])"

    loaded = run(
        environment / "venv/bin/python", "-c", code, cwd=environment, SGLANG_USE_CPU_ENGINE=value
    )

    assert loaded.strip() == "[]"


def test_a_spawned_child_gets_the_operators(environment: Path) -> None:
    script = environment / "spawn.py"
    script.write_text(IMPORT_OPERATORS_IN_A_CHILD)

    path = run(environment / "venv/bin/python", script, cwd=environment, SGLANG_USE_CPU_ENGINE="1")

    assert Path(path.strip()).is_relative_to(environment / "venv")


def test_the_doctor_finds_nothing_wrong(environment: Path) -> None:
    report = run(environment / "venv/bin/sglang-tetris", "doctor", cwd=environment)

    assert report
    assert all(line.startswith("ok ") for line in report.splitlines())
