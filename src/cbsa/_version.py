"""The version, read by the build and by ``cbsa.__version__``."""

__version__ = "0.1.0"
