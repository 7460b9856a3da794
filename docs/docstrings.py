"""A Sphinx extension: shows docstrings as they are laid out, and each public name on one page.

Docstrings are written to be read in a terminal: code and tables are indented or aligned by hand.
reStructuredText would join their lines, so they become literal blocks here. Google's sections
("Args:") are left to napoleon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Packages with a page of their own. A name is on the page of the innermost one that defines it.
PAGES = (
    "horoscale",
    "horoscale.common",
    "horoscale.elastic",
    "horoscale.keras",
    "horoscale.keras.callbacks",
    "horoscale.keras.elastic",
    "horoscale.lightning",
    "horoscale.mxnet",
    "horoscale.numpy",
    "horoscale.tensorflow",
    "horoscale.tensorflow.elastic",
    "horoscale.timeline",
    "horoscale.torch",
    "horoscale.torch.elastic",
    "horoscale.torch.parallel",
    "horoscale.trackers",
)
DEFINED_ELSEWHERE = {"horoscale._core": "horoscale.common", "horoscale.runner": "horoscale"}

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
ALIGNED = re.compile(r"\S.*?\S {3,}\S")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc, before napoleon."""
    app.connect("autodoc-process-docstring", _lay_out, priority=400)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}


def _lay_out(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = list(laid_out(lines))


def laid_out(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a docstring with its indented and aligned blocks as literal ones."""
    in_section = False
    for block in _blocks(lines):
        first = block[0]
        if not first.startswith(" "):
            in_section = bool(SECTION.match(first))
        if not in_section and (first.startswith(" ") or _is_aligned(block)):
            yield from _literal(block)
        else:
            yield from map(_escaped, block)
        yield ""


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Yield the paragraphs; what is indented below a line that is not is a paragraph of its own."""
    block: list[str] = []
    for line in lines:
        begins = block and line.startswith(" ") != block[-1].startswith(" ")
        aligned = block and (SECTION.match(block[0]) or _is_aligned(block) or _is_list(block[0]))
        if block and (not line.strip() or (begins and not aligned)):
            yield block
            block = []
        if line.strip():
            block.append(line)
    if block:
        yield block


def _escaped(line: str) -> str:
    """A line of prose, whose asterisks are no mark-up unless they are a list's."""
    return re.sub(r"(?<=\S)\*|\*(?=\S)", r"\\*", line)


def _is_aligned(block: list[str]) -> bool:
    return bool(ALIGNED.match(block[0]))


def _is_list(line: str) -> bool:
    return bool(re.match(r"([-*]|\d+\.) ", line))


def _literal(block: list[str]) -> Iterator[str]:
    yield "::"
    yield ""
    for line in block:
        yield "    " + line


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skip what another page shows."""
    page = app.env.current_document.docname.removeprefix("reference/")
    defined = getattr(obj, "__module__", None)
    if what != "module" or skip or not isinstance(defined, str):
        return None
    return True if _page_of(defined) != page else None


def _page_of(module: str) -> str:
    """The page that shows what this module defines: of the innermost package that has one."""
    for package, page in DEFINED_ELSEWHERE.items():
        if module == package or module.startswith(package + "."):
            return page
    inside = [page for page in PAGES if module == page or module.startswith(page + ".")]
    return max(inside, key=len, default="")
