"""Lists of the API: filters, order and pages, asked for in a URL's query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from gateway.errors import GatewayError

MAX_PAGE_SIZE: Final = 1000

_PAGE_SIZE: Final = 100
_PAGING: Final = frozenset(("sort", "page", "page_size"))
_DIGITS: Final = 9

ItemT = TypeVar("ItemT")
Field = Callable[[ItemT], Any]
Filter = Callable[[ItemT, str], bool]


class QueryError(GatewayError):
    """A query that cannot be answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """What was asked for: one page of the items that pass all filters, sorted."""

    filters: Mapping[str, str]
    sort: str
    descending: bool
    page: int
    page_size: int

    @property
    def whole(self) -> Query:
        """The same with all pages up to this one in one."""
        return replace(self, page=1, page_size=self.page * self.page_size)

    @property
    def count(self) -> Query:
        """The same without items: only their number is asked for."""
        return replace(self, page=1, page_size=0)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """One list of the API. Its items are sorted by ``default_sort`` unless the query names another field.

    The fields ``identity`` tell items apart, and decide the order of those that are equal otherwise: pages that are
    asked for one after another, and several workers, must agree on it. ``unsorted`` are names of fields that have no
    order, ``choices`` the values of filters that have only some.
    """

    fields: Mapping[str, Field[ItemT]]
    filters: Mapping[str, Filter[ItemT]]
    default_sort: str
    identity: tuple[str, ...]
    unsorted: frozenset[str] = frozenset()
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)

    def read(self, query: Mapping[str, str]) -> Query:
        """Read the query of a URL. Raises `QueryError` for an unknown name, and for a value that makes no sense."""
        check_parameters(query, *self.filters, *_PAGING)
        sort = query.get("sort") or self.default_sort
        key = sort.removeprefix("-")
        sortable = [name for name in self.fields if name not in self.unsorted]
        if key not in sortable:
            raise QueryError(f"Nothing can be sorted by {_quoted(key)}; known are {', '.join(sortable)}.")
        filters = {name: query[name] for name in self.filters if query.get(name)}
        page, size = number(query, "page", 1, None), number(query, "page_size", _PAGE_SIZE, MAX_PAGE_SIZE)
        for name, values in self.choices.items():
            if name in filters and filters[name] not in values:
                raise QueryError(f"{name} is one of {', '.join(values)}.")
        return Query(filters, key, sort.startswith("-"), page, size)

    def page(self, items: Iterable[ItemT], query: Query) -> dict[str, Any]:
        """One page. Only its own items are rendered."""
        found = list(items)
        for name, wanted in query.filters.items():
            fits = self.filters[name]
            found = [item for item in found if fits(item, wanted)]
        keys = [self.fields[name] for name in (query.sort, *self.identity)]
        return _page(found, keys, query, self.rendered) | {"total": len(found)}

    def joined(
        self, pages: Iterable[Mapping[str, Any]], query: Query, missing_workers: Sequence[int]
    ) -> dict[str, Any]:
        """One page, from the answers of several to ``query.whole``, which have passed its filters.

        It names the workers whose items are missing.
        """
        every = list(pages)
        rows = [row for page in every for row in page["items"]]
        keys = [itemgetter(name) for name in (query.sort, *self.identity)]
        total = sum(page["total"] for page in every)
        return _page(rows, keys, query, dict) | {"total": total, "missing_workers": missing_workers}

    def rendered(self, item: ItemT) -> dict[str, Any]:
        """The fields of one item."""
        return {name: value_of(item) for name, value_of in self.fields.items()}


def _page(
    items: list[ItemT], keys: Sequence[Field[ItemT]], query: Query, render: Callable[[ItemT], dict[str, Any]]
) -> dict[str, Any]:
    """The page of a query without its total. Items that are equal by the first key are in the order of the others."""
    items.sort(key=lambda item: [_ordered(key(item)) for key in keys], reverse=query.descending)
    first = (query.page - 1) * query.page_size
    return {
        "items": [render(item) for item in items[first : first + query.page_size]],
        "page": query.page,
        "page_size": query.page_size,
        "missing_workers": [],
    }


def contains(*fields: Callable[[ItemT], str | None]) -> Filter[ItemT]:
    """A filter for items with a field that contains a text, ignoring case."""

    def fits(item: ItemT, wanted: str) -> bool:
        text = wanted.lower()
        return any(text in (value_of(item) or "").lower() for value_of in fields)

    return fits


def is_exactly(*fields: Callable[[ItemT], str | None]) -> Filter[ItemT]:
    """A filter for items with a field that equals a text."""
    return lambda item, wanted: any(value_of(item) == wanted for value_of in fields)


def _ordered(value: object) -> tuple[bool, Any]:
    # Items without a value come before all others.
    return value is not None, value


def check_parameters(query: Mapping[str, str], *known: str) -> None:
    """Raises `QueryError` for a parameter that is not known."""
    for name in query:
        if name not in known:
            others = f"; there are {', '.join(sorted(known))}" if known else ""
            raise QueryError(f"There is no parameter {_quoted(name)} here{others}.")


def number(query: Mapping[str, str], name: str, default: int, most: int | None) -> int:
    """A parameter that is a whole number from 1 to ``most``. Raises `QueryError` for any other."""
    text = query.get(name, str(default))
    found = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    if found < 1 or (most is not None and found > most):
        bounds = "1 or more" if most is None else f"from 1 to {most}"
        raise QueryError(f"{name} must be a whole number, {bounds}.")
    return found


def _quoted(text: str) -> str:
    return repr(text[:50])
