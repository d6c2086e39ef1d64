"""The `.env` file of the current folder: it provides the variables that a spec mentions, and nothing else.

A `.env` may come with a downloaded folder. So it cannot set variables that control this program, the programs that it
starts or whom it trusts (sandbox, proxies, certificates, search paths), even if the spec mentions them. Variables that
are set already keep their values.
"""

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from holdfast.spec.assigning import value_of
from holdfast.spec.keys import USUAL
from holdfast.spec.presets import model_fields
from holdfast.spec.reading import VARIABLE

PATH = ".env"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_BYTES_MAX = 1 << 20
_REFUSED = re.compile(
    r"(HOLDFAST|LD|DYLD|XDG|GIT|DOCKER|NODE)_.*|PYTHON.*|.*_PROXY|.*SSL_.*|.*_CA_(BUNDLE|CERTS)"
    r"|PATH|HOME|TMPDIR|TMP|TEMP|SHELL|ENV|BASH_ENV|IFS",
    re.IGNORECASE,  # programs read http_proxy as well as HTTP_PROXY
)


def fill_environment(
    spec: object, sets: Sequence[str] = (), environ: MutableMapping[str, str] = os.environ, path: str = PATH
) -> None:
    """Set the variables of the file that the spec, or a `--set`, mentions and that are not set yet."""
    mentioned = mentioned_variables(spec, sets)
    for name, value in read_env_file(path).items():
        if name in mentioned and not is_refused(name):
            environ.setdefault(name, value)


def refused_variables(environ: Mapping[str, str] = os.environ, path: str = PATH) -> list[str]:
    """Those of the file that it may not set and that are not set otherwise."""
    return [name for name in read_env_file(path) if is_refused(name) and name not in environ]


def is_refused(name: str) -> bool:
    """Whether no `.env` file may set it."""
    return _REFUSED.fullmatch(name) is not None


def mentioned_variables(spec: object, sets: Sequence[str] = ()) -> set[str]:
    """Every `${NAME}`, every `api_key_env`, the variables that its providers read, and those of commands."""
    assigned = (each.partition("=") for each in sets)
    changes = [{path.rpartition(".")[2]: value_of(text, path)} for path, _, text in assigned]
    return {*_mentioned(spec), *_mentioned(changes)}


def _mentioned(value: object, name: str = "") -> Iterator[str]:
    """`name`: of the field that holds it."""
    if isinstance(value, dict):
        if value.get("provider") == "litellm":  # it reads the key of the provider that the model's name begins with
            yield f"{str(value.get('model')).partition('/')[0].upper()}_API_KEY"
        for key, each in value.items():
            yield from _mentioned(model_fields(each) if name == "roles" else each, str(key))
    elif isinstance(value, list):
        for each in value:
            made = model_fields(each) if name == "models" else each
            yield from _mentioned(made, "" if isinstance(made, dict) else name)
    elif isinstance(value, str):
        yield from (match[1] for match in VARIABLE.finditer(value))
        if name in ("api_key_env", "env"):
            yield value
        elif name == "provider":
            yield from USUAL.get(value, ())


def read_env_file(path: str) -> dict[str, str]:
    """The assignments of a `.env` file; none if there is no such file. Other lines are skipped."""
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read(_BYTES_MAX).splitlines()
    found = filter(None, map(_LINE.match, (line for line in lines if not line.lstrip().startswith("#"))))
    return {match[1]: _unquoted(match[2]) for match in found}


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value.split(" #")[0].rstrip()
