"""The version, which pyproject.toml and CMakeLists.txt read.

Between releases it is a development version, X.Y.Z.dev0; the tag of a release is vX.Y.Z.
"""

__version__ = "0.1.0.dev0"
