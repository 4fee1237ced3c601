"""`python -m monky_deployd`."""

from monky_deployd.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
