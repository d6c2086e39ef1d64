"""Holdfast runs LLM evaluations that cannot be lost."""

from holdfast.errors import HoldfastError

__version__ = "0.1.0"

__all__ = ["HoldfastError", "__version__"]
