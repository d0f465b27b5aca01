"""`python -m deploy.release.chart_schema` puts the configuration's JSON Schema into that of the chart's values."""

import json
import re
from typing import Any, Final

from deploy.release.programs import ROOT
from gateway.config.model import json_schema

FILE: Final = ROOT / "deploy/helm/values.schema.json"

CONFIGURATION: Final = "Configuration"
"""The definition of the whole configuration; the others have the names of the gateway's classes."""

# Each generated definition has a line of its own. Those that are written by hand begin with a small letter.
_GENERATED: Final = re.compile(r'^    "[A-Z]\w*": .*\n', re.MULTILINE)
_DEFINITIONS: Final = '  "definitions": {\n'


def with_configuration(text: str) -> str:
    """The text of the chart's schema, with the definitions of the configuration's as they are now.

    In draft 7 of JSON Schema, which Helm 3 needs.
    """
    schema: dict[str, Any] = json_schema()
    del schema["$schema"]
    definitions = {CONFIGURATION: schema, **schema.pop("$defs")}
    lines = (f"    {json.dumps(name)}: {_line(shape)},\n" for name, shape in sorted(definitions.items()))
    return _GENERATED.sub("", text).replace(_DEFINITIONS, _DEFINITIONS + "".join(lines))


def _line(shape: object) -> str:
    # Go's regular expressions cannot look ahead; without it an empty text passes here, and not in the gateway.
    text = json.dumps(shape, ensure_ascii=False).replace("(?=[0-9])", "")
    return text.replace('"#/$defs/', '"#/definitions/')


if __name__ == "__main__":
    FILE.write_text(with_configuration(FILE.read_text("utf-8")), "utf-8")
