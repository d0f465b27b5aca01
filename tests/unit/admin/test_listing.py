"""Lists of the API, without a gateway."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.admin.listing import Listing, QueryError, contains, is_exactly


@dataclass(frozen=True)
class Thing:
    name: str | None
    size: int


THINGS = [Thing("b", 2), Thing(None, 3), Thing("A", 1), Thing("a", 2)]
LISTING: Listing[Thing] = Listing(
    {"name": lambda thing: thing.name, "size": lambda thing: thing.size, "parts": lambda thing: []},
    {"name": is_exactly(lambda thing: thing.name), "q": contains(lambda thing: thing.name)},
    "size",
    ("name",),
    unsorted=frozenset(("parts",)),
    choices={"name": ("a", "b")},
)


def _names(**query: str) -> list[str | None]:
    page = LISTING.page(THINGS, LISTING.read(query))
    return [item["name"] for item in page["items"]]


def test_the_order_is_the_one_asked_for() -> None:
    assert _names() == ["A", "a", "b", None]
    assert _names(sort="name") == [None, "A", "a", "b"]
    assert _names(sort="-name") == ["b", "a", "A", None]


def test_a_search_knows_no_case_and_a_filter_is_exact() -> None:
    assert _names(q="A") == ["A", "a"]
    assert _names(name="a") == ["a"]
    assert _names(q="") == _names()


def test_pages_of_equal_items_agree_whatever_order_they_come_in() -> None:
    query = LISTING.read({"sort": "-size", "page_size": "2", "page": "2"})
    orders = [THINGS, THINGS[::-1]]
    pages = [LISTING.page(things, query)["items"] for things in orders]
    pages += [
        LISTING.joined([LISTING.page([each], query.whole) for each in things], query, [])["items"] for things in orders
    ]
    assert [[item["name"] for item in page] for page in pages] == [["a", "A"]] * 4


def test_pages_end() -> None:
    assert _names(page="2", page_size="3") == [None]
    assert _names(page="3", page_size="3") == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"color": "red"}, "no parameter 'color'"),
        ({"sort": "parts"}, "sorted by 'parts'"),
        ({"sort": "--size"}, "sorted by '-size'"),
        ({"page": "-1"}, "page must be"),
        ({"page": "²"}, "page must be"),
        ({"page": "1" * 10}, "page must be"),
        ({"page": "0" * 5000 + "1"}, "page must be"),
        ({"page_size": "1001"}, "from 1 to 1000"),
        ({"name": "c"}, "one of a, b"),
    ],
)
def test_what_makes_no_sense_is_said(query: dict[str, str], said: str) -> None:
    with pytest.raises(QueryError, match=said):
        LISTING.read(query)
