"""Literal secrets in a spec are refused, because a run stores its spec. The error shows the `${VAR}` form to use. Pure.

A secret is recognised by its field (`Authorization`, `api_key`, a password in a URL), by its shape (`sk-…`), or because
an environment variable with the name of a credential holds the same value. The message never shows the secret.
"""

import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import SpecError
from holdfast.records import KEY_SHAPE, is_credential_name, is_unmistakable, redact_credential_shapes
from holdfast.spec.source.text import VARIABLE

_FIELD = re.compile(
    r"(?:.*[_-])?(?<!eos_)(?<!bos_)(?<!pad_)(?<!stop_)(?<!unk_)(?<!mask_)"
    r"(authorization|auth|api[_-]?key|token|secret|password|passwd|cookie|credentials?|access[_-]key|secret[_-]key"
    r"|private[_-]key|subscription[_-]key|access[_-]key[_-]id)",
    re.IGNORECASE,
)
_QUERY_FIELDS = {"key", "sig", "signature"}
_SCHEME = re.compile(r"(?:bearer|basic|token|apikey|api-key|key)\s+", re.IGNORECASE)
_PLACEHOLDERS = {
    *("", "anything", "dummy", "empty", "fake", "holdfast", "local", "lm-studio", "no-key", "nokey", "none", "null"),
    *("not-needed", "ollama", "placeholder", "sk-no-key-required", "test", "unused"),
}
"""Placeholders for servers that require a key but do not check it."""
_CHARACTERS_MIN = 4
_ADVICE = "put it into an environment variable and write"


def refuse_literals(mapping: Mapping[str, Any], where: str, environ: Mapping[str, str]) -> None:
    """SpecError for literal secrets in the models, roles and MCP servers of a spec that is not validated yet."""
    _refuse(_Search(environ).in_spec(mapping), where)


def refuse_literals_in_sets(sets: Sequence[tuple[str, Any]], environ: Mapping[str, str]) -> None:
    """SpecError for literal secrets in `--set` values, given as (path, value)."""
    _refuse((each for path, value in sets for each in _Search(environ).in_set(path, value)), "")


def _refuse(found: Iterator[tuple[str, str]], where: str) -> None:
    problems = [f"{place}: this secret would be stored with the run; {advice}" for place, advice in found]
    if problems:
        raise SpecError("\n".join(": ".join(filter(None, (where, each))) for each in dict.fromkeys(problems)))


class _Search:
    """Finds secrets. Yields each as its place and the advice what to write there instead."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._variables_by_value = {
            value: name
            for name, value in environ.items()
            if is_credential_name(name) and is_unmistakable(value) and not value.startswith("/")
        }

    def in_spec(self, mapping: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Check the models, roles and MCP servers of a spec that is not validated yet."""
        models, roles, tasks = mapping.get("models"), mapping.get("roles"), mapping.get("tasks")
        for index, model in enumerate(models if isinstance(models, list) else ()):
            yield from self._in_model(model, f"models[{index}]")
        for name, role in roles.items() if isinstance(roles, dict) else ():
            yield from self._in_model(role, f"roles.{name}")
        for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
            if isinstance(task, dict):
                yield from self._in_servers(task.get("solver"), f"tasks[{index}].solver")

    def in_set(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        """Check values by field name where the path leads into a model, and by shape everywhere. Mirror URLs have their
        own check, because their credentials belong in other variables.
        """
        parts = re.split(r"[.\[]", path)
        if parts[0] == "mirror":
            return
        if {"base_url", "headers", "options", "params", "api_key_env"} & set(parts):
            field = next(each for each in reversed(parts) if not each.rstrip("]").isdigit())
            within = {"base_url": [value]} if field == "base_url" else {field: value}
            found = self._in_model(within, "") if field in ("base_url", "api_key_env") else self._in(value, field, "")
        else:
            found = self._in(value, "", "")
        yield from ((f"--set {path}", f"{advice}, in single quotes") for _, advice in found)

    def _in_model(self, model: Any, place: str) -> Iterator[tuple[str, str]]:
        if not isinstance(model, dict):
            return
        variable = _suggest_variable(model)
        for field in ("headers", "options", "params"):
            yield from self._in(model.get(field), field, f"{place}.{field}", variable)
        urls = model.get("base_url")
        for each in urls if isinstance(urls, list) else [urls]:
            if isinstance(each, str):
                yield from self._in_url(each, f"{place}.base_url", variable)
        named = model.get("api_key_env")
        if isinstance(named, str):
            is_name = re.fullmatch(r"[A-Za-z_]\w*", named)
            if self._secret("" if is_name else "api_key", named):
                yield f"{place}.api_key_env", f"{_ADVICE} the variable's name here: {variable}"

    def _in_servers(self, value: Any, place: str, inside: bool = False) -> Iterator[tuple[str, str]]:
        if isinstance(value, list):
            for index, each in enumerate(value):
                yield from self._in_servers(each, f"{place}[{index}]", inside)
        elif isinstance(value, dict):
            for name, each in value.items():
                here = f"{place}.{name}"
                if inside and name == "url" and isinstance(each, str):
                    yield from self._in_url(each, here, "SERVER_KEY")
                elif inside and name in ("headers", "env", "command"):
                    yield from self._in(each, name, here, "SERVER_KEY")
                else:
                    yield from self._in_servers(each, here, inside or name == "mcp")

    def _in(self, value: Any, field: str, place: str, variable: str = "MY_KEY") -> Iterator[tuple[str, str]]:
        if isinstance(value, dict):
            for name, each in value.items():
                yield from self._in(each, str(name), f"{place}.{name}", variable)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                yield from self._in(each, field, f"{place}[{index}]", variable)
        elif isinstance(value, str) and (secret := self._secret(field, value)):
            yield place, f"{_ADVICE} {self._with_variable(value, secret, variable)}"

    def _in_url(self, url: str, place: str, variable: str) -> Iterator[tuple[str, str]]:
        secret = self._secret("", url) or _secret_in_url(url)
        if secret:
            replacement = self._with_variable(url, secret, variable)
            yield place, f"{_ADVICE} {replacement}; in a URL its value must be percent-encoded"

    def _secret(self, field: str, value: str) -> str:
        """Return the part of a value that is a secret; empty if there is none."""
        held = next((each for each in self._variables_by_value if each in value), "")
        shape = KEY_SHAPE.search(value)
        if held or shape is not None:
            return held or (shape[0] if shape is not None else "")
        if not _FIELD.fullmatch(field):
            return ""
        # Of `${VAR:-default}` only the default is literal.
        literal = " ".join(match[2] or "" for match in VARIABLE.finditer(value)) if VARIABLE.search(value) else value
        literal = _SCHEME.sub("", literal.strip(), count=1)
        return literal if len(literal) >= _CHARACTERS_MIN and literal.lower() not in _PLACEHOLDERS else ""

    def _with_variable(self, value: str, secret: str, variable: str) -> str:
        """Return the value with `${VAR}` for the secret, using the variable that holds it if there is one."""
        name = self._variables_by_value.get(secret, variable)
        defaulted = VARIABLE.search(value)
        if defaulted is not None and defaulted[2] and secret in defaulted[2]:
            return value.replace(defaulted[0], f"${{{defaulted[1]}}}")
        return redact_credential_shapes(value.replace(secret, f"${{{name}}}"))


def _secret_in_url(url: str) -> str:
    """Return a password, a user name without password, or a query parameter with the name of a credential."""
    hidden = VARIABLE.sub("\0", url)
    try:
        parts = urllib.parse.urlsplit(hidden)
    except ValueError:
        return ""  # an invalid URL is reported when the connection is opened
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    if password and "\0" not in password:
        return password
    if user and not colon and "\0" not in user:
        return user
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        is_credential = _FIELD.fullmatch(name) or name.lower() in _QUERY_FIELDS
        if is_credential and "\0" not in value and value.lower() not in _PLACEHOLDERS:
            return value
    return ""


def _suggest_variable(model: Mapping[str, Any]) -> str:
    """Suggest a variable: the model's `api_key_env`, or one derived from its name."""
    named = model.get("api_key_env")
    if isinstance(named, str) and re.fullmatch(r"[A-Z_]+", named):
        return named
    name = re.sub(r"\W+", "_", str(model.get("name") or "")).strip("_").upper()
    return f"{name}_KEY" if re.match("[A-Z]", name) else "MY_KEY"
