"""Makes text from other sources printable in the launcher's own lines."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    r"""Return the text as one line that is safe to print on a terminal.

    Colors and trailing spaces are removed. Other non-printable characters, such as line ends,
    escape sequences, characters that reverse the direction of writing, or half of a surrogate pair,
    are escaped as in Python: \x1b. The function is idempotent.
    """
    text = text.rstrip().expandtabs()
    if text.isprintable():
        return text
    return "".join(map(_escaped, _COLOURS.sub("", text)))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
