"""The version. pyproject.toml and CMakeLists.txt read it from here."""

__version__ = "0.1.0"
