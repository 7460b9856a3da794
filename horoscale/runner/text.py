"""Text of others in the launcher's own lines."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    r"""The text as one line that a terminal only prints.

    Colors and the spaces at the end are left out; what else is not printable, such as a line's
    end, an escape sequence, a character that reverses the direction of writing, or half of a
    surrogate pair, is escaped as in Python: \x1b. Doing it again changes nothing.
    """
    text = text.rstrip().expandtabs()
    if text.isprintable():
        return text
    return "".join(map(_escaped, _COLOURS.sub("", text)))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
