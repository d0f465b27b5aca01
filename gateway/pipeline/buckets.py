"""The buckets of ``gateway.journal.histogram`` as Spark columns: integers only, so that both agree bit for bit."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

_BITS: Final = 4
_PER_OCTAVE: Final = 1 << _BITS

HIGHEST: Final = 800
"""The bucket of 2^53, the largest latency that a line may have."""


def bucket(value: Column) -> Column:
    """The bucket of a value, as int; null for null.

    Args:
        value: bigint; what is below 0 counts as 0.
    """
    counted = F.greatest(value, F.lit(0).cast("bigint"))
    # The digits of a binary number are floor(log2) + 1, without a logarithm that may round the wrong way.
    shift = F.greatest(F.length(F.bin(counted)) - (_BITS + 1), F.lit(0))
    # Spark's functions for Python shift by a constant only; those of SQL by a column.
    found = F.call_function("shiftleft", shift, F.lit(_BITS)) + F.call_function("shiftright", counted, shift)
    return F.when(value.isNotNull(), found.cast("int"))  # of a null and a number, the greatest is the number


def lowest(bucket: Column) -> Column:
    """The smallest value in a bucket, as bigint.

    Args:
        bucket: int.
    """
    shift = F.shiftright(bucket, _BITS) - 1
    mantissa = (_PER_OCTAVE + bucket.bitwiseAND(F.lit(_PER_OCTAVE - 1))).cast("bigint")
    return F.when(bucket < _PER_OCTAVE, bucket.cast("bigint")).otherwise(F.call_function("shiftleft", mantissa, shift))


def highest(bucket: Column) -> Column:
    """The largest value in a bucket, as bigint.

    Args:
        bucket: int.
    """
    return lowest(bucket + 1) - 1
