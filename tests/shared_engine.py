"""A Docker Engine for layers that run at once: there from its word "ready" until its input ends.

Each layer would start one of its own otherwise, on the same socket, and stop it for the others.
"""

import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from monky_deployd.demo.engine import Engine


def main() -> None:
    """Start one, unless one runs already."""
    # An interrupt is for the layers: they clean up in the engine before their script ends. It is
    # not ignored, as the engine and its containers would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with TemporaryDirectory(prefix="monky-engine-") as base:
        engine = Engine.ensure(Path(base))
        try:
            print("ready", flush=True)
            sys.stdin.read()
        finally:
            engine.stop()


if __name__ == "__main__":
    main()
