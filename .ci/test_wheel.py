"""Build the wheel, compare it with src/, install it into an environment of its own and run tests there.

Every file of the package is in the wheel, byte for byte; so what is still to be shown is that it works where it is
installed and src/ is out of reach: imports, data files, the command, started processes, every format and store.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What only makes sense on a checkout: rules about the source tree, the benchmarks, programs that are built there.
NOT_FROM_A_WHEEL = ["arch", "bench", "gallery", "interop"]
# What computes the same from the same bytes, wherever they lie: thousands of cases that ran on the checkout just now.
NOT_ONCE_MORE = ["crash", "formats", "fuzz", "layouts", "real", "transforms"]


def main() -> int:
    """Return the exit status of the test run."""
    with tempfile.TemporaryDirectory(prefix="burnstore-wheel-") as folder:
        here = Path(folder)
        subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", here / "dist", ROOT], check=True)
        (wheel,) = (here / "dist").glob("*.whl")
        _check_complete(wheel)
        venv.create(here / "venv", with_pip=True)
        python = here / "venv" / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, wheel], check=True)
        _share_test_requirements(python)
        shutil.copytree(ROOT / "tests", here / "tests", ignore=shutil.ignore_patterns(*NOT_FROM_A_WHEEL, "__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", here)
        where = [python, "-c", "import burnstore; print(burnstore.__file__)"]
        shown = subprocess.run(where, cwd=here, check=True, capture_output=True, text=True).stdout.strip()
        if str(ROOT) in shown:
            raise SystemExit(f"the tests would import the checkout: {shown}")
        left_out = [f"--ignore=tests/{folder}" for folder in NOT_ONCE_MORE]
        command = [python, "-m", "pytest", "-n", "auto", "--tier", "quick", *left_out]
        return subprocess.run(command, cwd=here, check=False).returncode


def _check_complete(wheel: Path) -> None:
    """Refuse a wheel in which a file of the package is missing, changed, or one too many."""
    package = ROOT / "src" / "burnstore"
    wanted = {
        f"burnstore/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = (name for name in archive.namelist() if name.startswith("burnstore/"))
        found = {name: archive.read(name) for name in names}
    unlike = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if unlike:
        raise SystemExit(f"the wheel and src/ differ in {', '.join(unlike)}")


def _share_test_requirements(python: Path) -> None:
    """Let the environment find what the tests need where it is installed already; some of it is gigabytes.

    A path in a ``.pth`` file is searched last, and the ``.pth`` files in it are not read: so the checkout, which is
    installed there in editable form, stays out of reach.
    """
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    shared = sysconfig.get_path("purelib")
    (Path(own) / "test-requirements.pth").write_text(f"{shared}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
