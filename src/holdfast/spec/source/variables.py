"""`${VAR}` in the `options` and `params` of models: stored as written, replaced when a request is made.

Both may hold secrets. Numbers, and parameters that every server knows (`temperature`, `stop`), are no secrets: they are
replaced when the spec is read, so that they are validated, and compared when a run is resumed. Other texts are compared
as written, so another key in the same variable is no drift. Earlier versions stored the values of the variables;
`adopt_stored` recognises such runs.

The `.env` file of the current folder: it provides the variables that a spec mentions, and nothing else.

A `.env` file may come with a downloaded folder. Therefore it cannot set variables that control this program, its child
processes or their trust settings (sandbox, proxies, certificates, search paths), even if the spec mentions them. A
variable that is already set keeps its value.
"""

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from holdfast.spec.providers import default_key_variables, model_fields
from holdfast.spec.sampling_parameters import RULES
from holdfast.spec.source.text import VARIABLE, fill_in, parse_variable, value_of
from holdfast.spec.types import Model, Spec

_LATE = re.compile(r"(?:models\[\d+\]|roles\..+?|defaults)\.(options|params)(?:\.(\w+))?.*")


def is_late(place: str) -> bool:
    """Whether a text at this place of a spec keeps its variables until a request is made."""
    found = _LATE.fullmatch(place)
    if found is None:
        return False
    # A parameter that every server knows cannot be a secret, unless it is a mapping that holds one.
    rule = RULES.get(found[2] or "") if found[1] == "params" else None
    return rule is None or rule.expected == "a mapping"


def fill_params(params: Mapping[str, Any], environ: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the parameters to send. A value that is exactly one variable becomes a number if it looks like one,
    unless it is a credential.
    """
    return {name: _fill(value, environ, f"{place}.params.{name}", is_typed=True) for name, value in params.items()}


def fill_options(options: Mapping[str, Any], environ: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the options with their variables replaced. All values stay text."""
    return {name: _fill(value, environ, f"{place}.options.{name}", is_typed=False) for name, value in options.items()}


def _fill(value: Any, environ: Mapping[str, str], place: str, *, is_typed: bool) -> Any:
    if isinstance(value, dict):
        return {name: _fill(each, environ, f"{place}.{name}", is_typed=is_typed) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, environ, f"{place}[{i}]", is_typed=is_typed) for i, each in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    text, whole = fill_in(value, environ, place), VARIABLE.fullmatch(value)
    return text if whole is None or not is_typed else parse_variable(text, whole[1], place)


def variables_in(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return every variable in a part of a spec, as (field that holds it, variable)."""
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in variables_in(each, str(key))]
    if isinstance(value, list):
        return [found for each in value for found in variables_in(each, name)]
    return [(name, match[1]) for match in VARIABLE.finditer(value)] if isinstance(value, str) else []


def adopt_stored(given: Spec, stored: Spec, environ: Mapping[str, str] = os.environ) -> Spec:
    """Return the given spec with the stored `options` and `params` wherever the given ones have the same values."""
    before = {model.name: model for model in stored.models}
    models = [_adopt(model, before.get(model.name), environ) for model in given.models]
    roles = {name: _adopt(role, stored.roles.get(name), environ) for name, role in given.roles.items()}
    if models == given.models and roles == given.roles:
        return given
    return msgspec.structs.replace(given, models=models, roles=roles)


def _adopt(given: Model, stored: Model | None, environ: Mapping[str, str]) -> Model:
    if stored is None or not variables_in([given.options, given.params]):
        return given
    options, params = fill_options(given.options, environ, given.name), fill_params(given.params, environ, given.name)
    if options == stored.options:
        given = msgspec.structs.replace(given, options=stored.options)
    return msgspec.structs.replace(given, params=stored.params) if params == stored.params else given


PATH = ".env"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_BYTES_MAX = 1 << 20
_REFUSED = re.compile(
    r"(HOLDFAST|LD|DYLD|XDG|GIT|DOCKER|NODE)_.*|PYTHON.*|.*_PROXY|.*SSL_.*|.*_CA_(BUNDLE|CERTS)"
    r"|PATH|HOME|TMPDIR|TMP|TEMP|SHELL|ENV|BASH_ENV|IFS"
    # where object stores are, and which files or servers give them their credentials
    r"|AWS_(ENDPOINT.*|.*_ENDPOINT|PROFILE|ROLE_.*|CONTAINER_.*|.*_FILE)"
    r"|AZURE_(STORAGE_)?(ENDPOINT|AUTHORITY_HOST|ACCOUNT_NAME|USE_EMULATOR)|AZURE_(MSI|IDENTITY)_ENDPOINT"
    r"|AZURE_FABRIC_.*|AZURE_FEDERATED_TOKEN_FILE"
    r"|GOOGLE_(BASE_URL|APPLICATION_CREDENTIALS|SERVICE_ACCOUNT.*)"
    r"|HF_(?!TOKEN$).*|HUGGING_?FACE_.*",  # where the Hub is: it gets the user's token
    re.IGNORECASE,  # programs read http_proxy as well as HTTP_PROXY
)
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
_MIRROR_CREDENTIALS = {"s3": _AWS, "s3a": _AWS, "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN")}
"""Credentials of a mirror by URL scheme. The account of `az` and the service account of `gs` are not among them: they
determine the server, and a downloaded file must not redirect the run's answers."""
_REGION = re.compile(r"[a-z0-9-]{1,40}")
"""The region becomes part of the store's host name, so it must not contain dots or slashes."""


def fill_environment(
    spec: object, sets: Sequence[str] = (), environ: MutableMapping[str, str] = os.environ, path: str = PATH
) -> None:
    """Set the variables in the file that the spec or a `--set` mentions, unless they are already set."""
    mentioned = mentioned_variables(spec, sets)
    for name, value in read_env_file(path).items():
        if name in mentioned and not is_refused(name, value):
            environ.setdefault(name, value)


def refused_variables(environ: Mapping[str, str] = os.environ, path: str = PATH) -> list[str]:
    """Return the variables in the file that it may not set and that have no value from elsewhere."""
    found = read_env_file(path).items()
    return [name for name, value in found if is_refused(name, value) and name not in environ]


def is_refused(name: str, value: str = "") -> bool:
    """Whether a `.env` file may not set this variable, or not to this value."""
    is_region = name in ("AWS_REGION", "AWS_DEFAULT_REGION")
    return _REFUSED.fullmatch(name) is not None or (is_region and value != "" and not _REGION.fullmatch(value))


def mentioned_variables(spec: object, sets: Sequence[str] = ()) -> set[str]:
    """Return every `${NAME}`, every `api_key_env`, the variables that its providers read, those of commands, the token
    of the Hub if it is used, and the credentials of its mirror.
    """
    assigned = [(path, value_of(text, path)) for path, _, text in (each.partition("=") for each in sets)]
    changes = [{path.rpartition(".")[2]: value} for path, value in assigned]
    mirrors = [spec.get("mirror")] if isinstance(spec, dict) else []
    mirrors += [value for path, value in assigned if path in ("mirror", "mirror.url")]
    found = {*_mentioned(spec), *_mentioned(changes)}
    for mirror in mirrors:
        url = mirror.get("url") if isinstance(mirror, dict) else mirror
        if isinstance(url, str):
            found.update(_MIRROR_CREDENTIALS.get(url.partition("://")[0], ()))
    return found


def _mentioned(value: object, name: str = "") -> Iterator[str]:
    """`name` is the field that holds the value."""
    if isinstance(value, dict):
        if value.get("provider") == "litellm":  # litellm reads the key of the provider before the slash
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
            yield from default_key_variables(value)
        elif name == "hub":
            yield "HF_TOKEN"


def read_env_file(path: str) -> dict[str, str]:
    """Return the assignments of a `.env` file; empty if there is no such file. Other lines are skipped."""
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read(_BYTES_MAX).splitlines()
    found = filter(None, map(_LINE.match, (line for line in lines if not line.lstrip().startswith("#"))))
    assignments = {}
    for match in found:
        name, value = match[1], match[2]
        is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
        assignments[name] = value[1:-1] if is_quoted else value.split(" #")[0].rstrip()
    return assignments
