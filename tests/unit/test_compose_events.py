"""Lines of Compose to events, events to each service's outcome and to the errors of an up."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.compose_events import (
    ComposeEvent,
    PullResult,
    ServicePull,
    UpError,
    exited_cleanly,
    fold_pull,
    is_about_what_came_up,
    message_of_single_pull,
    missing_plugin,
    parse_json_line,
    parse_plain_line,
    up_errors,
)
from tests.transcripts import Parse, parsed_json, parsed_plain, sections


def outcome_of(
    lines: Sequence[str], services: Sequence[str], parse: Parse = parsed_json
) -> PullResult:
    return fold_pull(parse(lines, services), services)


class TestPull:
    """What fold_pull and message_of_single_pull make of a run."""

    def test_every_service_of_a_run_that_kept_going_has_its_own_words(self):
        result = outcome_of(sections("pull_transcripts.txt")["multi2ign"].lines, ("bad", "bad2"))

        assert result.services["bad"] == (
            ServicePull.FAILED,
            "manifest for 127.0.0.1:5901/munk/x:1 not found: manifest unknown: manifest unknown",
        )
        assert result.services["bad2"][1].startswith("toomanyrequests: You have reached")

    def test_two_steps_give_the_words_that_the_first_one_swallowed(self):
        first = outcome_of(sections("pull_transcripts.txt")["multi2ign"].lines, ("arm", "good"))
        asked_again = [
            name
            for name, (state, _) in first.services.items()
            if state not in (ServicePull.PULLED, ServicePull.SKIPPED)
        ]
        alone = parsed_json(
            [
                '{"id":"arm","text":"Pulling"}',
                '{"error":true,"message":"no matching manifest for linux/amd64 in the manifest '
                'list entries"}',
            ]
        )

        assert asked_again == ["arm"]
        assert message_of_single_pull(alone, "arm") == (
            "no matching manifest for linux/amd64 in the manifest list entries"
        )

    def test_a_service_that_says_nothing_is_unknown(self):
        assert outcome_of([], ("web",)).services == {"web": (ServicePull.UNKNOWN, "")}

    def test_an_error_without_words_is_unknown_so_that_it_is_asked_again(self):
        lines = ['{"id":"web","text":"Error"}']

        assert outcome_of(lines, ("web",)).services["web"] == (ServicePull.UNKNOWN, "")

    def test_a_layer_is_not_taken_for_a_service_of_the_same_name(self):
        lines = [
            '{"id":"cafe","text":"Pulling"}',
            '{"id":"cafe","parent_id":"web","text":"Pulled"}',
        ]

        assert outcome_of(lines, ("cafe",)).services["cafe"][0] is ServicePull.UNKNOWN

    def test_a_shared_image_is_as_good_as_the_service_that_pulls_it(self):
        lines = [
            '{"id":"b","text":"Skipped - Image is already being pulled by a"}',
            '{"id":"c","text":"Skipped - Image is already being pulled by b"}',
            '{"id":"a","status":"Interrupted"}',
        ]

        states = outcome_of(lines, ("a", "b", "c")).services
        assert {state for state, _ in states.values()} == {ServicePull.INTERRUPTED}

    def test_services_that_wait_for_each_other_are_not_good(self):
        lines = [
            '{"id":"a","text":"Skipped - Image is already being pulled by b"}',
            '{"id":"b","text":"Skipped - Image is already being pulled by a"}',
        ]

        states = outcome_of(lines, ("a", "b")).services
        assert {state for state, _ in states.values()} == {ServicePull.UNKNOWN}

    def test_a_service_that_waits_for_one_that_never_spoke_is_not_good(self):
        lines = ['{"id":"a","text":"Skipped - Image is already being pulled by b"}']

        assert outcome_of(lines, ("a",)).services["a"][0] is ServicePull.UNKNOWN

    def test_what_a_service_said_is_not_said_again_in_general(self):
        lines = [
            '{"id":"web","text":"Error","status":"denied"}',
            '{"error":true,"message":"Error response from daemon: denied"}',
            '{"error":true,"message":"no space left on device"}',
            '{"error":true,"message":"no space left on device"}',
        ]

        assert outcome_of(lines, ("web",)).general == ("no space left on device",)

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            (['{"id":"web","text":"Error","status":"denied"}'], "denied"),
            (['{"error":true,"message":"Error response from daemon: denied"}'], "denied"),
            (["unknown flag: --x", "Usage: y"], "unknown flag: --x\nUsage: y"),
            (['{"level":"warning","msg":"obsolete"}', '{"id":"web","text":"Pulling"}'], ""),
            (['{"level":"fatal","msg":"out of memory"}'], "out of memory"),
            (["WARNING: careful", '{"id":"web","text":"Pulled"}'], ""),
            ([], ""),
        ],
    )
    def test_a_service_pulled_alone_is_quoted_by_the_best_that_was_said(self, lines, said):
        assert message_of_single_pull(parsed_json(lines), "web") == said

    def test_events_may_come_from_an_iterator(self):
        events = parsed_json(['{"id":"web","text":"Error","status":"denied"}'])

        assert message_of_single_pull(iter(events), "web") == "denied"


class TestPlainForm:
    """Compose 2.26, whose messages may go on over several lines."""

    def test_a_message_of_several_lines_survives_verbatim(self):
        names = ("multi", "bldimg")
        result = outcome_of(
            sections("plain_transcripts.txt", "pull ")["manyign"].lines, names, parsed_plain
        )

        assert result.services["multi"][1] == (
            "pull access denied for 127.0.0.1:5901/multi/x, repository does not exist or may "
            "require 'docker login': denied: line one\nline \"two\" ü"
        )

    def test_both_forms_give_the_same_words(self):
        plain = sections("plain_transcripts.txt", "pull ")["multi"]
        as_json = sections("pull_transcripts.txt")["fmulti"]

        assert message_of_single_pull(parsed_plain(plain.lines, ("s",)), "s") == (
            message_of_single_pull(parsed_json(as_json.lines), "s")
        )

    def test_blank_and_indented_lines_within_a_message_are_kept(self):
        section = sections("plain_transcripts.txt", "pull ")["spoof"]

        message = message_of_single_pull(parsed_plain(section.lines, ("s",)), "s")

        assert "denied: line one\n web Pulled \n\n  indented" in message

    def test_a_registry_cannot_talk_a_failed_service_good(self):
        lines = [" web Error denied: first line", " web Pulled ", "last line"]

        state, message = outcome_of(lines, ("web",), parsed_plain).services["web"]
        assert (state, message) == (ServicePull.FAILED, "denied: first line")

    def test_an_interrupted_service_does_not_swallow_the_cause(self):
        lines = [" web Error context canceled", "no space left on device"]

        result = outcome_of(lines, ("web",), parsed_plain)
        assert result.services["web"] == (ServicePull.INTERRUPTED, "")
        assert result.general == ("no space left on device",)

    def test_a_closing_warning_is_not_part_of_the_error_before_it(self):
        result = outcome_of(
            sections("plain_transcripts.txt", "pull ")["manyign"].lines, ("bad2",), parsed_plain
        )

        assert result.services["bad2"][1].endswith("authenticating and upgrading.")

    def test_a_warning_record_does_not_swallow_the_error_after_it(self):
        lines = ['time="2026-12-01T03:27:58Z" level=warning msg="not set"', "empty compose file"]

        assert outcome_of(lines, (), parsed_plain).general == ("empty compose file",)

    @pytest.mark.parametrize(
        ("line", "event"),
        [
            (" web Pulling ", ComposeEvent(id="web", text="Pulling")),
            (" web Pulled \n", ComposeEvent(id="web", text="Pulled")),
            (" web Skipped ", ComposeEvent(id="web", text="Skipped")),
            (
                " web Skipped - Image is already being pulled by tag ",
                ComposeEvent(id="web", text="Skipped - Image is already being pulled by tag"),
            ),
            (
                ' web Error Head "http://h/v2/": no basic auth credentials',
                ComposeEvent(
                    id="web", text="Error", status='Head "http://h/v2/": no basic auth credentials'
                ),
            ),
            (" 1d6c41f2527d Waiting ", ComposeEvent("1d6c41f2527d", text="Waiting")),
            (
                " 1d6c41f2527d Downloading [=>  ]  36.45kB/1.064MB",
                ComposeEvent("1d6c41f2527d", text="Downloading", status="[=>  ]  36.45kB/1.064MB"),
            ),
            (" Container p-web-1  Started", ComposeEvent("Container p-web-1", status="Started")),
            (' Volume "p_v"  Created', ComposeEvent('Volume "p_v"', status="Created")),
            (
                'time="2026-12-01T03:27:58Z" level=warning msg="The \\"TAG\\" is not set."',
                ComposeEvent(log='The "TAG" is not set.', level="warning"),
            ),
            (
                'time="2026-12-01T03:27:58Z" level=error msg=short error="odd"',
                ComposeEvent(log='short error="odd"', level="error"),
            ),
            ("WARNING: Error loading", ComposeEvent(log="WARNING: Error loading")),
            (
                "Error response from daemon: denied",
                ComposeEvent(error="Error response from daemon: denied"),
            ),
            ("empty compose file", ComposeEvent(error="empty compose file", continues=True)),
            (" other Pulled ", ComposeEvent(log=" other Pulled ", continues=True)),
            ("", ComposeEvent(continues=True)),
        ],
    )
    def test_each_sort_of_line(self, line, event):
        assert parse_plain_line(line, {"web"}) == event


class TestJsonForm:
    """The lines of `--progress json`."""

    @pytest.mark.parametrize(
        ("line", "event"),
        [
            (
                '{"id":"1d6c","parent_id":"s","text":"Extracting","status":"[=> ]  1kB/3kB",'
                '"current":1024,"total":3072,"percent":33}',
                ComposeEvent("1d6c", "s", "Extracting", "[=> ]  1kB/3kB", 1024, 3072, 33),
            ),
            ('{"id":"s","status":"Interrupted"}\n', ComposeEvent("s", status="Interrupted")),
            ('{"error":true,"message":"oh"}', ComposeEvent(error="oh")),
            ('{"level":"warning","msg":"hm","time":"x"}', ComposeEvent(log="hm", level="warning")),
            ('{"tail":true,"text":"two\\nlines"}', ComposeEvent(log="two\nlines")),
            ('{"id":"s","text":"Pulled","new-field":[1]}', ComposeEvent("s", text="Pulled")),
        ],
    )
    def test_each_sort_of_record(self, line, event):
        assert parse_json_line(line) == event

    @pytest.mark.parametrize("line", ["", "  ", "\n", "\r\n"])
    def test_a_blank_line_is_no_event(self, line):
        assert parse_json_line(line) is None

    @pytest.mark.parametrize(
        "line",
        [
            "WARNING: Error parsing config file (/x): illegal base64 data at input byte 0",
            "{",
            '{"id":',
            "null",
            "[]",
            '"Pulled"',
            "{}",
            '{"other":1}',
            '{"id":7,"text":"Pulled"}',
            '{"id":null,"text":"Pulled"}',
            '{"id":"s","text":["Pulled"]}',
            '{"id":"s","text":"Pulled","percent":"9"}',
            '{"id":"s","text":"Pulled","percent":true}',
            '{"id":"s","text":"Pulled","current":1.5}',
            '{"error":true}',
            '{"error":true,"message":{"a":1}}',
            '{"level":"warning","msg":3}',
            "[" * 100_000,
            '{"id":' * 100_000,
            '{"id":"s","total":' + "9" * 5000 + "}",
        ],
        ids=lambda line: line[:40],
    )
    def test_a_line_of_no_known_shape_is_kept_as_a_log_line(self, line):
        assert parse_json_line(line) == ComposeEvent(log=line)


class TestUp:
    """What up_errors and exited_cleanly make of a run."""

    def test_an_error_said_twice_is_told_once_with_all_that_is_known(self):
        events = [
            ComposeEvent(error="Error response from daemon: No such image: x"),
            ComposeEvent("Container p-a-1", status="Error response from daemon: No such image: x"),
        ]

        assert up_errors(events) == (UpError("No such image: x", container="p-a-1"),)

    def test_an_error_without_words_is_told_where_no_message_names_its_container(self):
        events = [
            ComposeEvent("Container p-a-1", status="Error"),
            ComposeEvent("Container p-a-10", status="Error"),
            ComposeEvent(error="dependency failed to start: container p-a-10 is unhealthy"),
        ]

        assert [error.container for error in up_errors(events)] == ["p-a-10", "p-a-1"]

    def test_what_was_only_cancelled_is_no_error(self):
        events = [
            ComposeEvent("Container p-a-1", status="context canceled"),
            ComposeEvent("Container p-b-1", status="Skipped: optional dependency failed"),
            ComposeEvent("Network p_x", status="Resource is still in use"),
        ]

        assert up_errors(events) == ()

    @pytest.mark.parametrize(
        ("message", "container"),
        [
            ("container p-a-1 exited (0)", "p-a-1"),
            ("container p-a-1 exited (0)\n", "p-a-1"),
            ("container p-a-1 exited (1)", None),
            ("container p-a-1 exited (10)", None),
            ("container p-a-1 is unhealthy", None),
            ("dependency failed: container p-a-1 exited (0)", None),
        ],
    )
    def test_a_one_shot_that_ended_well_is_known(self, message, container):
        assert exited_cleanly(message) == container

    @pytest.mark.parametrize(
        ("message", "came_up"),
        [
            ("container p-a-1 exited (1)", True),
            ("container p-a-1 exited (137)\n", True),
            ("container p-a-1 is unhealthy", True),
            ("dependency failed to start: container p-a-1 is unhealthy", False),
            ("driver failed programming external connectivity on endpoint p-a-1", False),
            ("application not healthy after 20s", False),
        ],
    )
    def test_what_was_started_and_then_failed_is_told_from_what_never_was(self, message, came_up):
        assert is_about_what_came_up(message) is came_up


@pytest.mark.parametrize(
    "stderr",
    [
        "unknown shorthand flag: 'p' in -p\nSee 'docker --help'.\n\nUsage:  docker",
        "unknown shorthand flag: 'f' in -f",
        "unknown flag: --short\n\nUsage:  docker [OPTIONS] COMMAND [ARG...]",
        "unknown flag: --ansi\nSee 'docker --help'.",
        "docker: 'compose' is not a docker command.\nSee 'docker --help'",
        "docker: unknown command: docker compose\n\nRun 'docker --help' for more information",
    ],
)
def test_a_docker_without_the_plugin_is_recognised(stderr):
    assert missing_plugin(stderr)


@pytest.mark.parametrize(
    "stderr",
    [
        "",
        'unsupported --progress value "json"',
        "unknown flag: --progress\nSee 'docker compose --help'.",
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
        "docker: unknown command: docker composer",
    ],
)
def test_other_troubles_are_not_taken_for_a_missing_plugin(stderr):
    assert not missing_plugin(stderr)


NAMES = st.sampled_from(["web", "db", "a-b_c.d", "Container", "cafe12345678"])
WORDS = st.sampled_from(
    [
        "Pulling",
        "Pulled",
        "Error",
        "Warning",
        "Skipped",
        "Interrupted",
        "context canceled",
        "Skipped - Image is already being pulled by web",
        "Skipped - Image is already being pulled by db",
        "Error response from daemon: ",
        "",
        " ",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("id"), inner),
    max_leaves=8,
)
FIELDS = ("id", "parent_id", "text", "status", "error", "message", "msg", "tail", "total")
RECORDS = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON | WORDS | NAMES))
EVENTS = st.lists(
    st.builds(
        ComposeEvent,
        id=NAMES | st.just(""),
        parent=st.sampled_from(["", "", "web"]),
        text=WORDS,
        status=WORDS | st.text(),
        error=WORDS | st.just(""),
        log=st.text(),
        continues=st.booleans(),
    )
)


@given(st.text() | JSON.map(json.dumps) | RECORDS.map(json.dumps))
def test_no_text_makes_the_json_reader_raise_or_lose_a_line(line):
    event = parse_json_line(line)

    assert (event is None) == (not line.strip())
    assert event is None or event.id or event.error or event.log


@given(st.text() | st.tuples(NAMES, WORDS, st.text()).map(lambda t: " " + " ".join(t)))
def test_no_text_makes_the_plain_reader_raise_or_lose_a_line(line):
    event = parse_plain_line(line, {"web", "db"})

    assert event.id or event.error or event.log or not line.rstrip("\r\n")


@given(EVENTS, st.lists(NAMES))
def test_folding_loses_no_service_and_a_failure_always_has_words(events, services):
    result = fold_pull(events, services)

    assert set(result.services) == set(services)
    for state, message in result.services.values():
        assert bool(message) == (state is ServicePull.FAILED)


@given(EVENTS)
def test_a_service_is_good_only_if_its_image_was_pulled_or_skipped(events):
    good = {ServicePull.PULLED, ServicePull.SKIPPED}
    spoke = {e.id for e in events if e.text in ("Pulled", "Skipped") and not e.parent}

    for state, _ in fold_pull(events, ("web", "db")).services.values():
        assert state not in good or spoke


@given(EVENTS)
def test_every_error_of_an_up_has_words_and_comes_once(events):
    messages = [error.message for error in up_errors(events)]

    assert all(messages)
    assert len(set(messages)) == len(messages)
