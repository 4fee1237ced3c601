"""What comes from outside, mutated: nothing may raise but the typed errors, nor quote a secret.

    python -m tests.bench.fuzz [--seconds N] [--seed N] [TARGET ...]

Each target is fed for so long, in a process of its own; atheris leads the mutations to code that
none has reached yet. The counts are printed, and the exit code is 1 where there was a finding.
Needs `pip install '.[fuzz]'`.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["monky_deployd"]):
    from tests.bench.fuzz_targets import TARGETS, attempt, mutated

_LONGEST_INPUT = 65_536
_FINDINGS_SHOWN = 5
# libFuzzer ends with 77 and 70 for faults of its own finding, and with 1 for misuse.
_GOOD, _FOUND = 0, 3


class Feeder:
    """Feeds one target until its time is over, then prints what came of it and ends the process."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._target = TARGETS[name]
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._ends: Counter[str] = Counter()
        self._findings: dict[str, bytes] = {}

    def feed(self, data: bytes) -> None:
        """One input."""
        if time.monotonic() >= self._until:
            self._tell()
            # libFuzzer has no other way to end than this or its own report of a crash.
            os._exit(_FOUND if self._findings else _GOOD)
        end, finding = attempt(self._target, data)
        self._ends[end] += 1
        if finding:
            self._findings.setdefault(finding, data)

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        """The next input: by libFuzzer's own mutations, or by those that know the format."""
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return mutated(chance, (bytes(data), *self._target.examples))[:max_size]

    def _tell(self) -> None:
        told = ", ".join(f"{count} {end}" for end, count in self._ends.most_common())
        print(
            f"{self._name}: {self._ends.total()} inputs in {self._seconds:.0f} s: {told}; "
            f"{len(self._findings)} findings"
        )
        for finding, data in list(self._findings.items())[:_FINDINGS_SHOWN]:
            print(f"  {data[:300]!r}\n  {finding}")
        sys.stdout.flush()


def feed_here(name: str, seconds: float, seed: int, corpus: str) -> None:
    """Feed one target in this process, which ends with it. What is found is kept in `corpus`."""
    feeder = Feeder(name, seconds)
    options = [f"-seed={seed}", f"-max_len={_LONGEST_INPUT}", "-timeout=20", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, corpus], feeder.feed, custom_mutator=feeder.mutate)
    atheris.Fuzz()


def run(name: str, seconds: float, seed: int) -> bool:
    """Feed one target in a process of its own; whether all went well."""
    with TemporaryDirectory() as corpus:
        for number, example in enumerate(TARGETS[name].examples):
            (Path(corpus) / str(number)).write_bytes(example)
        options = ["--seconds", str(seconds), "--seed", str(seed), "--corpus", corpus, name]
        child = subprocess.run(
            [sys.executable, "-m", "tests.bench.fuzz", *options], stderr=subprocess.PIPE
        )
    if child.returncode not in (_GOOD, _FOUND):
        print(f"{name}: the fuzzer itself ended with {child.returncode}:")
        print(child.stderr.decode("utf-8", "replace")[-4000:])
    return child.returncode == _GOOD


def main() -> int:
    """Run the targets that were asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=600, help="for each (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    # For the process of one target.
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if unknown := set(chosen.targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    names = chosen.targets or list(TARGETS)
    if chosen.corpus:
        feed_here(names[0], chosen.seconds, chosen.seed, chosen.corpus)
    good = [run(name, chosen.seconds, chosen.seed) for name in names]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
