"""Compose files with what the policy has to say of them, run through a real Compose."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from monky_deployd.clients.compose import ComposeCli, Project
from monky_deployd.domain.config import DockerCfg, PolicyCfg
from monky_deployd.domain.manifest import ENV_FILE, PRIVATE_DIR
from monky_deployd.domain.policy import check_model
from monky_deployd.domain.policy_findings import Violation
from monky_deployd.domain.policy_sources import check_sources
from monky_deployd.domain.secret import Scrubber
from monky_deployd.host.real_path import real_path

HERE = Path(__file__).parent
MAIN_FILE = "compose.yaml"

# Beside its compose file a case's release has these.
PARTS = {
    "parts/privileged.yaml": 'services: {base: {image: "bbx:1", privileged: true}}\n',
    "parts/more.yaml": 'services: {more: {image: "bbx:1"}}\n',
    "parts/remote.yaml": 'include: ["https://git.example/a/b.git"]\n',
    "app.env": "LOG_LEVEL=info\n",
    "conf/app.conf": "listen 80\n",
    "secrets/password": "x",
    ENV_FILE: 'TAG="1"\n',
}


@dataclass(frozen=True)
class Case:
    """A compose file and its head: `# refused by`, `# policy`, and `# compose` where only one
    version reads it."""

    name: str
    text: str
    rules: frozenset[str] = frozenset()
    policy: Mapping[str, Any] = field(default_factory=dict)
    needs_new_compose: bool = False


def cases(directory: str) -> list[Case]:
    """The cases in a directory beside this file."""
    return [_read(path) for path in sorted((HERE / directory).glob("*.yaml"))]


def _read(path: Path) -> Case:
    text = path.read_text()
    head = dict(re.findall(r"^# (refused by|policy|compose): (.*)$", text, re.MULTILINE))
    return Case(
        name=path.stem,
        text=text,
        rules=frozenset(re.split(r",\s*", head["refused by"]))
        if "refused by" in head
        else frozenset(),
        policy=_quoted(head.get("policy", "{}")),
        needs_new_compose="compose" in head,
    )


def _quoted(text: str) -> dict[str, Any]:
    # `@` can't begin a plain scalar of YAML.
    policy: dict[str, Any] = yaml.safe_load(re.sub(r"(@ROOT@[\w/-]*)", r'"\1"', text))
    return policy


@dataclass(frozen=True)
class Site:
    """A host's corner: `srv/` with links out of it, and a state directory with one release."""

    root: Path
    compose: ComposeCli

    @classmethod
    def make(cls, root: Path, socket: Path, binary: Path | None) -> "Site":
        """Lay it out below `root`; `binary` is another Compose than the host's own."""
        for directory in ("srv", "srv-other", "state/docker/cli-plugins"):
            (root / directory).mkdir(parents=True)
        (root / "srv/link-to-run").symlink_to("/run")
        (root / "srv/link-to-etc").symlink_to("/etc")
        (root / "srv/dangling").symlink_to(root / "nothing")
        if binary is not None:
            (root / "state/docker/cli-plugins/docker-compose").symlink_to(binary)
        compose = ComposeCli(DockerCfg(socket=str(socket)), root / "state", Scrubber())
        return cls(root, compose)

    @property
    def release(self) -> Path:
        return self.root / "state/releases/2-000000000000"

    async def judge(self, case: Case) -> tuple[Violation, ...]:
        """What the policy refuses in `case`, as the agent asks it: the files, then the model."""
        files = {**PARTS, MAIN_FILE: case.text.replace("@ROOT@", str(self.root))}
        for name, content in files.items():
            (self.release / name).parent.mkdir(parents=True, exist_ok=True)
            (self.release / name).write_text(content)
        policy = PolicyCfg.model_validate(_placed(case.policy, str(self.root)))
        encoded = {name: content.encode() for name, content in files.items()}
        sources = check_sources(encoded, [MAIN_FILE], policy)
        if sources.violations:
            return sources.violations
        model = await self.compose.model(Project("shop", self.release, (MAIN_FILE,)))
        return check_model(
            model,
            policy,
            project_directory=str(self.release),
            real_path=real_path,
            own_files=(*sources.names, ENV_FILE, PRIVATE_DIR),
            private=(str(self.root / "state"), str(self.root / "grant")),
        )


def _placed(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {key: _placed(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, root) for item in value]
    return value.replace("@ROOT@", root) if isinstance(value, str) else value
