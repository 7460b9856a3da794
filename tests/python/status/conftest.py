"""The page of a watched job in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "integration"))  # launchers as processes


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "there is no Chromium: apt-get install chromium"
    # As root, as in CI, Chromium must run without a sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
