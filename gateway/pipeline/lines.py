"""From the journal's lines to rows of the table ``events``, and what becomes of a line that is none.

A line is good if it is one JSON object, and nothing else, with integers ``t`` (a time between the years 1970 and 9999)
and ``q``, a name ``e``, and no known field of a wrong type; on an ``open`` line ``v`` must be 1. Numbers that are
counted with must be such that sums of them stay numbers: whole ones from 0 to 2^53, weights above 0 up to a million.
Unknown fields are passed over, missing ones have the schema's default. A number or a truth value where a text is
expected is taken as its text.

Lines are read in one of two ways. `quick` parses octets straight out of the files, three times as fast, but loses the
raw text of a line that parses and yet is not good, and does not see what follows the first object of a line;
`thorough` keeps the one and sees the other. A batch is read quickly, and again thoroughly only if a line turned out
bad, or the rows are not as many as the lines, or something about the octets is odd (`staged.look`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from gateway.journal.schema import MESSAGE_EVENTS, VERSION

_BAD: Final = "_bad"

_LINE: Final = f"""
    e string, t bigint, q bigint, c bigint, vh string, u string, d string, dk string, s string, sn string, am string,
    m bigint, b bigint, hn int, p boolean, tx boolean, rc boolean, l bigint, r boolean, n bigint, x string, w double,
    ip string, tls boolean, ver string, hb string, pf int, du boolean, ad boolean, ex boolean,
    cnt map<string,bigint>, h map<string,bigint>,
    f struct<frames_in:bigint, frames_out:bigint, bytes_in:bigint, bytes_out:bigint, unacked:bigint,
             max_unacked:bigint, us:bigint>,
    hv map<string,string>, gw string, cfg string, v int, {_BAD} string
"""

EVENTS_SCHEMA: Final = """
    ts timestamp, boot string, seq bigint, node string, impl string, event string, session bigint, vhost string,
    user string, destination string, dest_kind string, sub_id string, sub_name string, ack_mode string, msg_no bigint,
    body_bytes bigint, header_count int, persistent boolean, transacted boolean, receipt boolean, latency_us bigint,
    queue_us bigint, redelivered boolean, n bigint, code string, weight double, peer string, tls boolean,
    version string, heartbeat string, prefetch int, durable boolean, auto_delete boolean, exclusive boolean,
    counters map<string,bigint>, histogram map<string,bigint>, totals map<string,bigint>,
    header_values map<string,string>, gateway_version string, config string, file string
"""
"""Columns of the table ``events``; in its directories there are ``d`` and ``level`` besides."""

PARTITIONS: Final = ("d", "level")

DISTINCT: Final = ("ts", "seq", "msg_no", "latency_us", "body_bytes")
"""Columns whose values seldom repeat: a dictionary of them would be begun, and given up again."""

_LAST: Final = 253_402_300_799_999_999  # 9999-12-31, the last day that has a name of ten letters
_DAY: Final = 86_400_000_000
_MOST: Final = 1 << 53
"""The largest count: sums of a thousand such still fit into 64 bits."""
_HEAVIEST: Final = 1_000_000
"""The largest weight: a sample of one in a million."""
_COUNTS: Final = ("q", "m", "b", "hn", "l", "n")
_BEYOND: Final = r"(?:conf|ack|nack):\s*(?:-|\+?0*(?:[1-9]\d{3}|9\d\d|8[1-9]\d|80[1-9]))"
"""A key of a histogram whose bucket is below 0, or above that of the largest latency, 800."""
_STRICT: Final = {"columnNameOfCorruptRecord": _BAD, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_TOTALS: Final = ("frames_in", "frames_out", "bytes_in", "bytes_out", "unacked", "max_unacked", "us")


def quick(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The parsed lines of segments, in a hurry.

    Args:
        spark: where.
        paths: of segments, as Spark takes them.

    Returns:
        One row for each line that is not blank (and for each member of an array), with ``file`` and ``reason``, which
        is null where the line is good.
    """
    parsed = spark.read.schema(_LINE).options(**_STRICT).option("lineSep", "\n").json(list(paths))
    return parsed.select("*", _file(), _reason(F.col(_BAD).isNotNull()).alias("reason"))


def thorough(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The parsed lines of segments, each with its raw text ``line``; the rest is as of `quick`.

    Args:
        spark: where.
        paths: of segments, as Spark takes them.

    Returns:
        One row for each line, blank ones too.
    """
    text = spark.read.option("lineSep", "\n").text(list(paths)).select("value", _file(), _folder())
    parsed = F.from_json("value", _LINE, _STRICT)
    rows = text.select(
        "value", "file", "folder", F.is_valid_utf8("value").alias("utf8"), _alone().alias("alone"), parsed.alias("j")
    )
    rows = rows.select("value", "file", "folder", "utf8", "alone", "j.*")
    reason = (
        F.when(~F.col("utf8"), "not UTF-8")
        .when(F.trim("value") == "", "blank")
        .when(F.col(_BAD).isNull() & ~F.col("alone"), "more than one JSON object")
        .otherwise(_reason(F.col(_BAD).isNotNull()))
    )
    line = F.make_valid_utf8("value").alias("line")
    return rows.select("*", line, reason.alias("reason")).drop("value", "utf8", "alone")


def events_of(lines: DataFrame) -> DataFrame:
    """The good ones of parsed lines as rows of ``events``, with the columns of `PARTITIONS`.

    Args:
        lines: of `quick` or `thorough`.
    """
    good = lines.where(F.col("reason").isNull())
    event = F.col("e")
    message, send, dlv = event.isin(*MESSAGE_EVENTS), event == "send", event == "dlv"
    conn, sub, fated = event == "conn", event == "sub", event.isin("ack", "nack")
    return good.select(
        F.timestamp_micros("t").alias("ts"),
        *_writer(),
        event.alias("event"),
        F.col("c").alias("session"),
        F.col("vh").alias("vhost"),
        F.col("u").alias("user"),
        F.col("d").alias("destination"),
        F.col("dk").alias("dest_kind"),
        F.col("s").alias("sub_id"),
        F.col("sn").alias("sub_name"),
        F.col("am").alias("ack_mode"),
        F.col("m").alias("msg_no"),
        _default("b", send | dlv, 0).alias("body_bytes"),
        _default("hn", send, 0).alias("header_count"),
        *(_default(field, send, False).alias(name) for field, name in _FLAGS_OF_SEND),
        F.col("l").alias("latency_us"),
        F.lit(None).cast("bigint").alias("queue_us"),
        _default("r", dlv, False).alias("redelivered"),
        F.when(fated, F.coalesce("n", F.lit(1))).otherwise(_default("n", event == "unsub", 0)).alias("n"),
        F.col("x").alias("code"),
        _default("w", message, 1.0).alias("weight"),
        F.col("ip").alias("peer"),
        _default("tls", conn, False).alias("tls"),
        F.col("ver").alias("version"),
        F.col("hb").alias("heartbeat"),
        _default("pf", sub, 0).alias("prefetch"),
        *(_default(field, sub, False).alias(name) for field, name in _FLAGS_OF_SUB),
        F.col("cnt").alias("counters"),
        F.col("h").alias("histogram"),
        _totals().alias("totals"),
        F.col("hv").alias("header_values"),
        F.col("gw").alias("gateway_version"),
        F.col("cfg").alias("config"),
        F.col("file"),
        F.expr(f"date_from_unix_date(cast(t div {_DAY} as int))").alias("d"),
        F.when(message, "message").otherwise("session").alias("level"),
    )


def bad_lines_of(lines: DataFrame) -> DataFrame:
    """The bad ones of parsed lines as ``file``, ``line``, ``reason`` and ``d``, the day in the segment's directory.

    Args:
        lines: of `thorough`.
    """
    return lines.where(F.col("reason").isNotNull()).select(
        "file", "line", "reason", F.regexp_extract("folder", "d=([^/]*)/[^/]*$", 1).alias("d")
    )


_FLAGS_OF_SEND: Final = (("p", "persistent"), ("tx", "transacted"), ("rc", "receipt"))
_FLAGS_OF_SUB: Final = (("du", "durable"), ("ad", "auto_delete"), ("ex", "exclusive"))


def _alone() -> Column:
    """Whether nothing follows the first object of a text.

    A parser stops there. So the text is put into an array, and into an object: what follows makes a mistake of the one
    or the other, or another member.
    """
    value = F.trim("value")
    in_array = F.from_json(F.concat(F.lit("["), value, F.lit("]")), "array<struct<e string>>", _STRICT)
    in_object = F.from_json(F.concat(F.lit('{"x":'), value, F.lit("}")), f"x string, {_BAD} string", _STRICT)
    return F.coalesce((F.size(in_array) == 1) & in_object[_BAD].isNull(), F.lit(False))


def _default(field: str, where: Column, value: float | bool) -> Column:
    """A field, and where the schema lets it be left out the value that this means."""
    own = F.col(field)
    return F.when(where & own.isNull(), F.lit(value)).otherwise(own)


def _file() -> Column:
    return F.col("_metadata.file_name").alias("file")


def _folder() -> Column:
    return F.col("_metadata.file_path").alias("folder")


def _writer() -> list[Column]:
    """Who wrote the line, out of the segment's name: ``impl-node-boot-pid-number``, where only ``node`` has dashes."""
    name = F.col("file")
    impl = F.substring_index(name, "-", 1)
    tail = F.substring_index(name, "-", -3)
    start = F.length(impl) + 2
    node = F.substring(name, start, F.length(name) - F.length(tail) - start)
    boot = F.substring(tail, 1, 16)
    return [boot.alias("boot"), F.col("q").alias("seq"), node.alias("node"), impl.alias("impl")]


def _totals() -> Column:
    values = [part for name in _TOTALS for part in (F.lit(name), F.coalesce(F.col("f")[name], F.lit(0)))]
    return F.when((F.col("e") == "end") | F.col("f").isNotNull(), F.create_map(*values))


def _reason(corrupt: Column) -> Column:
    """Why a line is bad; null for a good one."""
    name, time = F.col("e"), F.col("t")
    # A name begins with a letter; numbers, objects and arrays in its place have been made texts by the parser.
    letter = ((name >= "A") & (name < "[")) | ((name >= "a") & (name < "{"))
    nameless = name.isNull() | ~letter | name.isin("true", "false")
    return (
        F.when(corrupt, "not a JSON object, or a field of a wrong type")
        .when(time.isNull(), "no integer t")
        .when((time < 0) | (time > _LAST), "t is out of range")
        .when(F.col("q").isNull(), "no integer q")
        .when(nameless, "no name e")
        .when((name == "open") & ~F.col("v").eqNullSafe(VERSION), "of another schema version")
        .when(_beyond(), "a number is out of range")
    )


def _beyond() -> Column:
    """Whether a number is one that sums cannot take; null or false where none is.

    Only functions that Spark compiles: every line passes here.
    """
    found = F.lit(False)
    for each in (*(F.col(name) for name in _COUNTS), *(F.col("f")[name] for name in _TOTALS)):
        found = found | (each < 0) | (each > _MOST)
    weight = F.col("w")
    found = found | (weight <= 0) | (weight > _HEAVIEST)  # to Spark, what is no number is larger than all
    for values in (F.map_values("cnt"), F.map_values("h")):
        found = found | (F.array_min(values) < 0) | (F.array_max(values) > _MOST)
    return found | F.array_join(F.map_keys("h"), " ").rlike(_BEYOND)
