"""Which tokens of a prompt belong to the continuation: offsets, BOS, split characters, and what is refused."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.likelihood import (
    LikelihoodTexts,
    PromptToken,
    likelihood_messages,
    likelihood_texts,
    score_continuation,
)
from holdfast.models.provider import ModelError

PARIS = LikelihoodTexts("The capital is", " New York")
WORDS = ["The", " capital", " is", " New", " York"]


def tokens_of(
    texts: Sequence[str | None], offsets: Sequence[int] | None = None, first: float | None = None
) -> list[PromptToken]:
    """Tokens whose log-probabilities are -1, -2, …; the first has the one that is given."""
    places: Sequence[int | None] = offsets or [None] * len(texts)
    return [
        PromptToken(text, first if number == 0 else -float(number), place)
        for number, (text, place) in enumerate(zip(texts, places, strict=True))
    ]


def summed(texts: Sequence[str]) -> list[int]:
    """Offsets as vLLM counts them: the lengths of all tokens before, also of BOS."""
    return [sum(map(len, texts[:index])) for index in range(len(texts))]


def scored(tokens: Sequence[PromptToken], texts: LikelihoodTexts = PARIS, generated: int = 1) -> list[str | None]:
    return [each.text for each in score_continuation(tokens, texts, generated)]


def refusal(tokens: Sequence[PromptToken], texts: LikelihoodTexts = PARIS, generated: int = 1) -> str:
    with pytest.raises(ModelError) as caught:
        score_continuation(tokens, texts, generated)
    assert caught.value.kind == "bad_request"
    return caught.value.message


@pytest.mark.parametrize(
    ("words", "offsets", "generated"),
    [
        pytest.param([*WORDS, "."], summed([*WORDS, "."]), 1, id="plain"),
        pytest.param(["<s>", *WORDS, "."], summed(["<s>", *WORDS, "."]), 1, id="BOS with a length"),
        pytest.param(["<s>", *WORDS, "."], [0, *summed([*WORDS, "."])], 1, id="BOS without a length"),
        pytest.param(["", *WORDS, "."], [0, *summed([*WORDS, "."])], 1, id="BOS without a text"),
        pytest.param(WORDS, summed(WORDS), 0, id="nothing generated"),
        pytest.param(WORDS, summed(WORDS), 1, id="the generated token is counted but not listed"),
        pytest.param([*WORDS, "."], [-1] * 6, 1, id="no offsets, as SGLang sends them"),
        pytest.param(["[gMASK]", "<sop>", *WORDS, "."], summed(["[gMASK]", "<sop>", *WORDS, "."]), 1, id="two kinds"),
    ],
)
def test_only_the_tokens_of_the_continuation_are_scored(words: list[str], offsets: list[int], generated: int) -> None:
    assert scored(tokens_of(words, offsets), PARIS, generated) == [" New", " York"]
    assert scored(tokens_of(words), PARIS, generated if len(words) > 5 else 0) == [" New", " York"]


def test_a_bos_is_never_counted_even_if_the_context_is_empty() -> None:
    texts = LikelihoodTexts("", "New York")
    words = ["<s>", "New", " York", "."]
    assert scored(tokens_of(words, summed(words)), texts) == ["New", " York"]


def test_without_a_bos_an_empty_context_is_refused() -> None:
    words = ["New", " York", "."]
    said = refusal(tokens_of(words, summed(words)), LikelihoodTexts("", "New York"))
    assert "the token 'New' of the continuation has no log-probability: begin the prompt with some text" in said


@pytest.mark.parametrize("prompt", [PARIS, LikelihoodTexts("<s>The capital is", " New York")])
def test_two_bos_are_refused(prompt: LikelihoodTexts) -> None:
    words = ["<s>", "<s>", *WORDS, "."]
    assert "begins with two BOS tokens ('<s>')" in refusal(tokens_of(words, summed(words)), prompt)


def test_two_bos_are_refused_if_the_text_of_the_first_is_not_known() -> None:
    assert "begins with two BOS tokens ('<s>')" in refusal(tokens_of([None, "<s>", *WORDS]), generated=0)


def test_a_word_that_the_prompt_repeats_is_no_bos() -> None:
    words = ["ha", "ha", " ho", "."]
    assert scored(tokens_of(words, summed(words)), LikelihoodTexts("haha", " ho")) == [" ho"]


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_token_of_both_texts_is_refused_by_name(is_counted: bool) -> None:
    words = ["The", " capital", " is New", " York", "."]
    said = refusal(tokens_of(words, summed(words) if is_counted else None))
    assert said.startswith("the token ' is New' holds the end of the context and the beginning of the continuation")
    assert "\n" not in said


def test_a_token_of_both_texts_is_refused_where_the_first_token_is_not_known() -> None:
    said = refusal(tokens_of([None, "The", "\ufffd", " is New", " York"]), LikelihoodTexts("The é is", " New York"), 0)
    assert "the token ' is New' holds" in said


def test_the_last_token_may_hold_all_of_the_continuation_and_more_before_it() -> None:
    words = ["a", " b c", "."]
    assert "the token ' b c' holds" in refusal(tokens_of(words, summed(words)), LikelihoodTexts("a b", " c"))


def test_characters_that_are_split_over_tokens_are_found_from_the_side_that_is_whole() -> None:
    in_context = ["<s>", "A", " \ufffd", "\ufffd", " yes", "."]
    assert scored(tokens_of(in_context, summed(in_context)), LikelihoodTexts("A 🌍", " yes")) == [" yes"]
    in_continuation = ["<s>", "A", " yes", " \ufffd", "\ufffd", "\ufffd", "."]
    found = scored(tokens_of(in_continuation, summed(in_continuation)), LikelihoodTexts("A", " yes 🌍"))
    assert found == [" yes", " \ufffd", "\ufffd", "\ufffd"]


def test_offsets_of_the_server_count_where_tokens_have_no_text() -> None:
    words = ["A", " yes", "bytes: \\xf0\\x9f", "bytes:\\x8c\\x8d", "."]
    assert scored(tokens_of(words, [0, 1, 5, 6, 7]), LikelihoodTexts("A", " yes 🌍")) == words[1:4]


def test_a_full_stop_at_the_end_is_not_taken_for_the_generated_token() -> None:
    """The split character makes the server's offsets one too large, so that "." seems to begin behind the prompt."""
    words = ["A", "\ufffd", "\ufffd", " yes", ".", "!"]
    assert scored(tokens_of(words, summed(words)), LikelihoodTexts("Aé", " yes.")) == [" yes", "."]


def test_tokens_that_are_not_the_prompt_are_refused() -> None:
    said = refusal(tokens_of(["An", "other", " text", "."]))
    assert said == "the tokens of the response do not add up to the prompt, so those of the continuation are not known"


PIECES = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6)


@given(
    PIECES,
    PIECES,
    st.sampled_from(["", "<s>", None]),
    st.sampled_from(["exact", "counting BOS", "useless", "missing"]),
    st.booleans(),
    st.booleans(),
)
def test_any_split_of_two_texts_is_found_or_refused(
    before: list[str], after: list[str], bos: str | None, counting: str, ends: bool, straddles: bool
) -> None:
    """`bos`: None for no BOS. `ends`: the response ends with a generated token."""
    texts = LikelihoodTexts("".join(before), "".join(after))
    middle = [before[-1] + after[0]] if straddles else [before[-1], after[0]]
    prompt = [*before[:-1], *middle, *after[1:]]
    words = [*([] if bos is None else [bos]), *prompt, *(["!"] if ends else [])]
    own = summed([*prompt, "!"])[: len(prompt) + ends]
    offsets = {
        "exact": [*([] if bos is None else [0]), *own],
        "counting BOS": summed(words),
        "useless": [-1] * len(words),
        "missing": None,
    }[counting]
    tokens = tokens_of(words, offsets)
    try:
        found = score_continuation(tokens, texts, int(ends))
    except ModelError as error:
        assert straddles or "BOS" in error.message or found_twice(words), error  # noqa: PT017 - it may also succeed
    else:
        assert not straddles
        assert found == tokens[len(words) - ends - len(after) : len(words) - ends]


def found_twice(words: list[str]) -> bool:
    """Whether the first token looks like BOS because the next one repeats it."""
    return len(words) > 1 and words[0] == words[1]


def test_only_two_texts_make_a_likelihood_request() -> None:
    assert likelihood_texts(likelihood_messages("a", " b")) == LikelihoodTexts("a", " b")
    for messages in ([], [{"role": "user", "content": "a"}], ["text"]):
        assert likelihood_texts(messages) is None
    for messages in (likelihood_messages("a", ""), likelihood_messages("a", " b")[1:]):
        with pytest.raises(ModelError, match="nothing was sent"):
            likelihood_texts(messages)
