"""Parses the journal's lines into rows of the table ``events``, and bad lines into rows of ``bad_lines``.

A line is good if it is exactly one JSON object with integers ``t`` (a time between the years 1970 and 9999) and ``q``,
a name ``e``, and no known field of a wrong type; on an ``open`` line ``v`` must be 1. Numbers that are summed up must
not overflow: counts are integers from 0 to 2^53, weights are above 0 and at most a million. Unknown fields are ignored,
missing ones have the schema's default. A number or boolean in place of a string is converted to one.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.journal.schema import EVENT_WORDS, MESSAGE_EVENTS, VERSION

_BAD: Final = "_bad"

_LINE: Final = f"""
    e string, t bigint, q bigint, c bigint, vh string, u string, d string, dk string, s string, sn string, am string,
    m bigint, b bigint, hn int, p boolean, tx boolean, rc boolean, l bigint, ql bigint, r boolean, n bigint, x string,
    w double, ip string, tls boolean, ver string, hb string, pf int, du boolean, ad boolean, ex boolean,
    cnt map<string,bigint>, h map<string,bigint>,
    f struct<frames_in:bigint, frames_out:bigint, bytes_in:bigint, bytes_out:bigint, unacked:bigint,
             max_unacked:bigint, us:bigint>,
    hv map<string,string>, gw string, cfg string, v int, {_BAD} string
"""

_LAST_TIME: Final = 253_402_300_799_999_999  # the end of 9999-12-31: later days need a longer name
_DAY: Final = 86_400_000_000
_LARGEST_COUNT: Final = 1 << 53
"""The sum of a thousand such counts still fits into 64 bits."""
_LARGEST_WEIGHT: Final = 1_000_000
"""A sample of one in a million."""
_COUNTS: Final = ("q", "m", "b", "hn", "l", "ql", "n")
_BAD_BUCKET: Final = r"(?:conf|ack|nack|queue):\s*(?:-|\+?0*(?:[1-9]\d{3}|9\d\d|8[1-9]\d|80[1-9]))"
"""A histogram's key whose bucket is below 0, or above 800, the bucket of the largest latency."""
_STRICT: Final = {"columnNameOfCorruptRecord": _BAD, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_TOTALS: Final = ("frames_in", "frames_out", "bytes_in", "bytes_out", "unacked", "max_unacked", "us")
_FLAGS_OF_SEND: Final = (("p", "persistent"), ("tx", "transacted"), ("rc", "receipt"))
_FLAGS_OF_SUB: Final = (("du", "durable"), ("ad", "auto_delete"), ("ex", "exclusive"))


def parse(lines: DataFrame) -> DataFrame:
    """Parse lines.

    Takes a row for each line, blank ones too, with its text in ``value`` and the segment's name in ``file``. Returns
    the line's fields as columns of their own besides, and ``reason``, which is null for good lines.
    """
    rows = lines.select("*", F.from_json("value", _LINE, _STRICT).alias("j")).select(*lines.columns, "j.*")
    reason = (
        F.when(~F.is_valid_utf8("value"), "not UTF-8")
        .when(F.trim("value") == "", "blank")
        .when(F.col(_BAD).isNull() & ~_is_single_object(), "more than one JSON object")
        .otherwise(_reason(F.col(_BAD).isNotNull()))
    )
    return rows.select("*", reason.alias("reason"))


def events_of(parsed: DataFrame) -> DataFrame:
    """The good lines among those of `parse`, as rows of ``events``."""
    good = parsed.where(F.col("reason").isNull())
    event = F.col("e")
    message, send, dlv = event.isin(*MESSAGE_EVENTS), event == "send", event == "dlv"
    conn, sub, settled = event == "conn", event == "sub", event.isin("ack", "nack")
    return good.select(
        F.timestamp_micros("t").alias("ts"),
        *_writer(),
        _word(event).alias("event"),
        F.col("c").alias("session"),
        F.col("vh").alias("vhost"),
        F.col("u").alias("login"),
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
        F.col("ql").alias("queue_us"),
        _default("r", dlv, False).alias("redelivered"),
        F.when(settled, F.coalesce("n", F.lit(1))).otherwise(_default("n", event == "unsub", 0)).alias("n"),
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
        F.expr(f"cast(date_from_unix_date(cast(t div {_DAY} as int)) as string)").alias("d"),
        F.when(message, "message").otherwise("session").alias("level"),
    )


def bad_lines_of(parsed: DataFrame) -> DataFrame:
    """The bad lines among those of `parse`, as rows of ``bad_lines``; ``day`` is the day of their segment."""
    bad = parsed.where(F.col("reason").isNotNull())
    line = F.make_valid_utf8("value").alias("line")
    return bad.select("file", line, "reason", F.current_timestamp().alias("seen"), F.col("day").alias("d"))


def _word(event: Column) -> Column:
    """What tables call an event."""
    found = event
    for short, word in EVENT_WORDS.items():
        found = F.when(event == short, word).otherwise(found)
    return found


def _is_single_object() -> Column:
    """Whether nothing follows the first object of a text.

    The parser stops after it. If the first closing brace is the text's last character, nothing can follow; most lines
    are so. Otherwise the text is parsed inside an array, and inside an object: anything that follows breaks one of the
    two, or becomes another element.
    """
    is_flat = F.locate("}", "value") == F.char_length("value")
    value = F.trim("value")
    in_array = F.from_json(F.concat(F.lit("["), value, F.lit("]")), "array<struct<e string>>", _STRICT)
    in_object = F.from_json(F.concat(F.lit('{"x":'), value, F.lit("}")), f"x string, {_BAD} string", _STRICT)
    return is_flat | F.coalesce((F.size(in_array) == 1) & in_object[_BAD].isNull(), F.lit(False))


def _default(field: str, where: Column, value: float | bool) -> Column:
    """A field, or ``value`` if it is missing in a row where the schema gives it a default."""
    own = F.col(field)
    return F.when(where & own.isNull(), F.lit(value)).otherwise(own)


def _writer() -> list[Column]:
    """The writer of a line, from the segment's name ``impl-node-boot-pid-number``; only ``node`` may contain dashes."""
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
    # A name begins with a letter; the parser has converted numbers, objects and arrays in its place to strings.
    letter = ((name >= "A") & (name < "[")) | ((name >= "a") & (name < "{"))
    nameless = name.isNull() | ~letter | name.isin("true", "false")
    return (
        F.when(corrupt, "not a JSON object, or a field of a wrong type")
        .when(time.isNull(), "no integer t")
        .when((time < 0) | (time > _LAST_TIME), "t is out of range")
        .when(F.col("q").isNull(), "no integer q")
        .when(nameless, "no name e")
        .when((name == "open") & ~F.col("v").eqNullSafe(VERSION), "of another schema version")
        .when(_is_out_of_range(), "a number is out of range")
    )


def _is_out_of_range() -> Column:
    """Whether a number is too large or too small to be summed up; null or false if none is.

    HOT: every line passes here, so it uses only functions that Spark compiles.
    """
    found = F.lit(False)
    for each in (*(F.col(name) for name in _COUNTS), *(F.col("f")[name] for name in _TOTALS)):
        found = found | (each < 0) | (each > _LARGEST_COUNT)
    weight = F.col("w")
    found = found | (weight <= 0) | (weight > _LARGEST_WEIGHT)  # Spark sorts NaN above all numbers
    for values in (F.map_values("cnt"), F.map_values("h")):
        found = found | (F.array_min(values) < 0) | (F.array_max(values) > _LARGEST_COUNT)
    return found | F.array_join(F.map_keys("h"), " ").rlike(_BAD_BUCKET)
