"""A while of random faults, without one violation of what must always hold.

`MONKY_SOAK_SECONDS` makes it longer, `MONKY_SOAK_SEED` repeats the faults of another run.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monky_deployd.demo.images import make_image
from monky_deployd.demo.registry import Registry
from tests.real.faults.bench import Bench, Parts, open_bench
from tests.real.faults.soak import SUMMARIES, Soak

pytestmark = pytest.mark.real

SECONDS = float(os.environ.get("MONKY_SOAK_SECONDS", "90"))
SEED = int(os.environ.get("MONKY_SOAK_SEED", random.randrange(1_000_000)))


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry whose password may be changed."""
    base = tmp_path / "registry"
    base.mkdir()
    registry = Registry.start(base)
    try:
        yield registry
    finally:
        registry.stop()


@pytest.fixture
def bench(tmp_path: Path, parts: Parts, own_registry: Registry, run_label: str) -> Iterator[Bench]:
    image = partial(make_image, parts.engine, own_registry, label=run_label)
    own = replace(parts, registry=own_registry, image=image)
    with open_bench(tmp_path / "bench", own) as opened:
        opened.publish()
        opened.start()
        opened.converged()
        yield opened


def test_random_faults_do_no_lasting_harm(bench: Bench, own_registry: Registry) -> None:
    print(f"MONKY_SOAK_SEED={SEED}")
    soak = Soak(bench, own_registry, SEED)
    try:
        soak.run(SECONDS)
    finally:
        print("\n".join(soak.timeline))
        SUMMARIES.append(
            f"MONKY_SOAK_SEED={SEED} MONKY_SOAK_SECONDS={SECONDS:g}: "
            f"{bench.generation} generations, "
            f"{len(bench.reports)} reports, {soak.looks} looks, {len(soak.violations)} violations; "
            + ", ".join(f"{count} × {name}" for name, count in sorted(soak.done.items()))
        )
    assert soak.violations == []
