"""What a request will come to in the end, told without asking: what the totals of a run through storms must be.

Pure. It holds where every fault that does not last ends: each has `times`, or comes with a storm that passes, and the
client asks again often enough.
"""

import msgspec
import xxhash

from holdfast.records.exchange import Answer, Message
from holdfast.testing.behaviour import ENDINGS, SHAPES, Behaviour, lasting_fault
from holdfast.testing.replies import answer_for, reshape

_canonical = msgspec.json.Encoder(order="deterministic")


def digest_of(model: str, messages: list[Message]) -> str:
    """What a request is counted under: it is the same in every protocol."""
    return xxhash.xxh3_64_hexdigest(_canonical.encode([model, messages]))


def foretell(behaviour: Behaviour, model: str, messages: list[Message]) -> Answer | str:
    """The answer, or the kind of the fault that it never gets beyond."""
    digest = digest_of(model, messages)
    fault = lasting_fault(behaviour, digest)
    answer = answer_for(behaviour, messages, digest)
    if fault is None:
        return answer
    return reshape(answer, fault.kind) if fault.kind in SHAPES or fault.kind in ENDINGS else fault.kind
