"""What install.sh is given: release bundles of this tree, and the dependencies as a wheelhouse."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import monky_deployd

ROOT = Path(__file__).resolve().parents[2]
VERSION = monky_deployd.__version__

Patches = Mapping[str, tuple[str, str]]
"""Files of the package, each with a text in it and what takes its place."""

_TREE = ("monky_deployd", "packaging", "pyproject.toml", "README.md", "config.example.yaml")
_LOCK = ROOT / "packaging/requirements.lock"
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class Bundles:
    """Makes bundles, each once; they are in `workdir`, the wheelhouses in `cache`."""

    def __init__(self, workdir: Path, cache: Path) -> None:
        self._workdir = workdir
        self._cache = cache

    def bundle(self, version: str = VERSION, patches: Patches | None = None) -> Path:
        """A directory with install.sh and all that it needs, wheel included."""
        bundle = self._workdir / f"bundle-{version}"
        if not bundle.exists():
            source = self.source(version, patches)
            building = self._workdir / "building"
            shutil.copytree(source / "packaging", building)
            shutil.copy(source / "config.example.yaml", building)
            _pip("wheel", "--no-deps", f"--wheel-dir={building}", str(source))
            building.rename(bundle)
        return bundle

    def source(self, version: str = VERSION, patches: Patches | None = None) -> Path:
        """A copy of this tree, as `version`: what is in a checkout and goes to a host."""
        source = self._workdir / f"source-{version}"
        if not source.exists():
            source.mkdir()
            for name in _TREE:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
            number = {"__init__.py": (f'"{VERSION}"', f'"{version}"')}
            for name, (old, new) in {**number, **(patches or {})}.items():
                file = source / "monky_deployd" / name
                text = file.read_text()
                assert old in text, f"{name} has no {old!r} any more"
                file.write_text(text.replace(old, new))
        return source

    def wheelhouse(self, python: str) -> Path:
        """Wheels for `python` ("3.11"): the locked dependencies, and what builds a source tree."""
        key = hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]
        target = self._cache / "wheelhouse" / f"{key}-{python}"
        if not target.exists():
            fresh = target.with_name(f"{target.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            download = ["download", "--only-binary=:all:", f"--python-version={python}"]
            download.append(f"--dest={fresh}")
            _pip(*download, "--no-deps", "--require-hashes", f"--requirement={_LOCK}")
            _pip(*download, "hatchling")
            fresh.rename(target)
        return target


def _pip(*args: str) -> None:
    subprocess.run([*_PIP, *args], check=True)
