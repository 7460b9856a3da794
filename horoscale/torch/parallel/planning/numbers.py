"""Conversion between numbers of bytes and text."""

from __future__ import annotations


def readable_bytes(number: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f} B"


def bytes_of(text: int | str) -> int:
    """Return the number of bytes for a number or a text such as "16GiB".

    Raises:
        ValueError: the text is invalid.
    """
    if isinstance(text, int):
        number = text
    else:
        units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "GB": 10**9, "MB": 10**6, "B": 1}
        unit = next((one for one in units if text.endswith(one)), "")
        try:
            number = int(float(text.removesuffix(unit)) * units.get(unit, 1))
        except ValueError as error:
            raise ValueError(f'{text!r} is no number of bytes, such as "16GiB"') from error
    if number <= 0:
        raise ValueError(f"{text!r}: more than 0 bytes are needed")
    return number
