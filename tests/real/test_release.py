"""packaging/release.sh: what a release consists of, and that it installs with no index."""

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from monky_deployd import __version__
from tests.parts import require

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
NAME = f"monky-deployd-{__version__}"
WHEEL = f"monky_deployd-{__version__}-py3-none-any.whl"


@dataclass(frozen=True)
class Release:
    """A clean checkout, and what release.sh made of it."""

    tree: Path
    output: Path

    @property
    def bundle(self) -> Path:
        return self.output / f"{NAME}.tar.gz"

    def unpack(self, target: Path) -> Path:
        shutil.unpack_archive(self.bundle, target)
        return target / NAME


def run(*argv: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True)


def checkout(target: Path) -> Path:
    """This tree as a repository of its own, with everything committed."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    require("a git checkout", listed.returncode == 0, "clone the repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "all")):
        done = run("git", *command, cwd=target)
        assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    tree = checkout(tmp_path_factory.mktemp("tree"))
    done = run(tree / "packaging/release.sh", cwd=tree)
    assert done.returncode == 0, done.stdout + done.stderr
    return Release(tree, tree / "dist")


@pytest.fixture
def dirty(release: Release) -> Release:
    """The same tree with a file that nobody committed."""
    (release.tree / "new.txt").touch()
    return release


def test_a_release_is_wheel_sdist_bundle_and_their_checksums(release: Release) -> None:
    assert sorted(path.name for path in release.output.iterdir()) == [
        "SHA256SUMS",
        f"{NAME}.tar.gz",
        WHEEL,
        f"monky_deployd-{__version__}.tar.gz",
    ]
    checked = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=release.output)
    assert checked.stdout.count(": OK\n") == 3


def test_the_bundle_holds_all_that_a_host_needs(release: Release) -> None:
    with tarfile.open(release.bundle) as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert {name.removeprefix(f"{NAME}/") for name in names if "/wheelhouse/" not in name} == {
        NAME,
        "OPERATIONS.md",
        "PROTOCOL.md",
        "README.md",
        WHEEL,
        "config.example.yaml",
        "install.sh",
        *directory(release, "installer"),
        "monky-deployd.service",
        *directory(release, "monky-deployd.service.d"),
        "monky-deployd.sysusers.conf",
        "requirements.lock",
        "wheelhouse",
    }
    assert names == sorted(names)
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {
        (0, 0, "", "")
    }


def directory(release: Release, name: str) -> list[str]:
    """A directory of packaging's with everything in it."""
    files = (release.tree / "packaging" / name).iterdir()
    return [name, *(f"{name}/{path.name}" for path in files)]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_the_wheelhouse_serves_every_python_and_machine(
    release: Release, python: str, machine: str, tmp_path: Path
) -> None:
    bundle = release.unpack(tmp_path)
    target = [f"--python-version={python}", f"--platform=manylinux_2_28_{machine}"]
    target += [f"--platform=manylinux2014_{machine}", "--only-binary=:all:", "--no-deps"]
    pip(sys.executable, "download", bundle, *target, f"--dest={tmp_path}")


def test_the_bundle_installs_with_no_index(release: Release, tmp_path: Path) -> None:
    bundle, venv = release.unpack(tmp_path), tmp_path / "venv"
    assert run("bash", bundle / "install.sh", "--help").returncode == 0
    run(sys.executable, "-m", "venv", venv)
    pip(venv / "bin/python", "install", bundle)
    run(venv / "bin/pip", "install", "--no-index", "--no-deps", bundle / WHEEL)
    said = run(venv / "bin/monky-deployd", "--version")
    assert said.stdout == f"monky-deployd {__version__}\n"


def pip(python: str | Path, command: str, bundle: Path, *options: str) -> None:
    """Install or download what is locked, from the bundle's wheelhouse alone."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    wheelhouse = ["--no-index", "--find-links", bundle / "wheelhouse"]
    locked = ["--require-hashes", "--requirement", bundle / "requirements.lock"]
    done = subprocess.run(
        [python, "-m", "pip", command, *wheelhouse, *locked, *options],
        env={**clean, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dirty_tree_is_refused(dirty: Release, tmp_path: Path) -> None:
    done = run(dirty.tree / "packaging/release.sh", tmp_path / "out")
    assert done.returncode == 1
    assert "?? new.txt" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_dirty_tree_is_released_on_demand_and_the_bundle_is_the_same_to_the_byte(
    dirty: Release, tmp_path: Path
) -> None:
    done = run(dirty.tree / "packaging/release.sh", "--allow-dirty", tmp_path)
    assert done.returncode == 0, done.stderr
    # The file that nobody committed is in the sdist only.
    assert (tmp_path / dirty.bundle.name).read_bytes() == dirty.bundle.read_bytes()
