"""Which files are meant by a configuration and a split."""

from typing import Any

import pytest

from holdfast.datasets.hub_layout import choose_split, find_splits, refuse_incomplete
from holdfast.errors import DataError

CARD: dict[str, Any] = {
    "configs": [
        {
            "config_name": "main",
            "default": True,
            "data_files": [
                {"split": "train", "path": "main/train-*"},
                {"split": "test", "path": ["main/test-*", "main/more/**/test-*"]},
            ],
        },
        {"config_name": "socratic", "data_files": {"train": "socratic/train-*"}},
        {"config_name": "whole", "data_files": "whole.csv"},
        {"config_name": "folder", "data_dir": "sub"},
    ]
}
FILES = [
    "README.md",
    "main/more/deep/er/test-00000-of-00001.parquet",
    "main/test-00000-of-00001.parquet",
    "main/train-00000-of-00002.parquet",
    "main/train-00001-of-00002.parquet",
    "socratic/train-00000-of-00001.parquet",
    "sub/dev.jsonl",
    "sub/test.jsonl",
    "whole.csv",
]


def files_of(files: list[str], config: str = "", split: str = "", card: dict[str, Any] | None = None) -> list[str]:
    return list(choose_split(find_splits(files, card or {}, split), config, split, "hub x", files).files)


def test_the_card_decides() -> None:
    assert files_of(FILES, "main", "train", CARD) == FILES[3:5]
    assert files_of(FILES, "", "test", CARD) == [FILES[2], FILES[1]]
    assert files_of(FILES, "socratic", "", CARD) == [FILES[5]]
    assert files_of(FILES, "whole", "train", CARD) == ["whole.csv"]
    assert files_of(FILES, "folder", "test", CARD) == ["sub/test.jsonl"]


@pytest.mark.parametrize(
    ("files", "config", "split", "found"),
    [
        (["main/test-00000-of-00001.parquet", "main/train-0.parquet"], "main", "test", 0),
        (["data/test-00000-of-00001-a1b2.parquet", "data/train.parquet"], "", "train", 1),
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], "", "test", 1),
        (["test.jsonl", "train.jsonl", "README.md"], "", "test", 0),
        (["main/test.jsonl", "p1/test.jsonl", "p2/test.jsonl"], "p1", "test", 1),
        (["gsm_test.csv", "gsm_train.csv"], "gsm", "train", 1),
        (["mgsm_de.tsv", "mgsm_en.tsv"], "mgsm_en", "", 1),
        (["gpqa_diamond.csv", "gpqa_main.csv"], "gpqa_diamond", "train", 0),
        (["default/validation/0000.parquet", "default/test/0000.parquet"], "default", "validation", 0),
        (["bn/test/0000.parquet", "en/test/0000.parquet"], "en", "test", 1),
        (["all/dev-00000-of-00001.parquet", "all/test-00000-of-00001.parquet"], "all", "dev", 0),
        (["data/algebra/test-00000-of-00001.parquet", "data/geometry/test.parquet"], "algebra", "test", 0),
        (["boolean_expressions.json", "data.txt"], "boolean_expressions", "", 0),
        (["dataset_infos.json", "SuperGPQA-all.jsonl"], "", "", 1),
        (["abstract_algebra/auxiliary_train.jsonl.gz"], "abstract_algebra", "auxiliary_train", 0),
        (["test.csv", "test.jsonl", "test.parquet"], "", "test", 2),
        (["simple_qa_test_set.csv", "README.md"], "", "test", 0),
        (["human_eval_a.jsonl", "human_eval_b.jsonl"], "human_eval_b", "", 1),
    ],
)
def test_the_usual_layouts_are_recognised(files: list[str], config: str, split: str, found: int) -> None:
    assert files_of(files, config, split) == [files[found]]


@pytest.mark.parametrize(
    ("config", "split", "words"),
    [
        ("mian", "test", "there is no config 'mian'; did you mean 'main'? there are: main, socratic, whole, folder"),
        ("main", "tset", "there is no split 'tset' in the config 'main'; did you mean 'test'? there are: train, test"),
        ("main", "", "there are several splits; set dataset.split to one of: train, test"),
    ],
)
def test_an_error_lists_what_there_is(config: str, split: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        files_of(FILES, config, split, CARD)
    assert str(caught.value) == f"hub x: {words}"


def test_several_configs_without_a_default_are_an_error() -> None:
    with pytest.raises(DataError, match=r"there are several configs; set dataset.config to one of: a, b"):
        files_of(["a/test.jsonl", "b/test.jsonl"], "", "test")


def test_a_repository_without_data_says_what_it_has() -> None:
    with pytest.raises(DataError, match=r"made by a script.*refs/convert/parquet"):
        files_of(["README.md", "mgsm.py"], "en", "test")
    with pytest.raises(DataError, match=r"there are no Parquet, .*; the files are: README.md, data.zip"):
        files_of(["README.md", "data.zip"])


def test_a_declared_split_without_files_lists_the_files() -> None:
    card = {"configs": [{"config_name": "default", "data_files": [{"split": "test", "path": "nothing-*"}]}]}
    with pytest.raises(DataError, match=r"no file matches the split 'test'; the files are: train.jsonl"):
        files_of(["train.jsonl"], "", "test", card)


def test_a_split_with_missing_parts_is_refused() -> None:
    files = ["data/test-00000-of-00002.parquet"]
    found = choose_split(find_splits(files, {}), "", "test", "hub x", files)
    with pytest.raises(DataError, match="only some files of the split 'test' are there"):
        refuse_incomplete(found, "hub x")


@pytest.mark.parametrize("pattern", ["[z-a]*", "*a*a*a*a*a*a*a*a*a*b", "https://elsewhere/test.jsonl", "../x"])
def test_a_pattern_of_a_card_cannot_do_harm(pattern: str) -> None:
    card = {"configs": [{"data_files": pattern}]}
    with pytest.raises(DataError, match=r"no file matches the split 'train'"):
        files_of(["a" * 200, "test.jsonl"], "", "", card)


def test_a_pattern_may_choose_and_exclude_letters() -> None:
    card = {"configs": [{"data_files": {"a": "[ab].csv", "b": "[!ab].csv"}}]}
    assert files_of(["a.csv", "c.csv"], "", "a", card) == ["a.csv"]
    assert files_of(["a.csv", "c.csv"], "", "b", card) == ["c.csv"]


@pytest.mark.parametrize("card", [{"configs": "x"}, {"configs": [1, None]}, {"configs": [{}]}, {"configs": []}])
def test_a_card_that_declares_nothing_useful_does_no_harm(card: dict[str, Any]) -> None:
    assert files_of(["test.jsonl"], "", "test", card) == ["test.jsonl"]
