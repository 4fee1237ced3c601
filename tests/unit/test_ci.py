"""The pipeline: what runs the tests, what is published when, and how the mirror's token travels."""

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PIPELINE: dict[str, Any] = yaml.safe_load((ROOT / ".gitlab-ci.yml").read_text())
TOKEN = "token-of-the-mirror"
PUBLISHING = ("publish:generic", "publish:pypi", "release:gitea")


def rules(job: dict[str, Any]) -> list[dict[str, Any]]:
    """A job's rules, or those of the job that it extends."""
    found: list[dict[str, Any]] = job.get("rules") or PIPELINE[job["extends"]]["rules"]
    return found


class Mirror(BaseHTTPRequestHandler):
    """Asks for a password, and refuses whoever gives one."""

    seen: list[str]

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization")
        self.send_response(404 if authorization else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="mirror"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        if authorization:
            self.seen.append(authorization)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def mirror() -> Iterator[HTTPServer]:
    Mirror.seen = []
    with HTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """A repository with one commit and the tag v1."""
    repository = tmp_path / "repository"
    author = ["-c", "user.name=ci", "-c", "user.email=ci@example.invalid"]
    git("init", "--quiet", str(repository), cwd=tmp_path)
    git(*author, "commit", "--quiet", "--allow-empty", "--message=one", cwd=repository)
    git("tag", "v1", cwd=repository)
    return repository


def git(*args: str, cwd: Path) -> str:
    return subprocess.run(
        ["git", *args], cwd=cwd, check=True, capture_output=True, text=True
    ).stdout


def release_to(url: str, repository: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of release:gitea as a runner does."""
    job = PIPELINE["release:gitea"]
    environment = {
        **os.environ,
        **job["variables"],
        "GITEA_MIRROR_URL": url,
        "GITEA_MIRROR_TOKEN": TOKEN,
        "CI_COMMIT_TAG": "v1",
    }
    return subprocess.run(
        ["bash", "-xeo", "pipefail", "-c", "\n".join(job["script"])],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_the_tests_run_by_the_one_command() -> None:
    assert PIPELINE["test"]["script"] == ["bash .ci/run"]
    assert "tests/run.sh" in (ROOT / ".ci/run").read_text()


def test_every_job_stands_in_a_stage_that_exists() -> None:
    jobs = {
        name: job for name, job in PIPELINE.items() if isinstance(job, dict) and "script" in job
    }
    assert set(jobs) == {"test", "build", *PUBLISHING}
    for name, job in jobs.items():
        assert job["stage"] in PIPELINE["stages"], name
        assert set(job.get("needs", ())) <= set(jobs), name


def test_only_a_tag_is_published() -> None:
    for name in PUBLISHING:
        assert [rule["if"] for rule in rules(PIPELINE[name])] == ["$CI_COMMIT_TAG"], name


def test_the_mirror_is_published_by_hand_and_after_everything_else() -> None:
    job = PIPELINE["release:gitea"]
    assert [rule["when"] for rule in rules(job)] == ["manual"]
    assert set(job["needs"]) == {"test", "publish:generic", "publish:pypi"}


def test_the_mirror_gets_the_tag(tagged: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror.git"
    git("init", "--quiet", "--bare", str(mirror), cwd=tmp_path)
    done = release_to(str(mirror), tagged)
    assert done.returncode == 0, done.stderr
    assert git("show-ref", cwd=mirror) == git("show-ref", "--tags", cwd=tagged)


def test_the_mirrors_token_goes_to_the_mirror_and_nowhere_else(
    tagged: Path, mirror: HTTPServer
) -> None:
    done = release_to(f"http://127.0.0.1:{mirror.server_port}/m.git", tagged)
    assert done.returncode != 0
    assert set(Mirror.seen) == {"Basic " + base64.b64encode(f"git:{TOKEN}".encode()).decode()}
    # Although the shell traces each command, with its arguments.
    assert "push http://127.0.0.1" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
