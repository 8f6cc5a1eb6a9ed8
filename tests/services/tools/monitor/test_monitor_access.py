"""Who may look, and how many services' metrics become one page."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from seedbed.services.tools.monitor.access import Access, AccessVerdict, Request, is_local_host, without_token
from seedbed.services.tools.monitor.exposition import MetricsSource, render

TOKEN = "correct-horse-battery"


def ask(rules, *, query="", host="127.0.0.1:8080", cookie="", authorization=""):
    return rules.judge(Request(path="/", query=query, host=host, cookie=cookie, authorization=authorization))


@pytest.fixture
def guarded():
    return Access(token=TOKEN, is_local=False, port=8080)


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1:1", "127.0.0.1", "[::1]:8080", "[::1]", "LOCALHOST:80", "127.9.9.9"],
)
def test_loopback_names_are_local(host):
    """With any port: a tunnel may change it."""
    assert is_local_host(host)
    assert ask(Access(token="", is_local=True, port=8080), host=host) is AccessVerdict.ADMIT


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:8080",
     "127.0.0.1:8080@evil.example", "127.0.0.1:x", "0.0.0.0:8080", "localhost:80:80"],
)  # fmt: skip
def test_a_name_that_an_attacker_may_point_at_us_is_refused(host):
    """DNS rebinding: the browser comes to loopback under a foreign name, even with the token."""
    for token in ("", TOKEN):
        rules = Access(token=token, is_local=True, port=8080)
        assert ask(rules, host=host, query=f"token={TOKEN}") is AccessVerdict.WRONG_HOST


def test_a_program_with_the_token_may_call_a_local_monitor_by_any_name():
    """As Prometheus does in the next container; a page that was rebound does not know the token."""
    rules = Access(token=TOKEN, is_local=True, port=8080)
    assert ask(rules, host="monitor:8080", authorization=f"Bearer {TOKEN}") is AccessVerdict.ADMIT
    assert ask(rules, host="monitor:8080", authorization=f"Bearer {TOKEN}x") is AccessVerdict.WRONG_HOST
    for authorization in ("Bearer ", "Bearer"):
        anyone = Access(token="", is_local=True, port=8080)
        assert ask(anyone, host="monitor:8080", authorization=authorization) is AccessVerdict.WRONG_HOST


def test_the_token_opens_the_door_in_three_ways(guarded):
    """Once in the address, then as a cookie; as a bearer token for programs."""
    assert ask(guarded, query=f"a=b&token={TOKEN}", host="example.org") is AccessVerdict.SIGN_IN
    cookie = guarded.set_cookie().partition(";")[0]
    assert ask(guarded, cookie=f"other=1; {cookie}") is AccessVerdict.ADMIT
    assert ask(guarded, authorization=f"Bearer {TOKEN}") is AccessVerdict.ADMIT


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"query": "token="},
        {"query": "token=correct-horse-batter"},
        {"query": "token=%ff%fe"},
        {"query": f"token=x&token={TOKEN}x"},
        {"cookie": f"seedbed_monitor_8080={TOKEN}"},
        {"cookie": "seedbed_monitor_8080="},
        {"cookie": "\x00;=;;"},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer \udcff"},
    ],
)
def test_anything_else_is_refused(guarded, shown):
    """Without an error."""
    assert ask(guarded, **shown) is AccessVerdict.NO_TOKEN


def test_a_wrong_token_is_refused_even_with_the_cookie(guarded):
    """Who gives one means it."""
    cookie = guarded.set_cookie().partition(";")[0]
    assert ask(guarded, query="token=wrong", cookie=cookie) is AccessVerdict.NO_TOKEN


def test_the_cookie_is_hidden_from_scripts_and_other_sites_and_is_not_the_token(guarded):
    """Browsers send cookies to every port of a host, so it must not be the secret itself."""
    header = guarded.set_cookie()
    assert "HttpOnly" in header
    assert "SameSite=Strict" in header
    assert TOKEN not in header


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/", f"token={TOKEN}", "/"),
        ("/api/runs", f"a=1&token={TOKEN}&b=&c=%26", "/api/runs?a=1&b=&c=%26"),
        ("//evil.example/", f"token={TOKEN}", "/evil.example/"),
        ("/\\evil.example", f"token={TOKEN}", "/evil.example"),
        ("/a\r\nb", f"token={TOKEN}", "/a%0D%0Ab"),
    ],
)
def test_the_way_on_has_no_token_and_stays_here(path, query, expected):
    """Neither the history nor another site gets the secret."""
    assert without_token(path, query) == expected


def families_of(registry):
    return tuple(text_string_to_metric_families(generate_latest(registry).decode()))


def page_of(steps):
    registry = CollectorRegistry()
    Counter("seedbed_steps", "Steps.", registry=registry).inc(steps)
    Gauge("seedbed_service_info", "One.", ("service", "odd"), registry=registry).labels("actor", "x").set(1)
    Histogram("seedbed_tick_seconds", "Ticks.", buckets=(1, 2), registry=registry).observe(1.5)
    return families_of(registry)


def labels(name):
    return {"run": "r", "service": "actor", "name": name, "incarnation": "ab"}


def read_back(sources):
    text = render(sources).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return text, {(sample.name, sample.labels.get("name"), sample.labels.get("le")): sample for sample in samples}


def test_every_services_samples_gain_its_labels():
    """One family for all of them, typed and described once, histograms whole."""
    text, samples = read_back(
        [
            MetricsSource(labels=labels("actor-0"), families=page_of(3)),
            MetricsSource(labels=labels("actor-1"), families=page_of(4)),
        ]
    )
    assert text.count("# TYPE seedbed_steps_total counter") == 1
    assert samples["seedbed_steps_total", "actor-0", None].value == 3
    assert samples["seedbed_steps_total", "actor-1", None].value == 4
    assert samples["seedbed_steps_total", "actor-1", None].labels == labels("actor-1")
    assert samples["seedbed_tick_seconds_bucket", "actor-1", "2.0"].value == 1


def test_a_label_that_is_there_already_is_kept_under_another_name():
    """As Prometheus does it; one that says the same is not doubled."""
    _, samples = read_back([MetricsSource(labels={**labels("a"), "odd": "y"}, families=page_of(1))])
    assert samples["seedbed_service_info", "a", None].labels == {**labels("a"), "odd": "y", "exported_odd": "x"}


def test_families_that_contradict_each_other_are_not_mixed():
    """The first type stands; the page stays readable."""
    registry = CollectorRegistry()
    Gauge("seedbed_tick_seconds", "Not a histogram.", registry=registry).set(1)
    _, samples = read_back(
        [
            MetricsSource(labels=labels("a"), families=page_of(1)),
            MetricsSource(labels=labels("b"), families=families_of(registry)),
        ]
    )
    assert ("seedbed_tick_seconds", "b", None) not in samples
    assert ("seedbed_tick_seconds_count", "a", None) in samples
