"""What docs/journal.md says of the journal's lines, and docs/pipeline.md of the lake's tables, is what there is."""

import re
from pathlib import Path
from typing import get_args

import duckdb
import msgspec
import pytest
from deltalake import DeltaTable

from gateway.journal import schema
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS

_DOCS = Path(__file__).parents[3] / "docs"
_PAGE = "".join((_DOCS / name).read_text("utf-8") for name in ("journal.md", "pipeline.md"))
_EVERYWHERE = {"t", "q", "c", "vh", "u"}


def _row(name: str) -> str:
    """The row of a table in the page, by what its first cell begins with."""
    [row] = re.findall(rf"^\| `{name}`.*$", _PAGE, re.MULTILINE)
    return str(row)


def _unexplained(names: set[str], row: str) -> list[str]:
    return sorted(name for name in names if f"`{name}`" not in row)


@pytest.mark.parametrize("line", get_args(schema.AnyLine), ids=lambda line: line.__name__)
def test_every_field_of_a_line_is_explained(line: type[schema.Line]) -> None:
    names = set(line.__struct_fields__) - _EVERYWHERE
    if line is schema.EndLine:
        names |= set(schema.SessionTotals.__struct_fields__)

    assert not _unexplained(names, _row(str(msgspec.inspect.type_info(line).tag)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("table", COLUMNS)
def test_every_column_of_a_table_is_explained(table: str) -> None:
    names = {column.split()[0] for column in COLUMNS[table].split(", ")} - {"d", "level"}

    assert not _unexplained(names, _row(table))


def test_the_words_of_events_are_explained() -> None:
    prose = " ".join(_PAGE.split())
    assert not [pair for pair in schema.EVENT_WORDS.items() if "`{1}` (`{0}`)".format(*pair) not in prose]


def test_the_queries_run(tmp_path: Path) -> None:
    queries = re.findall(r"^```sql\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
    queries += re.findall(r'pipeline sql --lake LAKE "\n(.*?)"\n', _PAGE, re.DOTALL)

    assert len(queries) == 5
    for query in queries:
        assert Lake(tmp_path).sql(query).num_rows == 0


def test_duckdb_reads_a_table_as_the_page_says(tmp_path: Path) -> None:
    Lake(tmp_path).create("dest_hour")
    assert 'DeltaTable("LAKE/dest_hour").to_pyarrow_dataset(); duckdb.sql("from rows")' in _PAGE
    rows = DeltaTable(str(tmp_path / "dest_hour")).to_pyarrow_dataset()
    assert "sent_bytes" in duckdb.from_arrow(rows).columns
