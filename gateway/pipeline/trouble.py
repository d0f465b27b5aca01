"""What can go wrong on the way into the lake, said so that somebody can act upon it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from gateway.errors import PipelineError
from gateway.pipeline.lake import Lake

_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")
_GONE: Final = re.compile(r"(?:File |path: )?file:(?://)?(/\S+?\.jsonl)")


@contextmanager
def explained(lake: Lake) -> Iterator[None]:
    """Turn what the disk, Java and Spark raise into a sentence.

    Args:
        lake: what is written to.

    Raises:
        PipelineError: in the place of an OSError, or of any of Spark's.
    """
    try:
        yield
    except (OSError, PySparkException, Py4JError) as error:
        raise PipelineError(_sentence(error, lake)) from error


def _sentence(error: Exception, lake: Lake) -> str:
    text = f"{error} {getattr(error, 'java_exception', '')}"
    if any(words in text for words in _FULL):
        return (
            f"no space is left for the lake {lake.root}. Make room and run the same command again: it goes on where "
            "this one ended, and nothing is counted twice."
        )
    if isinstance(error, PermissionError) or "Permission denied" in text:
        where = getattr(error, "filename", None) or lake.root
        return f"no permission to write or read {where}. Run as a user who may, or give another directory."
    gone = _GONE.search(text)
    if gone and ("FileNotFound" in text or "does not exist" in text or "PATH_NOT_FOUND" in text):
        return (
            f"the segment {gone[1]} was to be read and has been deleted. Put it back, or go on without its lines: "
            "--skip-missing."
        )
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or lake.root}."
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"Spark ended with: {first[:300]}. All that it said is in {lake.logs / 'spark.log'}."
