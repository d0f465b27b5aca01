"""The status page in a browser, asking a stand-in for the admin listener."""

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from tests.support.admin_api import AdminApi, a_link, a_session, serving
from tests.support.browser import DESKTOP, SMALL_PHONE, Browser

PAGE = files("gateway.admin").joinpath("page.html").read_text()
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e&lt;b>"
ROWS = "[...document.querySelectorAll('#list tbody tr')].map(row => row.innerText).join('\\n')"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# WCAG's contrast of every visible text with what is painted behind it; those below the least one.
PALE = """(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => linear(r / 255) * .2126 + linear(g / 255) * .7152 + linear(b / 255) * .0722;
  const behind = (element) => {
    const color = numbers(getComputedStyle(element).backgroundColor);
    return color.length === 3 ? color : element.parentElement ? behind(element.parentElement) : [255, 255, 255];
  };
  const contrast = (element) => {
    const pair = [numbers(getComputedStyle(element).color), behind(element)].map(light).sort((a, b) => b - a);
    return (pair[0] + .05) / (pair[1] + .05);
  };
  const isText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    && element.checkVisibility() && !element.closest('.unseen, script, noscript') && !element.disabled;
  return [...document.querySelectorAll('body *')].filter((element) => isText(element) && contrast(element) < 4.5)
    .map((element) => `${contrast(element).toFixed(2)} ${element.outerHTML.slice(0, 100)}`);
})()"""


@pytest.fixture
def api() -> Iterator[AdminApi]:
    with serving(AdminApi()) as api:
        api.overview["connections"] = 3
        api.lists["sessions"] = [
            a_session("session-a", login="billing", virtual_host="orders", messages_published=12_345, tls=True),
            a_session("session-b", login="audit", messages_delivered=7, holds=["client-write"], subscriptions=1),
            a_session("session-c", login=None, virtual_host=None, version=None, state="connecting"),
        ]
        api.lists["links"] = [a_link("stomp-gateway publish / billing", blocked=True)]
        api.lists["destinations"] = [
            {"virtual_host": "/", "destination": "/queue/parcels", "kind": "queue", "published": 3,
             "published_bytes": 4096, "delivered": 2, "delivered_bytes": 10, "subscriptions": 1},
        ]  # fmt: skip
        api.lists["virtual-hosts"] = [
            {"name": name, "aliases": ["localhost"], "upstream": ["amqp://mq:5672"], "amqp_vhost": name, "sessions": 1,
             "subscriptions": 2, "links": 3, "published": 4, "delivered": 5, "errors": {"no-route": 3}, "holds": {},
             "up": True, "brokers": [{"broker": "mq:5672", "up": True, "reason": None, "links": 3},
                                     {"broker": "mq-2:5672", "up": name == "/", "reason": "refused", "links": 0}],
             "limits": None}
            for name in ("/", "orders")
        ]  # fmt: skip
        yield api


def text(browser: Browser, element: str) -> str:
    return str(browser.value(f"document.getElementById('{element}').innerText"))


def shows(browser: Browser, *parts: str) -> None:
    for part in parts:
        browser.until(f"document.body.innerText.replaceAll('\\u00a0', ' ').includes({part!r})")


# ---- the file ----


def test_the_page_needs_nothing_from_elsewhere() -> None:
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", PAGE)
    assert not re.findall(r"@import|url\(", PAGE)
    assert set(re.findall(r"https?://[^ '\"]+", PAGE)) == {"http://www.w3.org/2000/svg"}
    assert len(PAGE.splitlines()) < 900


def test_data_cannot_become_markup() -> None:
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function", PAGE
    )
    assert "require-trusted-types-for 'script'" in PAGE


# ---- what it shows ----


def test_sessions_links_and_all_the_rest_are_shown(browser: Browser, api: AdminApi) -> None:
    api.overview |= {"holds": {"client-write": 1}, "errors": {"no-route": 12}}
    api.overview["confirm_latency_seconds"] = {"p50": 0.00123, "p99": 0.0083}
    browser.open(api.url, DESKTOP)
    shows(browser, "billing", "12.3k", "audit", "client-write", "no-route", "8.3 ms", "orders-1", "Ready", "Live")
    shows(browser, "the client takes its messages too slowly", "(not logged in)")
    for view, parts in {
        "destinations": ("/queue/parcels", "4 KiB"),
        "virtual-hosts": ("mq:5672", "mq-2:5672", "down", "2 subs"),
        "links": ("stomp-gateway publish / billing", "blocked", "RabbitMQ 3.10.8"),
    }.items():
        browser.value(f"document.querySelector('[data-view={view}]').click()")
        shows(browser, *parts)
    assert not browser.complaints
    assert all(url.startswith((api.url, "data:", "about:")) for url in browser.requested)


def test_it_says_whose_sessions_are_missing(browser: Browser, api: AdminApi) -> None:
    api.missing_workers = [1, 3]
    browser.open(api.url, DESKTOP)
    shows(browser, "1 to 3 of 3 · without those of worker 1, 3, which does not answer")
    api.missing_workers = []
    browser.until("document.getElementById('range').innerText === '1 to 3 of 3'")


def test_rates_are_what_came_between_two_looks(browser: Browser, api: AdminApi) -> None:
    browser.open(api.url, DESKTOP)
    shows(browser, "billing")
    api.overview["totals"]["messages_published"] += 4000
    api.lists["sessions"][0]["messages_published"] += 400
    browser.until("parseFloat(document.querySelector('.figure.in .value').innerText.replace(',', '')) > 100")
    browser.until("/[1-9][0-9.]*\\/s/.test(document.querySelector('#list tbody tr').innerText)")
    browser.until("document.querySelector('.in .line').getAttribute('d').startsWith('M')")


def test_refused_connections_are_told_where_there_are_some(browser: Browser, api: AdminApi) -> None:
    browser.open(api.url, DESKTOP)
    shows(browser, "3 connections · 0 sub")
    api.overview["connections_refused"] = {"network": 1200, "locked-out": 34}
    shows(browser, "3 connections · 1,234 refused · 0 sub")


def test_hostile_names_stay_text(browser: Browser, api: AdminApi) -> None:
    api.lists["sessions"][0] |= {
        "id": EVIL,
        "login": EVIL,
        "peer": EVIL,
        "virtual_host": EVIL,
        "holds": [EVIL],
        "awaited_queues": [EVIL],
    }
    api.overview |= {"ready": False, "reasons": [EVIL], "errors": {EVIL: 1}, "holds": {EVIL: 1}, "node": EVIL}
    api.lists["destinations"][0] |= {"destination": EVIL}
    send = {"destination": EVIL, "kind": "queue", "messages": 1, "bytes": 1}
    api.details[EVIL] = {"sends": [send]}
    browser.open(api.url, DESKTOP)
    browser.until(f"{ROWS}.includes('onerror')")
    browser.value("document.querySelector('#list .open').click()")
    browser.until("document.getElementById('sends').innerText.includes('onerror')")
    browser.value("document.getElementById('leave').click()")
    browser.value("document.querySelector('[data-view=destinations]').click()")
    browser.until(f"{ROWS}.includes('onerror') && !{ROWS}.includes('billing')")
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert str(browser.value("document.title")).startswith("Not ready: <img")
    assert not browser.complaints


def test_markup_that_slips_in_is_refused_by_the_browser(browser: Browser, api: AdminApi) -> None:
    browser.open(api.url, DESKTOP)
    refusal = browser.value("(() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e.name; } })()")
    assert refusal == "TypeError"


# ---- search, order, pages ----


def test_search_filter_order_and_pages(browser: Browser, api: AdminApi) -> None:
    api.lists["sessions"] += [a_session(f"session-{n}", login=f"device-{n}") for n in range(100, 160)]
    browser.open(api.url, DESKTOP)
    browser.until("document.getElementById('range').innerText === '1 to 25 of 63'")
    browser.value("document.getElementById('next').click()")
    browser.until("document.getElementById('range').innerText === '26 to 50 of 63'")
    browser.value("document.querySelector('.sort').click()")
    browser.until("document.querySelector('[aria-sort=ascending]')?.innerText.startsWith('Client')")
    browser.until("document.activeElement.className === 'sort'")
    search = "const s = document.getElementById('search'); s.value = '{}'; s.dispatchEvent(new Event('input'))"
    browser.value(f"{{{search.format('device-15')}}}")
    browser.until("document.querySelectorAll('#list tbody tr').length === 10")
    browser.value(f"{{{search.format('nobody')}}}")
    browser.until("document.getElementById('empty').innerText === 'Nothing matches.'")
    browser.value(f"{{{search.format('')}}}")
    choose = "const s = document.getElementById('filter-{}'); s.value = '{}'; s.dispatchEvent(new Event('change'))"
    browser.until("document.querySelectorAll('#filter-virtual_host option').length === 3")
    browser.value(f"{{{choose.format('virtual_host', 'orders')}}}")
    browser.until("document.getElementById('range').innerText === '1 to 1 of 1'")
    browser.value(f"{{{choose.format('virtual_host', '')}; }}")
    browser.value(f"{{{choose.format('hold', 'client-write')}}}")
    browser.until(f"{ROWS}.includes('audit') && !{ROWS}.includes('billing')")


def test_focus_survives_new_figures(browser: Browser, api: AdminApi) -> None:
    browser.open(api.url, DESKTOP)
    shows(browser, "billing")
    browser.value("document.querySelectorAll('#list .open')[1].focus()")
    asked = len(api.asked)
    api.lists["sessions"][1]["messages_published"] = 99_999
    browser.until(f"{ROWS}.startsWith('audit')")
    assert len(api.asked) > asked
    assert browser.value("document.activeElement.innerText") == "audit"


# ---- one session ----


def test_a_session_is_closed_after_a_question(browser: Browser, api: AdminApi) -> None:
    browser.open(f"{api.url}#sessions/session-b", DESKTOP)
    shows(browser, "audit in /", "client-write (the client takes its messages too slowly)")
    browser.value("document.getElementById('closing').requestSubmit()")
    assert api.closed == []
    browser.value("document.getElementById('ask-close').click()")
    assert browser.value("document.activeElement.id") == "reason"
    browser.value("document.getElementById('reason').value = 'at 18:00 & later'")
    browser.value("document.getElementById('close-now').click()")
    shows(browser, "This session has ended.")
    assert api.closed == [("session-b", "at 18:00 & later")]
    browser.value("document.getElementById('leave').click()")
    browser.until("!document.getElementById('detail').open && location.hash === '#sessions'")
    browser.until(f"{ROWS}.includes('billing') && !{ROWS}.includes('audit')")


def test_a_refusal_to_close_is_shown(browser: Browser, api: AdminApi) -> None:
    api.may_close = False
    browser.open(f"{api.url}#sessions/session-b", DESKTOP)
    shows(browser, "audit in /")
    browser.value("document.getElementById('ask-close').click()")
    browser.value("document.getElementById('close-now').click()")
    shows(browser, "The session was not closed: Configure users for the admin listener")


# ---- trouble ----


def test_it_says_why_the_gateway_is_not_ready(browser: Browser, api: AdminApi) -> None:
    api.overview |= {"ready": False, "reasons": ["no broker can be reached"]}
    browser.open(api.url, DESKTOP)
    shows(browser, "Not ready", "no broker can be reached")


def test_it_names_the_virtual_hosts_without_a_broker(browser: Browser, api: AdminApi) -> None:
    api.overview["virtual_hosts_down"] = ["orders"]
    browser.open(api.url, DESKTOP)
    shows(browser, "No broker answers", "Virtual host orders")
    assert text(browser, "ready") == "Ready"


def test_it_says_that_the_gateway_does_not_answer_and_recovers(browser: Browser, api: AdminApi) -> None:
    browser.open(api.url, DESKTOP)
    shows(browser, "billing")
    api.broken = "A fault of the gateway"
    shows(browser, "The gateway has not answered since", "A fault of the gateway")
    shows(browser, "No answer", "This page shows the state at")
    browser.until("getComputedStyle(document.getElementById('main')).opacity === '0.5'")
    shows(browser, "billing")
    api.broken = None
    browser.until("document.getElementById('lost').hidden && document.getElementById('pulse').innerText === 'Live'")


def test_it_says_that_nobody_is_there_any_more(browser: Browser) -> None:
    with serving(AdminApi()) as api:
        browser.open(api.url, DESKTOP)
        browser.until("document.getElementById('empty').innerText === 'No client is connected.'")
    browser.until("document.getElementById('lost').innerText.includes('no connection')")


# ---- looks ----


@pytest.mark.parametrize(
    ("width", "dark"), [(SMALL_PHONE, False), (SMALL_PHONE, True), (800, True), (DESKTOP, False), (2200, True)]
)
def test_it_fits_and_can_be_read(browser: Browser, api: AdminApi, width: int, dark: bool) -> None:
    api.overview |= {"ready": False, "reasons": ["because"], "holds": {"client-write": 1}, "errors": {"no-route": 1}}
    api.lists["sessions"][0] |= {"login": "x" * 200, "peer": "y" * 200}
    api.details["session-b"] = {
        "sends": [{"destination": "/queue/" + "z" * 200, "kind": "queue", "messages": 1, "bytes": 1}]
    }
    browser.open(api.url, width, dark=dark)
    shows(browser, "audit", "because", "no-route")
    assert browser.value(OVERFLOW) == 0
    assert browser.value(PALE) == []
    ground = str(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert (max(map(int, re.findall(r"\d+", ground))) < 64) == dark
    browser.value("location.hash = 'sessions/session-b'")
    shows(browser, "Sends to", "audit in /")
    assert browser.value(OVERFLOW) == 0
    assert browser.value("(d => d.scrollWidth - d.clientWidth)(document.getElementById('detail'))") == 0
    assert browser.value(PALE) == []
