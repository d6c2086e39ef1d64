"""Packages that only some providers need: found without importing them, imported when they are first used."""

import importlib.util

from holdfast.models.failures import BadConnectionError


def need(package: str, provider: str) -> None:
    """BadConnectionError, which says how to install it, if a package is not here. Looks; imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise BadConnectionError(
            f"provider {provider} needs the package {package}, which is not installed: "
            f"pip install 'holdfast[{provider}]'"
        )
