"""Where a path of the host leads, as far as the agent's user can see."""

from pathlib import Path


def real_path(path: str) -> str | None:
    """`path` with every symbolic link resolved; None where that can't be found out.

    What doesn't exist can't be a link, and stays as it is: the engine makes a missing bind
    source itself. Where a link leads to nothing, nobody can say what will be there.
    """
    there = Path(path)
    missing: list[str] = []
    while True:
        try:
            return str(there.resolve(strict=True).joinpath(*reversed(missing)))
        except FileNotFoundError:
            if there.is_symlink():
                return None
            missing.append(there.name)
            there = there.parent
        # RuntimeError: a loop of links. ValueError: a NUL in the path.
        except (OSError, RuntimeError, ValueError):
            return None
