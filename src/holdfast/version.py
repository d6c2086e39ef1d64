"""The version of this package: recorded in every run."""

__version__ = "0.2.0"
