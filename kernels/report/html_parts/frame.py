"""The document around a page's content."""

from __future__ import annotations

from kernels.report.html_parts.markup import Markup, element
from kernels.report.html_parts.style import CSS

__all__ = ["frame"]

# Nothing is loaded and nothing runs, whatever a candidate managed to write into the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def frame(title: str, body: Markup) -> str:
    """The whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(CSS)),
    )
    skip = element("a", "Skip to the report", href="#report", class_="skip")
    whole = element("html", head, element("body", skip, element("div", body, class_="page")), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"
