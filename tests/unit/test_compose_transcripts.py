"""Every recorded run of Compose comes out as the right states, kinds and words."""

import json
from collections.abc import Mapping

import pytest

from monky_deployd.domain.compose_events import ServicePull, fold_pull, up_errors
from monky_deployd.domain.error_kinds import classify
from tests.transcripts import Parse, Section, parsed_json, parsed_plain, sections

# Each service's state, and the kind of its message where it failed; then kind and beginning of
# what was said without naming a service.
PULL_JSON: dict[str, tuple[dict[str, str], tuple[tuple[str, str], ...]]] = {
    "nocreds": ({"s": "failed auth"}, ()),
    "badcreds": ({"s": "failed auth"}, ()),
    "tagunk": ({"s": "failed not-found"}, ()),
    "repounk": ({"s": "failed not-found"}, ()),
    "digunk": ({"s": "failed not-found"}, ()),
    "frate": ({"s": "failed rate-limit"}, ()),
    "fdenied": ({"s": "failed auth"}, ()),
    "fharbor401": ({"s": "failed auth"}, ()),
    "fmunk": ({"s": "failed not-found"}, ()),
    "fnunk": ({"s": "failed not-found"}, ()),
    "fe500": ({"s": "failed other"}, ()),
    "fhtml503": ({"s": "failed other"}, ()),
    "fmulti": ({"s": "failed auth"}, ()),
    "fblob404": (
        {"s": "unknown"},
        (("other", "error pulling image configuration: download fail"),),
    ),
    "fbadsum": ({"s": "unknown"}, (("other", "error pulling image configuration: image config"),)),
    "dns": ({"s": "failed dns"}, ()),
    "refused": ({"s": "failed connect"}, ()),
    "tlsca": ({"s": "failed tls"}, ()),
    "httphttps": ({"s": "failed connect"}, ()),
    "invref": ({"s": "unknown"}, (("other", "unable to get image 'UPPER/Case:1': Error"),)),
    "invref2": ({"s": "unknown"}, (("other", "unable to get image 'a b': Error"),)),
    "emptyimg": ({"s": "unknown"}, (("other", 'service "s" has neither an image nor'),)),
    "hub": ({"s": "failed dns"}, ()),
    "ok": ({"s": "pulled"}, ()),
    "okagain": ({"s": "pulled"}, ()),
    "multi1": ({"bad": "failed not-found", "good": "interrupted", "slow": "interrupted"}, ()),
    "multi2": (
        {
            "bad": "interrupted",
            "bad2": "failed rate-limit",
            "arm": "interrupted",
            "good": "interrupted",
        },
        (),
    ),
    "multi2ign": (
        {
            "bad": "failed not-found",
            "bad2": "failed rate-limit",
            "arm": "unknown",
            "good": "pulled",
        },
        (),
    ),
    "sameimg": ({"a": "failed not-found", "b": "failed not-found", "c": "interrupted"}, ()),
    "buildonly": ({"b": "skipped", "g": "pulled"}, ()),
    "buildimg": ({"b": "failed not-found", "g": "pulled"}, ()),
    "buildimgign": ({"b": "skipped", "g": "pulled"}, ()),
    "polic": (
        {"n": "skipped", "b": "skipped", "m": "skipped", "d": "pulled", "g": "pulled"},
        (),
    ),
    "profonly": ({}, ()),
    "reqvar": ({"g": "unknown"}, (("other", "error while interpolating services.g.image"),)),
    "unsetvar": ({"g": "unknown"}, (("other", "unable to get image '127.0.0.1:5000/team/web:'"),)),
    "badyaml": ({"g": "unknown"}, (("other", "failed to parse /srv/app/compose.yaml: yaml"),)),
    "badkey": ({"g": "unknown"}, (("other", "validating /srv/app/compose.yaml: services.g"),)),
    "version": ({"g": "pulled"}, ()),
    "baddep": (
        {"g": "unknown"},
        (
            ("other", 'service "g" depends on undefined service "zz"'),
            ("other", "no configuration file provided: not found"),
            ("other", "empty compose file"),
            ("connect", "unable to get image '127.0.0.1:5000/team/web:1': Cannot connect to the"),
        ),
    ),
}

PULL_PLAIN: dict[str, tuple[dict[str, str], tuple[tuple[str, str], ...]]] = {
    "rate": ({"s": "failed rate-limit"}, ()),
    "denied": ({"s": "failed auth"}, ()),
    "multi": ({"s": "failed auth"}, ()),
    "spoof": ({"s": "failed auth"}, ()),
    "e500": ({"s": "failed other"}, ()),
    "html503": ({"s": "failed other"}, ()),
    "harbor": ({"s": "failed auth"}, ()),
    "scope": ({"s": "failed auth"}, ()),
    "nunk": ({"s": "failed not-found"}, ()),
    "munk": ({"s": "failed not-found"}, ()),
    "close": ({"s": "failed connect"}, ()),
    "arm": ({"s": "unknown"}, (("platform", "no matching manifest for linux/amd64 in the"),)),
    "blob404": ({"s": "unknown"}, (("other", "unknown blob"),)),
    "cfg404": ({"s": "unknown"}, (("other", "error pulling image configuration: download fa"),)),
    "badlayer": ({"s": "unknown"}, (("other", "filesystem layer verification failed for dig"),)),
    "armign": ({"s": "unknown"}, ()),
    "blob404ign": ({"s": "unknown"}, ()),
    "multiign": ({"s": "failed auth"}, ()),
    "dns": ({"s": "failed dns"}, ()),
    "refused": ({"s": "failed connect"}, ()),
    "invref": ({"s": "unknown"}, (("other", "unable to get image 'UPPER/Case:1': Error"),)),
    "manyign": (
        {
            "bad": "failed not-found",
            "same": "failed not-found",
            "bad2": "failed rate-limit",
            "multi": "failed auth",
            "arm": "unknown",
            "local": "skipped",
            "miss": "skipped",
            "bld": "skipped",
            "bldimg": "failed not-found",
        },
        (),
    ),
    "many": (
        {
            "bad": "interrupted",
            "bad2": "failed rate-limit",
            "arm": "interrupted",
            "good": "interrupted",
        },
        (),
    ),
    "unsetvar": ({"g": "unknown"}, (("other", "unable to get image '127.0.0.1:5000/team/web:'"),)),
    "reqvar": ({"g": "unknown"}, (("other", "error while interpolating services.g.image"),)),
    "badyaml": ({"g": "unknown"}, (("other", "yaml: line 1: did not find expected"),)),
    "badkey": ({"g": "unknown"}, (("other", "validating /srv/app/compose.yaml: services.g"),)),
    "version": ({"g": "skipped"}, ()),
    "nocreds": ({"s": "failed auth"}, ()),
    "badcreds": ({"s": "failed auth"}, ()),
    "brokendc": ({"s": "failed auth"}, ()),
    "helperdc": ({"s": "unknown"}, (("auth", "error getting credentials - err: exec:"),)),
    "nodaemon": (
        {"s": "unknown"},
        (("connect", "unable to get image '127.0.0.1:5000/team/web:1': Cannot connect to the"),),
    ),
    "ok": ({"s": "pulled"}, ()),
    "okagain": ({"s": "pulled"}, ()),
    "oklayers": ({"s": "pulled"}, ()),
    "diskfull": ({"s": "unknown"}, (("disk", "failed to register layer: Error processing"),)),
    "diskfullign": ({"s": "unknown", "n": "failed not-found"}, ()),
    "diskfull2": ({"s": "unknown"}, (("disk", "write /var/lib/docker/tmp/GetImageBlob"),)),
}

NO_IMAGE = "No such image: 127.0.0.1:5000/team/web:nope"
PORT_USED = "driver failed programming external connectivity on endpoint"
NO_MANIFEST = "manifest for 127.0.0.1:5000/team/web:nope not found: manifest unknown"

# Beginning of the message, its kind, the container and the service that it is about.
Expected = tuple[tuple[str, str, str, str], ...]

UP_JSON: dict[str, Expected] = {
    "exit1": (),
    "exit0": (),
    "restartloop": (),
    "unhealthy": (("validating /srv/app/compose.yaml: services.a", "other", "", ""),),
    "depunhealthy": (("validating /srv/app/compose.yaml: services.a", "other", "", ""),),
    "portused": ((PORT_USED, "other", "bugsportused-a-1", ""),),
    "extnet": (("network bugs_missing declared as external", "other", "", ""),),
    "extvol": (('invalid mount config for type "volume"', "other", "bugsextvol-a-1", ""),),
    "envmiss": (("env file /srv/app/missing.env not found", "other", "", ""),),
    "badcmd": (("container bugsbadcmd-a-1 exited (127)", "other", "bugsbadcmd-a-1", ""),),
    "badentry": (("failed to create shim task: OCI runtime create", "other", "", ""),),
    "pullfail": ((NO_MANIFEST, "not-found", "", "a"),),
    "never": ((NO_IMAGE, "not-found", "bugsnever-a-1", ""),),
    "pullnever": ((NO_IMAGE, "not-found", "bugspullnever-a-1", ""),),
    "okup": (),
    "nobuild": (("No such image: 127.0.0.1:5000/team/zz", "not-found", "bugsnobuild-a-1", ""),),
    "dupname": (('services.a: container name "bugsdup" is already', "other", "", ""),),
    "unhealthy#2": (
        ("container bugsunhealthy-a-1 is unhealthy", "other", "bugsunhealthy-a-1", ""),
    ),
    "depunhealthy#2": (
        ("dependency failed to start: container", "other", "bugsdepunhealthy-a-1", ""),
    ),
    "depexit": (('service "a" didn\'t complete', "other", "bugsdepexit-a-1", "a"),),
    "exit4now": (("container bugsexit4now-a-1 exited (4)", "other", "bugsexit4now-a-1", ""),),
    "exit0now": (("container bugsexit0now-a-1 exited (0)", "other", "bugsexit0now-a-1", ""),),
    "exitlate": (),
    "extvol#2": (('external volume "bugs_missingv" not found', "other", "", ""),),
    "overlap": (("failed to create network bugsoverlap_nn: Error", "other", "", ""),),
}

UP_PLAIN: dict[str, Expected] = {
    "exit1": (),
    "exit0now": (("container p-a-1 exited (0)", "other", "p-a-1", ""),),
    "exit4now": (("container p-a-1 exited (4)", "other", "p-a-1", ""),),
    "restartloop": (),
    "unhealthy": (("container p-a-1 is unhealthy", "other", "p-a-1", ""),),
    "depunhealthy": (("dependency failed to start: container p-a-1", "other", "p-a-1", ""),),
    "depexit": (('service "a" didn\'t complete successfully: exit 4', "other", "p-a-1", "a"),),
    "depdone": (),
    "portused": ((PORT_USED, "other", "p-a-1", ""),),
    "extnet": (("network bugs_missing not found", "other", "", ""),),
    "extvol": (('invalid mount config for type "volume"', "other", "", ""),),
    "envmiss": (("env file /srv/app/missing.env not found", "other", "", ""),),
    "badcmd": (("container p-a-1 exited (127)", "other", "p-a-1", ""),),
    "badentry": (("failed to create shim task: OCI runtime create", "other", "", ""),),
    "pullfail": ((NO_MANIFEST, "not-found", "", "a"),),
    "pullmulti": (("pull access denied for 127.0.0.1:5901/multi/x", "auth", "", "a"),),
    "never": (("no such image: 127.0.0.1:5000/team/web:nope", "not-found", "", ""),),
    "okup": (),
    "waittimeout": (("application not healthy after 3s", "other", "", ""),),
    "badmount": (('invalid mount config for type "bind"', "other", "", ""),),
    "overlap": (("failed to create network p_m: Error", "other", "", ""),),
    "dupname": (('"services.b": container name "bugsdup" is already', "other", "", ""),),
    "orphan": (),
    "removeorphans": (),
    "recreate": (),
}

RECORDED_PULLS: list[tuple[Section, Parse, Mapping[str, object]]] = [
    *((s, parsed_json, PULL_JSON) for s in sections("pull_transcripts.txt").values()),
    *((s, parsed_plain, PULL_PLAIN) for s in sections("plain_transcripts.txt", "pull ").values()),
]
RECORDED_UPS = [
    *((s, parsed_json, UP_JSON) for s in sections("up_transcripts.txt", "up ").values()),
    *((s, parsed_plain, UP_PLAIN) for s in sections("plain_transcripts.txt", "up ").values()),
]


def named(recorded: list) -> list:  # type: ignore[type-arg]
    return [pytest.param(*row, id=f"{row[1].__name__}-{row[0].name}") for row in recorded]


def told(state: ServicePull, message: str) -> str:
    return f"{state.value} {classify(message).value}" if message else state.value


@pytest.mark.parametrize(("section", "parse", "expectations"), named(RECORDED_PULLS))
def test_each_recorded_pull_comes_out_as_expected(section, parse, expectations):
    assert section.name in expectations, "a recorded run without an expectation"
    states, general = expectations[section.name]

    result = fold_pull(parse(section.lines, tuple(states)), tuple(states))

    assert {name: told(*outcome) for name, outcome in result.services.items()} == states
    assert [classify(message) for message in result.general] == [kind for kind, _ in general]
    for message, (_, beginning) in zip(result.general, general, strict=True):
        assert message.startswith(beginning)


@pytest.mark.parametrize(("section", "parse", "expectations"), named(RECORDED_UPS))
def test_each_recorded_up_comes_out_as_expected(section, parse, expectations):
    assert section.name in expectations, "a recorded run without an expectation"

    errors = up_errors(parse(section.lines, ("a", "b")))

    expected = expectations[section.name]
    assert [(classify(e.message), e.container, e.service_hint) for e in errors] == [
        row[1:] for row in expected
    ]
    for error, (beginning, *_) in zip(errors, expected, strict=True):
        assert error.message.startswith(beginning)


@pytest.mark.parametrize(
    ("recorded", "expectations"),
    [
        (sections("pull_transcripts.txt"), PULL_JSON),
        (sections("plain_transcripts.txt", "pull "), PULL_PLAIN),
        (sections("up_transcripts.txt", "up "), UP_JSON),
        (sections("plain_transcripts.txt", "up "), UP_PLAIN),
    ],
)
def test_no_expectation_is_without_a_recording(recorded, expectations):
    assert set(expectations) == set(recorded)


@pytest.mark.parametrize(("section", "parse", "expectations"), named(RECORDED_PULLS))
def test_messages_are_the_recorded_words_and_nothing_else(section, parse, expectations):
    states, _ = expectations[section.name]
    result = fold_pull(parse(section.lines, tuple(states)), tuple(states))
    words = "\n".join(section.lines)

    for message in [*(m for _, m in result.services.values()), *result.general]:
        spelled = (
            message if parse is parsed_plain else json.dumps(message, ensure_ascii=False)[1:-1]
        )
        assert spelled in words
