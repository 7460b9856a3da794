"""How Sphinx makes the site of the documentation: `make docs-site`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import horoscale

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("KERAS_BACKEND", "torch")  # TensorFlow need not be there

project = "horoscale"
project_copyright = "the horoscale authors"
release = version = horoscale.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings"]
exclude_patterns = ["_build"]

# Pages are Markdown that also reads well in the repository: links go to files, code is indented.
myst_heading_anchors = 4

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["lightning", "mxnet", "tensorflow"]

html_theme = "furo"
html_title = "horoscale"
