"""The manifest of an Indexed Job.

SCHEMA has the fields of the Job API that the manifest may use, as the reference of Kubernetes documents them (batch/v1
Job, core/v1 Pod and ConfigMap), and refuses all others. Where `make setup` has installed the published schemas
(kubernetes-validate, which has them for every version), manifests are also checked against those.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

from holdfast.errors import UsageError
from holdfast.launch import LAUNCHERS, ClusterOptions, LaunchJob
from tests.e2e.commands import run
from tests.unit.launch.jobs import HOSTILE, MIRROR, job_in


def fields(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 1}
LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,55}[a-z0-9])?$"}
"""A DNS label, shorter by the index that the names of pods get."""
LABELS = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61})$"},
}
META = fields(["name"], name=LABEL, labels=LABELS)
KEY = {"type": "string", "pattern": "^[-._a-zA-Z0-9]+$", "maxLength": 253}
RELATIVE = {"type": "string", "pattern": r"^(?!/)(?!(.*/)?\.\.(/|$)).+$"}
CONFIG_MAP = fields(
    ["apiVersion", "kind", "metadata"],
    apiVersion={"const": "v1"},
    kind={"const": "ConfigMap"},
    metadata=META,
    data={"type": "object", "propertyNames": KEY, "additionalProperties": {"type": "string"}},
    binaryData={
        "type": "object",
        "propertyNames": KEY,
        "additionalProperties": {"type": "string", "pattern": "^[A-Za-z0-9+/]*=*$"},
    },
)
REFERENCE = fields(["name", "key"], name=TEXT, key=KEY, optional={"type": "boolean"})
VARIABLE = fields(
    ["name", "valueFrom"],
    name={"type": "string", "pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$"},
    valueFrom=fields(["secretKeyRef"], secretKeyRef=REFERENCE),
)
CONTAINER = fields(
    ["name", "image", "command"],
    name=LABEL,
    image=TEXT,
    command=listed({"type": "string"}),
    workingDir=TEXT,
    env={"type": "array", "items": VARIABLE},
    resources=fields(["requests"], requests=fields([], cpu=TEXT, memory=TEXT)),
    volumeMounts=listed(fields(["name", "mountPath"], name=LABEL, mountPath=TEXT, readOnly={"type": "boolean"})),
)
ITEM = fields(["key", "path"], key=KEY, path=RELATIVE)
VOLUME = fields(
    ["name"],
    name=LABEL,
    emptyDir={"type": "object", "maxProperties": 0},
    configMap=fields(["name"], name=LABEL, items=listed(ITEM)),
)
POD = fields(
    ["restartPolicy", "containers"],
    restartPolicy={"const": "Never"},  # podFailurePolicy needs it
    terminationGracePeriodSeconds={"type": "integer", "minimum": 0},
    containers=listed(CONTAINER),
    volumes=listed(VOLUME),
)
CODES = {"type": "array", "minItems": 1, "maxItems": 255, "uniqueItems": True, "items": COUNT}
RULE = {
    **fields(
        ["action"],
        action={"enum": ["FailJob", "FailIndex", "Ignore", "Count"]},
        onExitCodes=fields(
            ["operator", "values"], containerName=LABEL, operator={"enum": ["In", "NotIn"]}, values=CODES
        ),
        onPodConditions=listed(fields(["type", "status"], type=TEXT, status={"enum": ["True", "False", "Unknown"]})),
    ),
    "oneOf": [{"required": ["onExitCodes"]}, {"required": ["onPodConditions"]}],
}
JOB = fields(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "batch/v1"},
    kind={"const": "Job"},
    metadata=META,
    spec=fields(
        ["template", "completions"],
        completionMode={"const": "Indexed"},  # backoffLimitPerIndex needs it
        completions=COUNT,
        parallelism=COUNT,
        backoffLimitPerIndex={"type": "integer", "minimum": 0},
        podFailurePolicy=fields(["rules"], rules={**listed(RULE), "maxItems": 20}),
        template=fields(["metadata", "spec"], metadata=fields([], labels=LABELS), spec=POD),
    ),
)
SCHEMA = {"oneOf": [CONFIG_MAP, JOB]}


PUBLISHED = Path(sys.prefix, "peers", "kubernetes_validate", "kubernetes-json-schema")


def published_schemas() -> list[Path]:
    """Strict ones, which refuse unknown fields: of the first version that can run the manifest, and of the last."""
    found = {int(path.name.split(".")[1]): path for path in PUBLISHED.glob("v1.*-local-strict")}
    return [found[29], found[max(found)]] if found else []


def check_published(document: dict[str, Any], schemas: Path) -> None:
    name = f"{document['kind']}-{document['apiVersion'].replace('/', '-')}.json".lower()
    schema, definitions = (json.loads((schemas / each).read_text()) for each in (name, "_definitions.json"))
    registry = Registry().with_resources((each["$id"], Resource.from_contents(each)) for each in (schema, definitions))
    jsonschema.Draft202012Validator(schema, registry=registry).validate(document)


def documents_of(job: LaunchJob) -> list[dict[str, Any]]:
    write = LAUNCHERS["kubernetes"].write
    assert write is not None
    found = list(yaml.safe_load_all(write(job)))
    for each in found:
        jsonschema.validate(each, SCHEMA)
    return found


def container_of(job: LaunchJob) -> dict[str, Any]:
    found: dict[str, Any] = documents_of(job)[-1]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_each_index_is_a_worker_and_preemption_uses_up_no_retries(tmp_path: Path) -> None:
    spec = documents_of(job_in(tmp_path, mirror=MIRROR, grace_seconds=20))[-1]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert spec["backoffLimitPerIndex"] > 0
    rules = spec["podFailurePolicy"]["rules"]
    ignored = [each for each in rules if each["action"] == "Ignore"]
    assert ignored[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert ignored[1]["onExitCodes"]["values"] == [130]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 50
    names = {each["name"] for each in spec["template"]["spec"]["containers"]}
    assert {each["onExitCodes"]["containerName"] for each in rules if "onExitCodes" in each} == names


def test_the_published_schemas_accept_the_manifest(tmp_path: Path) -> None:
    if not published_schemas():
        pytest.skip("kubernetes-validate is not installed: make setup")
    cluster = ClusterOptions(image="registry/name:tag", secret="team", image_folder="/app")
    model = {"provider": "openai", "model": "m", "api_key_env": "MY_KEY", "options": {}}
    for chosen in (ClusterOptions(image="i"), cluster):
        documents = documents_of(job_in(tmp_path, HOSTILE, mirror=MIRROR, model=model, cluster=chosen))
        for schemas in published_schemas():
            for each in documents:
                check_published(each, schemas)
            wrong = documents[-1] | {"spec": documents[-1]["spec"] | {"backoffLimitPerShard": 1}}
            with pytest.raises(jsonschema.ValidationError, match="backoffLimitPerShard"):
                check_published(wrong, schemas)


def test_the_files_of_the_config_map_are_a_spec_that_passes_its_check(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("async def solve(sample, ctx):\n    return await ctx.generate()\n")
    job = job_in(tmp_path / "own", HOSTILE, task={"solver": "mine:solve"}, mirror=MIRROR)
    config, made = documents_of(job)
    volumes = {each["name"]: each for each in made["spec"]["template"]["spec"]["volumes"]}
    assert volumes["spec"]["configMap"]["name"] == config["metadata"]["name"]
    pod = tmp_path / "pod"
    for item in volumes["spec"]["configMap"]["items"]:
        (pod / item["path"]).parent.mkdir(parents=True, exist_ok=True)
        (pod / item["path"]).write_text(config["data"][item["key"]])
    assert sorted(each.name for each in pod.iterdir()) == ["eval.yaml", "mine.py", "sums.jsonl"]
    command = [word.replace("$$", "$") for word in container_of(job)["command"]]
    assert command[:5] == ["holdfast", "run", "eval.yaml", "--id", HOSTILE]
    assert command[-2:] == ["--shards", "4"]
    checked = run("check", command[2], cwd=pod)
    assert (checked.code, checked.err) == (0, "")


def test_a_file_that_is_no_text_is_kept_byte_for_byte(tmp_path: Path) -> None:
    job = job_in(tmp_path, mirror=MIRROR)
    (tmp_path / "sums.jsonl").write_bytes(b"\xff\xfe\x00")
    config = documents_of(job)[0]
    assert [base64.b64decode(each) for each in config["binaryData"].values()] == [b"\xff\xfe\x00"]


def test_no_word_of_the_command_is_expanded(tmp_path: Path) -> None:
    words = container_of(job_in(tmp_path, "$(HOME) $$(X)", mirror=MIRROR))["command"]
    assert "$$(HOME) $$$$(X)" in words


def test_keys_come_from_a_secret(tmp_path: Path) -> None:
    model = {"provider": "openai", "model": "m", "api_key_env": "MY_KEY", "options": {}}
    job = job_in(tmp_path, mirror=MIRROR, model=model, cluster=ClusterOptions(image="i", secret="team"))
    found = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container_of(job)["env"]}
    assert found["MY_KEY"] == {"name": "team", "key": "MY_KEY"}
    assert found["AWS_ACCESS_KEY_ID"] == {"name": "team", "key": "AWS_ACCESS_KEY_ID", "optional": True}


def test_a_folder_of_the_image_needs_no_config_map(tmp_path: Path) -> None:
    job = job_in(tmp_path, mirror=MIRROR, cluster=ClusterOptions(image="i", image_folder="/app"))
    (made,) = documents_of(job)
    assert container_of(job)["workingDir"] == "/app"
    assert [each["name"] for each in made["spec"]["template"]["spec"]["volumes"]] == ["runs"]


@pytest.mark.parametrize(
    ("mirror", "problem"),
    [
        (None, "the run needs a mirror in an object store"),
        ({"url": "file:///mnt/evals"}, "the run needs a mirror in an object store"),
        ({**MIRROR, "exclusive": False}, "nobody claims shards in a mirror with exclusive: false"),
    ],
)
def test_a_run_without_an_object_store_is_refused(tmp_path: Path, mirror: dict[str, Any] | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        documents_of(job_in(tmp_path, mirror=mirror))


def test_a_job_without_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--image"):
        documents_of(job_in(tmp_path, mirror=MIRROR, cluster=ClusterOptions()))


def test_data_that_no_config_map_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than a ConfigMap can hold"):
        documents_of(job_in(tmp_path, rows=20_000, mirror=MIRROR))
    outside = tmp_path / "rows.jsonl"
    outside.write_text('{"question": "1", "answer": "1"}\n')
    with pytest.raises(UsageError, match="outside of the folder of the spec"):
        documents_of(job_in(tmp_path / "inner", task={"dataset": {"path": str(outside)}}, mirror=MIRROR))


def test_jobs_with_similar_names_do_not_share_a_name(tmp_path: Path) -> None:
    names = [documents_of(job_in(tmp_path, each, mirror=MIRROR))[-1]["metadata"]["name"] for each in ("a b", "a-b")]
    assert names[0] != names[1]
    assert all(len(name) <= 57 for name in names)
