"""What docs/journal.md says of the journal's lines, and docs/pipeline.md of the lake's tables, is what there is."""

import re
from pathlib import Path
from typing import get_args

import duckdb
import msgspec
import pyarrow.parquet
import pytest
from gateway.pipeline.parquet_lake import BATCH_TABLES, DAY_TABLES, WHOLE_TABLES, ParquetLake
from gateway.pipeline.parquet_schemas import COLUMNS, schema_of

from gateway.journal import schema

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
def test_every_column_of_a_computed_table_is_explained(table: str) -> None:
    names = {column.split()[0] for column in COLUMNS[table].split(", ")}

    assert not _unexplained(names, _row(table))


def test_every_table_is_explained() -> None:
    assert all(_row(table) for table in (*BATCH_TABLES, *DAY_TABLES, *WHOLE_TABLES))


def test_the_queries_for_duckdb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = ParquetLake(tmp_path)
    for table in COLUMNS:
        path = lake.whole_file(table) if table in WHOLE_TABLES else lake.day_file(table, "2026-11-21")
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(schema_of(table).empty_table(), path)
    queries = re.findall(r"^-- DuckDB\n(.*?);$", _PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)

    assert len(queries) == 3
    for query in queries:
        assert duckdb.connect().execute(query).fetchall() == []
