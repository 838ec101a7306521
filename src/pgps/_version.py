"""The version, in one place: read by the build, the package and every result."""

__version__ = "0.1.0"
