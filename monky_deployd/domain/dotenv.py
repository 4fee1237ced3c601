"""The project's `.env`: every value in the one form that Compose reads back byte for byte.

One line a variable, always in double quotes, with five characters escaped. The rule and its
limits are measured against Compose 2.26.1 and 2.40.3; `readback_probe` and `check_readback`
let the host's own Compose confirm them before anything is deployed.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError

# Linux takes no single string of an environment that is longer (MAX_ARG_STRLEN).
MAX_VARIABLE_BYTES = 131_072
# All strings of an execve, with a pointer of 8 bytes each, must fit a quarter of the stack limit:
# 2 MiB by default. An eighth of a MiB stays free for the image's own variables and the command.
MAX_TOTAL_BYTES = 2 * 1024 * 1024 - 128 * 1024
_POINTER_BYTES = 8

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "$": "\\$", "\n": "\\n", "\r": "\\r"})
_UNESCAPED = {"n": "\n", "r": "\r"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LINE = re.compile(r'([^=]+)="(.*)"', re.DOTALL)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_INTERPOLATABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_PUNCTUATION = "_.-[]"

_FROM_FILE = "from-file"
_INTERPOLATED = "interpolated"


def render_dotenv(values: Mapping[str, Secret]) -> bytes:
    """The `.env` that gives each key its value: UTF-8, LF, keys in the given order.

    Raises one EntryError that names every key that can't be carried, and never a value.
    """
    faults = [f"{key!r} {fault}" for key, value in values.items() for fault in _faults(key, value)]
    faults += _total_fault(values)
    if faults:
        raise EntryError(
            f"the .env can't carry every entry: {'; '.join(faults)}",
            remedy='rename or shorten these entries, or deliver them with use "file"',
        )
    return "".join(_line(key, value) for key, value in values.items()).encode()


def parse_dotenv(content: bytes) -> dict[str, Secret]:
    """What `render_dotenv` wrote, read back. Lines of any other form are left out."""
    lines = content.decode("utf-8", "replace").split("\n")
    found = (_LINE.fullmatch(line) for line in lines)
    return {match[1]: Secret(_unescaped(match[2])) for match in found if match}


def is_interpolatable(key: str) -> bool:
    """Whether a compose file can name `key` as `${key}`; other keys only reach `env_file:`."""
    return _INTERPOLATABLE.fullmatch(key) is not None


def readback_probe(keys: Iterable[str]) -> str:
    """A compose model (JSON, so also YAML) that shows how Compose reads `.env` in both ways.

    One service takes the file through `env_file`, one each interpolatable key as `${key}`.
    The output of `config --format json` for it goes to `check_readback`.
    """
    interpolated = {key: f"${{{key}}}" for key in keys if is_interpolatable(key)}
    model = {
        "services": {
            _FROM_FILE: {"image": "probe", "env_file": [".env"]},
            _INTERPOLATED: {"image": "probe", "environment": interpolated},
        }
    }
    return json.dumps(model)


def check_readback(model: Mapping[str, Any], values: Mapping[str, Secret]) -> None:
    """Holds Compose's answer to the probe (`model`, parsed) against the values that were meant.

    Raises one EntryError that names every key whose value differs, and in which way.
    """
    from_file = _environment(model, _FROM_FILE)
    interpolated = _environment(model, _INTERPOLATED)
    faults = []
    for key, value in values.items():
        if not _is_same(from_file.get(key), value):
            faults.append(f"{key!r} through env_file")
        if is_interpolatable(key) and not _is_same(interpolated.get(key), value):
            faults.append(f"{key!r} through ${{{key}}}")
    if from_file.keys() - values.keys():
        # Such a name may be a piece of a value that was cut in the wrong place.
        faults.append("a variable that no entry names")
    if faults:
        raise EntryError(
            f"Compose reads other values from .env than were written: {'; '.join(faults)}",
            remedy=(
                'deliver these entries with use "file", or rename those that the agent\'s own '
                "environment sets too (PATH, HOME, PWD, DOCKER_HOST, DOCKER_CONFIG)"
            ),
        )


def _line(key: str, value: Secret) -> str:
    return f'{key}="{value.reveal().translate(_ESCAPES)}"\n'


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[1]), text)


def _faults(key: str, value: Secret) -> Iterator[str]:
    if not key or not all(_is_key_character(character) for character in key):
        yield "is a name that Compose can't read (letters, digits and _ . - [ ] it can)"
    if key.startswith("COMPOSE_") or key == "DOCKER_DEFAULT_PLATFORM":
        yield "is a name that steers Compose itself"
    if "\0" in value.reveal():
        yield "holds a NUL character"
    if _SURROGATE.search(value.reveal()):
        yield "is not valid Unicode text"
    if _size(key, value) > MAX_VARIABLE_BYTES:
        yield f"is longer, with its name, than the {MAX_VARIABLE_BYTES} bytes that Linux takes"


def _is_key_character(character: str) -> bool:
    return character in _KEY_PUNCTUATION or unicodedata.category(character)[0] in "LN"


def _total_fault(values: Mapping[str, Secret]) -> list[str]:
    sizes = {key: _size(key, value) + _POINTER_BYTES for key, value in values.items()}
    if sum(sizes.values()) <= MAX_TOTAL_BYTES:
        return []
    largest = sorted(sizes, key=lambda key: sizes[key], reverse=True)[:3]
    return [
        f"all together are longer than the {MAX_TOTAL_BYTES} bytes that leave a container "
        f"room to start (largest: {', '.join(map(repr, largest))})"
    ]


def _size(key: str, value: Secret) -> int:
    """Bytes of `key=value` and the NUL after it, as the kernel counts them."""
    return len(f"{key}={value.reveal()}\0".encode("utf-8", "surrogatepass"))


def _environment(model: Mapping[str, Any], service: str) -> Mapping[str, object]:
    node: object = model
    for part in ("services", service, "environment"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _is_same(shown: object, value: Secret) -> bool:
    """`config` doubles each `$`, so that its output could be a compose file again."""
    return isinstance(shown, str) and Secret(shown.replace("$$", "$")) == value
