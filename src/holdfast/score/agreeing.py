"""What the repeats of a sample say of each other: `consistency`."""

from collections import Counter
from collections.abc import Sequence

from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.definition import scorer, shortened


@scorer(group=True)
def consistency(sample: Sample, answers: Sequence[Answer], ignore_case: bool = True) -> Score:
    """The share of pairs of repeats that say the same: 1 if all do, 0 if all differ. One answer has no score. Say with
    `extract` what of an answer is compared.
    """
    if len(answers) < 2:
        return Score(None, "there is one answer; consistency needs several repeats")
    texts = [answer.text.strip() for answer in answers]
    counts = Counter(text.casefold() if ignore_case else text for text in texts)
    same = sum(count * (count - 1) for count in counts.values())
    ((most, count),) = counts.most_common(1)
    return Score(same / (len(texts) * (len(texts) - 1)), f"{count} of {len(texts)} say {shortened(most)!r}")
