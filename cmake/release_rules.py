"""What a commit must be like to be released: its version, its tag and its changelog agree.

Pure functions; release.py asks git and the files.
"""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

_VERSION = re.compile(r"(\d+\.\d+\.\d+)(.*)")
_TAG = re.compile(r"v\d+\.\d+\.\d+.*")
_MOST_NAMED = 3


class Commit(NamedTuple):
    """What is known of the commit that is to be released."""

    version: str  # of horoscale/_version.py
    tags: tuple[str, ...]  # that lead to the commit, those of other things included
    changed: tuple[str, ...]  # paths that differ from the commit, untracked ones included
    changelog: str  # the text of CHANGELOG.md


def problems(commit: Commit) -> list[str]:
    """Return why the commit can't be released, a sentence each; nothing if it can."""
    found = []
    if commit.changed:
        named = ", ".join(commit.changed[:_MOST_NAMED])
        more = len(commit.changed) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        found.append(f"the working tree differs from the commit: {named}")
    parts = _VERSION.fullmatch(commit.version)
    release = parts[1] if parts else "X.Y.Z"
    if parts is None or parts[2]:
        found.append(f"horoscale/_version.py has {commit.version}: a release has {release}")
    found += filter(None, [_of_tags(commit, release), _of_changelog(commit, release)])
    return found


def _of_tags(commit: Commit, release: str) -> str | None:
    tags = [tag for tag in commit.tags if _TAG.fullmatch(tag)]
    if not tags:
        return f"the commit has no tag of a version: expected v{release}"
    others = [tag for tag in tags if tag != f"v{commit.version}"]
    if others:
        return (
            f"the commit has the tag {', '.join(others)}, and horoscale/_version.py has "
            f"{commit.version}"
        )
    return None


def _of_changelog(commit: Commit, release: str) -> str | None:
    expected = f'expected a section "## {release} - YYYY-MM-DD"'
    section = re.search(
        rf"^## {re.escape(release)}(?: - (?P<date>\S+))?[ \t]*$(?P<text>.*?)(?=^## |\Z)",
        commit.changelog,
        re.MULTILINE | re.DOTALL,
    )
    if section is None:
        return f"CHANGELOG.md does not have {release}: {expected}"
    if not _is_date(section["date"] or ""):
        return f"CHANGELOG.md has no date for {release}: {expected}"
    if not section["text"].strip():
        return f"CHANGELOG.md has nothing below the heading of {release}"
    return None


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
