"""The demo: an environment goes from an empty host to a running service, and a pull fails.

`python -m monky_deployd.demo.show --help` says how to start it. Nothing is printed that was not
observed; a proof that fails ends the demo with exit code 1.
"""

import argparse
import json
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from monky_deployd.demo.interrupts import Interrupts
from monky_deployd.demo.page import Page
from monky_deployd.demo.stage import NOTICE, PAGE, AgentProcess, Stage, open_stage
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import MonkyError

_NO_LOGIN = "no basic auth credentials"
_REPORT_FIELDS = ("generation", "phase", "outcome", "message", "errors", "running_generation")
_PS_TABLE = r"table {{.Names}}\t{{.Image}}\t{{.Status}}\t{{.Ports}}"
_EXPECTED_FAILURES = (MonkyError, OSError, httpx.HTTPError, subprocess.SubprocessError)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the demo. 0 when every proof held, 1 when something failed, 130 when interrupted."""
    options = _parser().parse_args(argv)
    interrupts, page = Interrupts(), Page(sys.stdout)
    began = time.monotonic()
    try:
        _show(interrupts, page, keep=options.keep)
    except KeyboardInterrupt:
        print("demo: interrupted; everything was cleaned up", file=sys.stderr)  # noqa: T201
        return 128 + 2
    except _EXPECTED_FAILURES as error:
        print(f"demo: {error}", file=sys.stderr)  # noqa: T201
        return 1
    took = time.monotonic() - began
    page.say(f"everything was stopped and removed; the demo took {took:.0f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo", description="a deploy, and a failed pull")
    parser.add_argument(
        "--keep", action="store_true", help="leave everything running to explore, until Ctrl-C"
    )
    return parser


def _show(interrupts: Interrupts, page: Page, *, keep: bool) -> None:
    page.step("The parts are started, all on loopback")
    with open_stage(interrupts, page.say) as stage:
        Story(stage, page).tell(keep=keep)
        page.step("Clean-up")


@dataclass(frozen=True)
class Story:
    """The demo's steps, in order. Each raises MonkyError when what it shows isn't so."""

    stage: Stage
    page: Page

    def tell(self, *, keep: bool) -> None:
        """All steps; with `keep`, then wait for Ctrl-C."""
        self.nobody_is_logged_in()
        self.manifest_is_published()
        agent = self.agent_deploys()
        self.containers_run()
        self.service_answers()
        self.credential_stays_with_the_agent(agent)
        self.missing_tag_is_told_and_nothing_touched(agent)
        if keep:
            self.explore(agent)

    def nobody_is_logged_in(self) -> None:
        """A person's own pull is refused."""
        self.page.step("Nobody on this host is logged in to the registry")
        self._pull_in_vain()

    def manifest_is_published(self) -> None:
        """Generation 1, as tenancy serves it."""
        self.page.step("Tenancy has a manifest: generation 1")
        manifest = self._publish(1, "1")
        self.page.document(manifest)
        self.page.say("its compose.yaml:")
        self.page.output(self.stage.compose("1"))

    def agent_deploys(self) -> AgentProcess:
        """The real agent brings generation 1 up, told by its own log."""
        self.page.step("The agent deploys it; its log:")
        agent = self.stage.start_agent(self.page.output)
        report = agent.wait_for_report(lambda: self.stage.report(1))
        self._expect("converged", report)
        return agent

    def containers_run(self) -> None:
        """The project's containers, as any person sees them."""
        self.page.step("The containers")
        self._run("ps", "--filter", f"name={self.stage.slug}", "--format", _PS_TABLE)
        running = self._inspect()["State"]["Running"]
        self.page.prove(running, f"{self.stage.container} runs")

    def service_answers(self) -> None:
        """The published port, by HTTP."""
        self.page.step("The deployed service answers")
        page, notice = self._get("/"), self._get("/notice.txt")
        self.page.prove(page.strip() == PAGE, "the image's page came, so the image was pulled")
        self.page.prove(notice == NOTICE, "the manifest's file came, mounted from the release")

    def credential_stays_with_the_agent(self, agent: AgentProcess) -> None:
        """Where the login went, and where it did not."""
        self.page.step("Where the registry's credential went, and where it did not")
        self._prove_private_login()
        self._prove_not_leaked(agent)
        self.page.say("and a person's own pull is still refused:")
        self._pull_in_vain()

    def missing_tag_is_told_and_nothing_touched(self, agent: AgentProcess) -> None:
        """Generation 2 can't be pulled; generation 1 keeps running."""
        self.page.step("Generation 2 wants a tag that doesn't exist; the agent's log:")
        before = self._inspect()
        self._publish(2, "2")
        report = agent.wait_for_report(lambda: self.stage.report(2))
        self._expect("pull-failed", report)
        self.page.document({name: report[name] for name in _REPORT_FIELDS})
        [error] = report["errors"]
        words = self._registry_words("2")
        log = agent.log.read_text(errors="replace")
        self.page.prove(
            words in error["message"] and error["message"] in log,
            f"the registry's own words ({words}) stand in the log and in the report",
        )
        self.page.prove(
            _identity(self._inspect()) == _identity(before),
            f"{self.stage.container} is the same container as before, never restarted",
        )
        self.page.prove(self._get("/").strip() == PAGE, "generation 1 still answers")

    def explore(self, agent: AgentProcess) -> None:
        """Say what can be tried, and go on showing the agent's log until Ctrl-C."""
        self.page.step("All of it keeps running until Ctrl-C; to try, in another terminal:")
        self.page.output(self._commands(agent))
        if shutil.which("curl") is None:
            self.page.say("curl isn't installed here: apt-get install curl")
        self.page.say("the agent's log goes on here:")
        try:
            agent.follow()
        except KeyboardInterrupt:
            self.page.say("interrupted")

    def _publish(self, generation: int, tag: str) -> dict[str, Any]:
        manifest = self.stage.manifest(generation, tag)
        self.stage.tenancy.publish(self.stage.slug, manifest)
        file = self.stage.base / f"generation-{generation}.json"
        file.write_text(json.dumps(manifest, indent=2) + "\n")
        return manifest

    def _expect(self, outcome: str, report: dict[str, Any]) -> None:
        said = f"{report['outcome']}: {report['message']}"
        if report["outcome"] != outcome:
            raise MonkyError(f"the agent was to report {outcome}, and reported {said}")
        self.page.say(f"tenancy got the report: {said}")

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.page.command(["docker", *arguments])
        done = self.stage.docker(*arguments)
        self.page.output(done.stdout + done.stderr)
        return done

    def _pull_in_vain(self) -> None:
        done = self._run("pull", self.stage.image)
        refused = done.returncode != 0 and _NO_LOGIN in done.stderr
        self.page.prove(refused, "the registry gives the image to nobody without a login")

    def _get(self, path: str) -> str:
        url = self.stage.url + path
        answer = httpx.get(url, trust_env=False).raise_for_status()
        self.page.say(f"GET {url}: {answer.status_code} {answer.reason_phrase}")
        self.page.output(answer.text)
        return answer.text

    def _inspect(self) -> dict[str, Any]:
        path = f"/containers/{self.stage.container}/json"
        document: dict[str, Any] = self.stage.engine.request("GET", path).json()
        return document

    def _registry_words(self, tag: str) -> str:
        """What the registry itself says about a tag to somebody with the right login."""
        registry = self.stage.registry
        repository = self.stage.image.removeprefix(f"{registry.host}/").rpartition(":")[0]
        answer = httpx.get(
            f"http://{registry.host}/v2/{repository}/manifests/{tag}",
            auth=(registry.username, registry.password.reveal()),
            trust_env=False,
        )
        if answer.status_code != httpx.codes.NOT_FOUND:
            raise MonkyError(f"the registry says {answer.status_code} about tag {tag}, not 404")
        return str(answer.json()["errors"][0]["message"])

    def _prove_private_login(self) -> None:
        file = self.stage.state / "docker" / "config.json"
        for path in (file.parent, file):
            status = path.lstat()
            self.page.output(f"{stat.filemode(status.st_mode)} {path.owner()} {path}")
        self.page.prove(
            _mode(file) == 0o600 and _mode(file.parent) == 0o700,
            "only the agent's user can read config.json (0600 in 0700)",
        )
        hosts = list(json.loads(file.read_text())["auths"])
        self.page.prove(
            hosts == [self.stage.registry.host], f"it has a login for {', '.join(hosts)}, alone"
        )

    def _prove_not_leaked(self, agent: AgentProcess) -> None:
        """Search for the password in each spelling: as it is, in base64, in a URL, in JSON."""
        login, stage = _login_finder(self.stage), self.stage
        env_file = (stage.state / "current" / ".env").read_text()
        inspected = self._inspect()
        environment = inspected["Config"]["Env"]
        self.page.prove(
            f"DB_PASSWORD={stage.db_password.reveal()}" in environment
            and _finds(Scrubber([stage.db_password]), env_file),
            "DB_PASSWORD is found in .env, and in the container's environment byte for byte",
        )
        self.page.prove(not _finds(login, env_file), "the registry's password is not in .env")
        self.page.prove(
            not _finds(login, "\n".join(environment)), "not in the container's environment"
        )
        self.page.prove(
            not _finds(login, json.dumps(inspected)), "nowhere else in what docker inspect shows"
        )
        reports = json.dumps(stage.tenancy.received(stage.slug))
        self.page.prove(
            not _finds(login, agent.log.read_text() + reports), "not in the agent's log or reports"
        )
        found = [path.name for path in _files(stage.state) if _finds(login, _text(path))]
        self.page.prove(found == ["config.json"], "in no file of the agent's but config.json")

    def _commands(self, agent: AgentProcess) -> str:
        stage = self.stage
        cli = f"{sys.executable} -m monky_deployd --config {stage.config}"
        project = f"label=com.docker.compose.project={stage.slug}"
        return f"""\
# what runs
docker ps --filter {project}
curl {stage.url}/
# the agent's configuration, state and log
{cli} config check
ls -lR {stage.state}
cat {stage.state}/docker/config.json
less {agent.log}
# publish generation 3: the tag of generation 1 again
sed 's/"generation": 1/"generation": 3/' {stage.base}/generation-1.json |
    curl -sS -T - {stage.admin_url}/manifest
# what tenancy has heard
curl -sS {stage.admin_url}/reports
# read configuration and grant again, and reconcile at once
kill -HUP {agent.pid}"""


def _login_finder(stage: Stage) -> Scrubber:
    registry = stage.registry
    pair = Secret(f"{registry.username}:{registry.password.reveal()}")
    return Scrubber([registry.password, pair])


def _finds(scrubber: Scrubber, text: str) -> bool:
    return scrubber.scrub(text) != text


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _identity(inspected: dict[str, Any]) -> tuple[str, str]:
    return inspected["Id"], inspected["State"]["StartedAt"]


if __name__ == "__main__":
    raise SystemExit(main())
