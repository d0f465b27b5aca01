"""A part of the report: a heading that can be linked to, and what is under it."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pipeline.report.markup import Markup, tag


@dataclass(frozen=True, slots=True)
class Section:
    """A section with its anchor."""

    key: str
    title: str
    body: Markup

    def markup(self) -> Markup:
        """The section as an element."""
        heading = tag("h2", self.title, id=f"{self.key}-heading")
        return tag("section", heading, self.body, id=self.key, aria_labelledby=f"{self.key}-heading")


def paragraph(text: str, class_: str | None = None) -> Markup:
    """A paragraph."""
    return tag("p", text, class_=class_)
