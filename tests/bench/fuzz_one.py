"""One target of `tests.bench.fuzz`, in a process of its own, which ends with it.

    python -m tests.bench.fuzz_one TARGET SECONDS SEED CORPUS

What leads to code that none has reached yet is kept in the directory CORPUS.
"""

import os
import random
import sys
import time
from collections import Counter

import atheris

with atheris.instrument_imports(include=["monky_deployd"]):
    from tests.bench.fuzz_targets import TARGETS, attempt, mutated

# libFuzzer ends with 77 and 70 for faults of its own finding, and with 1 for misuse.
GOOD, FOUND = 0, 3

_LONGEST_INPUT = 65_536
_FINDINGS_SHOWN = 5


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
            os._exit(FOUND if self._findings else GOOD)
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


def main(name: str, seconds: str, seed: str, corpus: str) -> None:
    """Feed the target until its time is over. Does not return."""
    feeder = Feeder(name, float(seconds))
    options = [f"-seed={seed}", f"-max_len={_LONGEST_INPUT}", "-timeout=20", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, corpus], feeder.feed, custom_mutator=feeder.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
