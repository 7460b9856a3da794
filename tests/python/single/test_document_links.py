"""Links between the documents lead to files and headings that there are, as GitHub shows them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*~* *$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_INLINE = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINED = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)
_HTML = re.compile(r"""<\w[^>]*?\b(?:href|src)=["']([^"']*)""")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_ANCHOR = re.compile(r"""<\w[^>]*?\b(?:id|name)=["']([^"']+)""")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:


def links_of(text: str) -> list[str]:
    """The targets of the links and pictures of a document, without those to other sites."""
    prose = _CODE.sub("code", _without_blocks(text))
    found = [one for pattern in (_INLINE, _DEFINED, _HTML) for one in pattern.findall(prose)]
    return [one for one in found if not _ELSEWHERE.match(one)]


def anchors_of(text: str) -> set[str]:
    """The names of the headings of a document, and those that it sets itself."""
    anchors: set[str] = set()
    prose = _without_blocks(text)
    for heading in _HEADING.findall(prose):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{name}-{number}" if number else name) in anchors:
            number += 1
        anchors.add(anchor)
    return anchors | set(_ANCHOR.findall(prose))


def problem_of(document: Path, link: str) -> str | None:
    """What is wrong with a link, in words."""
    path, _, anchor = link.partition("#")
    target = (document.parent / unquote(path)).resolve() if path else document
    if not target.is_relative_to(ROOT):
        return f"{link}: is outside of the repository"
    if not target.exists():
        return f"{link}: there is no such file"
    if "#" in link and (target.suffix != ".md" or unquote(anchor) not in _anchors_in(target)):
        return f"{link}: there is no such heading"
    return None


@cache
def _anchors_in(document: Path) -> set[str]:
    return anchors_of(document.read_text())


def _without_blocks(text: str) -> str:
    """The text without blocks of code, in which neither headings nor links are any."""
    return _INDENTED.sub("\n", _FENCED.sub("", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    problems = [problem_of(document, link) for link in links_of(document.read_text())]
    assert [one for one in problems if one] == []


def test_links_and_headings_are_found_as_they_are_shown(tmp_path: Path) -> None:
    text = (
        "# One `code()` & [more](a.md)\n\n## Same\n\n## Same\n\n"
        "```sh\n# no heading\n[no](link.md)\n```\n\n    [no](indented.md)\n\n"
        '`[no](code.md)` but [a `link`](b.md#x), ![picture](c.png "title"),\n'
        "[broken\nover lines](d.md) and [elsewhere](https://example.org/#y).\n\n"
        '[reference]: e.md\n\n<a id="own" href="f.md">html</a>\n'
    )
    assert links_of(text) == ["a.md", "b.md#x", "c.png", "d.md", "e.md", "f.md"]
    assert anchors_of(text) == {"one-code--more", "same", "same-1", "own"}


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("README.md", None),
        ("docs", None),
        ("docs/status.md#the-page", None),
        ("#contributing", None),
        ("docs/nothing.md", "no such file"),
        ("docs/status.md#nothing", "no such heading"),
        ("#nothing", "no such heading"),
        ("LICENSE#nothing", "no such heading"),
        ("../elsewhere.md", "outside of the repository"),
    ],
)
def test_what_is_wrong_with_a_link_is_told(link: str, words: str | None) -> None:
    problem = problem_of(ROOT / "CONTRIBUTING.md", link)
    assert (problem is None) if words is None else (problem is not None and words in problem)
