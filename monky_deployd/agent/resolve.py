"""The resolve phase: each entry of the manifest gets its value."""

from collections.abc import Sequence

from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.domain.kv import KvSecret, pick_value
from monky_deployd.domain.manifest import Entry, Use
from monky_deployd.domain.rendering import Resolved
from monky_deployd.domain.secret import Secret


async def resolve(
    entries: Sequence[Entry], openbao: OpenBaoClient, grant: Secret
) -> tuple[Resolved, ...]:
    """Every entry with its value: plain ones as they stand, the others read from OpenBao.

    Each path is read once. Raises OpenBaoError or EntryError that names entry and path.
    """
    secrets = await _read_paths(entries, openbao, grant)
    return tuple(Resolved(entry, _value(entry, secrets)) for entry in entries)


async def _read_paths(
    entries: Sequence[Entry], openbao: OpenBaoClient, grant: Secret
) -> dict[str, KvSecret]:
    secrets: dict[str, KvSecret] = {}
    wanted = [(entry.path, entry.name) for entry in entries if entry.path is not None]
    if wanted:
        await openbao.login(grant)
    for path, name in wanted:
        if path not in secrets:
            secrets[path] = await openbao.read(path, entry=name)
    return secrets


def _value(entry: Entry, secrets: dict[str, KvSecret]) -> Secret:
    if entry.path is None:
        return Secret(entry.value or "")
    return pick_value(
        secrets[entry.path],
        entry=entry.name,
        path=entry.path,
        key=entry.key,
        whole_json=entry.use is Use.REGISTRY_AUTH,
    )
