"""Files in messages: which part a file becomes, and where it is placed."""

from typing import Any

import pytest

from holdfast.records.keys import Reference
from holdfast.records.samples import Sample
from holdfast.solve import Prompt, Renderer


def reference(kind: str) -> str:
    return str(Reference("ab" * 32, kind))


PICTURE = reference("image/png")
WAV, MP3 = reference("audio/wav"), reference("audio/mpeg")
IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}


def messages(row: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    prompt = Prompt(files=("picture", "sound"), **fields)
    return Renderer(prompt).messages(Sample("1", row.get("input"), None, {"picture": None, "sound": None, **row}))


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (PICTURE, IMAGE),
        ("https://x/y", {"type": "image_url", "image_url": {"url": "https://x/y"}}),
        (WAV, {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}),
        (MP3, {"type": "input_audio", "input_audio": {"data": MP3, "format": "mp3"}}),
        (
            reference("application/pdf"),
            {"type": "file", "file": {"filename": "picture.pdf", "file_data": reference("application/pdf")}},
        ),
        (
            "https://x/y.pdf",
            {"type": "file", "file": {"filename": "picture.pdf", "file_data": "https://x/y.pdf"}},
        ),
    ],
)
def test_a_file_is_appended_to_the_prompt_as_its_type_requires(value: str, part: dict[str, Any]) -> None:
    made = messages({"picture": value}, prompt="What is this?")
    assert made == [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]


def test_files_follow_the_order_of_their_columns() -> None:
    made = messages({"sound": "https://x/b", "picture": [PICTURE, "https://x/a"]}, prompt="?")
    assert [part["image_url"]["url"] for part in made[0]["content"][1:]] == [PICTURE, "https://x/a", "https://x/b"]


def test_without_a_file_the_content_is_plain_text() -> None:
    assert messages({}, prompt="?") == [{"role": "user", "content": "?"}]


def test_a_file_may_be_the_whole_question() -> None:
    assert messages({"picture": PICTURE, "input": PICTURE}) == [{"role": "user", "content": [IMAGE]}]


def test_files_are_appended_to_a_conversation_in_the_row() -> None:
    said = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "I do."}]
    made = messages({"picture": PICTURE, "input": said})
    assert made[0]["content"] == [{"type": "text", "text": "Look."}, IMAGE]
    assert made[1:] == said[1:]


def test_a_file_that_a_message_places_is_not_appended_again() -> None:
    image = {"type": "image_url", "image_url": {"url": "{picture}"}}
    placed = [{"role": "user", "content": [{"type": "text", "text": "{q}:"}, image]}]
    made = messages({"picture": PICTURE, "q": "Look"}, messages=placed, prompt="And?")
    assert made[0]["content"] == [{"type": "text", "text": "Look:"}, IMAGE]
    assert made[1] == {"role": "user", "content": "And?"}


def test_a_jinja_template_may_place_a_file() -> None:
    placed = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "{{ picture }}"}}]}]
    made = messages({"picture": PICTURE}, messages=placed, prompt="And?", template="jinja")
    assert [message["content"] for message in made] == [[IMAGE], "And?"]


def test_examples_show_their_files() -> None:
    shot = Sample("s", None, "cat", {"picture": reference("image/gif"), "sound": None})
    made = messages({"picture": PICTURE}, prompt="What?", shots=(shot,))
    assert made[0]["content"][1]["image_url"]["url"] == reference("image/gif")
    assert made[2]["content"][1] == IMAGE
