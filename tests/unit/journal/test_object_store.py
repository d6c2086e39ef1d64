"""Objects: names as they are written, in every cloud and in a folder alike."""

import os
from pathlib import Path

import pytest

from holdfast.errors import StoreError, UsageError
from holdfast.journal.object_store import StoredObjects, open_objects
from tests.stores import EVERY_KIND, Bucket

STRANGE = ["plain", "a b", "user@host", "100%", "a%20b", "a+b", "Größe", "日本", "e\u0301", "q?x=1", "h#1x", "[x]{y}~"]

SECRET = "very+secret/keys"


@pytest.fixture(params=EVERY_KIND)
def kind_of_store(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def objects(bucket: Bucket) -> StoredObjects:
    return open_objects(f"{bucket.url}/some/folder")


@pytest.mark.parametrize("part", STRANGE)
def test_a_name_comes_back_as_it_was_written(bucket: Bucket, part: str) -> None:
    if "?" in part and not bucket.url.startswith("file:"):
        with pytest.raises(UsageError, match="a query"):
            open_objects(f"{bucket.url}/top {part}")
        return
    place = open_objects(f"{bucket.url}/top {part}").below(f"run {part}")
    place.put(f"journal/{part}", b"content")
    assert place.get(f"journal/{part}") == b"content"
    assert b"".join(place.pieces(f"journal/{part}")) == b"content"
    assert [each.name for each in place.listed("")] == [f"journal/{part}"]
    assert [each.name for each in place.listed("journal")] == [f"journal/{part}"]
    again = open_objects(place.url)
    assert [(each.name, each.size) for each in again.listed("")] == [(f"journal/{part}", 7)]
    assert open_objects(bucket.url).folders("") == [f"top {part}"]
    assert open_objects(f"{bucket.url}/top {part}").folders("") == [f"run {part}"]
    again.delete(f"journal/{part}")
    assert list(place.listed("")) == []


def test_names_that_look_alike_once_decoded_are_two_objects(objects: StoredObjects) -> None:
    for name in ("a%20b", "a b", "a%2520b", "a+b"):
        objects.put(name, name.encode())
    assert {each.name for each in objects.listed("")} == {"a%20b", "a b", "a%2520b", "a+b"}
    assert all(objects.get(each.name) == each.name.encode() for each in objects.listed(""))


def test_a_url_of_a_folder_with_escapes_is_that_very_folder(tmp_path: Path) -> None:
    open_objects(f"file://{tmp_path}/a%20b @x").put("c", b"1")
    assert (tmp_path / "a%20b @x" / "c").read_bytes() == b"1"


def test_a_create_of_what_is_there_is_refused_and_changes_nothing(objects: StoredObjects) -> None:
    assert objects.create("lease/1", b"mine")
    assert not objects.create("lease/1", b"yours")
    assert objects.get("lease/1") == b"mine"


def test_a_put_replaces(objects: StoredObjects) -> None:
    objects.put("x", b"long content")
    objects.put("x", b"short")
    assert objects.get("x") == b"short"


def test_a_file_is_put_as_it_is_also_one_of_many_parts(objects: StoredObjects, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 50_000)
    objects.put_file("big", str(file))
    assert b"".join(objects.pieces("big")) == file.read_bytes()
    assert objects.get("big", 100, 200) == file.read_bytes()[100:200]


def test_what_is_not_there_is_none_when_got_an_error_when_streamed_and_nothing_to_delete(
    objects: StoredObjects,
) -> None:
    assert objects.get("nothing") is None
    assert objects.get("nothing", 0, 10) is None
    with pytest.raises(StoreError, match="nothing"):
        b"".join(objects.pieces("nothing"))
    objects.delete("nothing")
    assert list(objects.listed("")) == []
    assert list(objects.listed("deeper")) == []
    assert objects.folders("") == []


def test_a_list_takes_a_folder_and_not_what_its_name_begins(objects: StoredObjects) -> None:
    for name in ("lease/1", "lease2/1", "lease/deep/er", "lease.x"):
        objects.put(name, b"")
    assert sorted(each.name for each in objects.listed("lease")) == ["lease/1", "lease/deep/er"]
    assert sorted(objects.folders("")) == ["lease", "lease2"]


@pytest.mark.long
def test_many_objects_are_all_listed(objects: StoredObjects) -> None:
    for number in range(1100):
        objects.put(f"many/{number:04d}", b"")
    assert [each.name for each in sorted(objects.listed("many"), key=lambda each: each.name)] == [
        f"many/{number:04d}" for number in range(1100)
    ]


@pytest.mark.parametrize("url", ["ftp://x/y", "nothing", "s3://", "s3:///folder", "http://x"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"URL of a store|names no bucket"):
        open_objects(url)


def test_for_a_plain_path_the_error_shows_the_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"for a folder write file:///var/a b$"):
        open_objects("/var/a b")
    with pytest.raises(UsageError, match=f"for a folder write file://{tmp_path}/here$"):
        open_objects("./here")
    with pytest.raises(UsageError, match=r"file://$"):
        open_objects("s3:/bucket")


def test_a_look_makes_no_folder(tmp_path: Path) -> None:
    objects = open_objects(f"file://{tmp_path}/not/there")
    assert list(objects.listed("")) == []
    assert objects.get("x") is None
    assert objects.folders("") == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_one_line_without_credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.env.items():
        if "KEY" in name or "TOKEN" in name:
            monkeypatch.setenv(name, SECRET)
        elif value.startswith("http:"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
    objects = open_objects(f"{bucket.url}/x" if bucket.env else "file:///proc/nowhere")
    with pytest.raises(StoreError) as raised:
        objects.put("a", b"")
    assert "\n" not in str(raised.value)
    assert SECRET not in str(raised.value)
    assert not bucket.env or "127.0.0.1:9 cannot be reached" in str(raised.value)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[mirror\]'"):
        open_objects("s3://bucket/evals")


def test_a_folder_store_syncs_every_folder_that_it_may_have_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss takes the folder of the run, with all that was synced in it."""
    synced: list[int] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    def numbers(*paths: Path) -> list[int]:
        return [os.stat(path).st_ino for path in paths]

    monkeypatch.setattr("os.fsync", watched)
    place = open_objects(f"file://{tmp_path}/mirror").below("experiment/run")
    run = tmp_path / "mirror" / "experiment" / "run"
    inside = run / "journal" / "000001"
    place.put("journal/000001/x", b"content")
    above = (tmp_path, tmp_path / "mirror", tmp_path / "mirror" / "experiment")
    assert {*numbers(inside / "x", inside, run / "journal", run, *above)} <= {*synced}
    synced.clear()
    place.put("journal/000001/y", b"content")
    assert synced == numbers(inside / "y", inside, run / "journal", run), "what is above was there"
