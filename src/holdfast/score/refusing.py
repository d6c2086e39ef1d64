"""Whether an answer declines to answer: what servers say themselves, and a short list of how models begin to.

Only short answers that begin so count. "I cannot find an error in this code" is an answer; so is "that cannot be
known". The list is in docs/anomalies.md.
"""

# ruff: noqa: RUF001 - signs of other languages are meant
import re

from holdfast.records.exchange import Answer

_LONGEST = 1000
_HEAD = 200
_CLAUSE = r"(?:[^.!?\n。！]{0,60}[,.!，。、！:;]\s*(?:but |aber |mais |pero |mas |ma |но )?)?"
_ENGLISH = (
    r"i(?:'m| am) (?:unable|not (?:able|going|comfortable|allowed|permitted|programmed|designed)) to ",
    r"i (?:can't|cannot|can not|won't|will not|must decline to|have to decline to|must refuse to) ",
)
_DECLINED = (
    r"(?:help\b(?! but)|(?:assist|comply|fulfil+|provide|support|engage)\b|"
    r"(?:participate|discuss|continue with|do that|do this)\b|"
    r"(?:create|generate|write|produce|share)\b[^.\n]{0,60}\b"
    r"(?:content|material|instructions|story|stories|information|malware|that|such)\b)"
)
_LISTS = (
    *(begins + _DECLINED for begins in _ENGLISH),
    r"(?:dabei|damit|hierbei|das) (?:kann|darf|werde) ich[^.\n]{0,40} nicht (?:weiter)?(?:helfen|unterstützen|tun)",
    r"ich (?:kann|darf|werde)[^.\n]{0,60} nicht (?:weiter)?(?:helfen|unterstützen|behilflich sein|bereitstellen)",
    r"je ne (?:peux|puis) pas (?:vous |t')?(?:aider|assister|fournir|répondre à cette demande)",
    r"no puedo (?:ayudar|asistir|proporcionar|cumplir)",
    r"não posso (?:ajudar|fornecer|atender)",
    r"non posso (?:aiutar|fornire|assister)",
    r"(?:я )?не могу (?:вам )?(?:помочь|предоставить|выполнить эт)",
    r"(?:但?我)?(?:无法|不能|無法)(?:为您|为你|為您)?(?:提供|协助|協助|帮助|幫助|满足|滿足)",
    r"[^。\n]{0,30}(?:お手伝い|お答え|お応え|ご提供|提供)(?:することは|することが|は)?でき(?:ません|かねます)",
    r"[^.\n]{0,30}(?:도와드릴|도움을 드릴|제공할) 수 없",
)
_NEGATIVE = re.compile(
    r"can't|cannot|can not|won't|will not|decline|refuse|unable|not (?:able|going|comf|allow|permi|progr|desig)|"
    r"nicht|pas |no puedo|posso|не могу|无法|不能|無法|でき|수 없"
)
_REFUSES = re.compile(_CLAUSE + f"(?:{'|'.join(_LISTS)})")


def refusal_in(answer: Answer) -> str:
    """What shows that an answer is a refusal; empty if it is none."""
    if answer.finish_reason == "refusal" or answer.message.get("refusal"):
        return "the server says so"
    text = answer.text
    if not text or len(text) > _LONGEST:
        return ""
    head = text.lstrip()[:_HEAD].lower().replace("\u2019", "'")
    if _NEGATIVE.search(head) is None or (found := _REFUSES.match(head)) is None:
        return ""
    return f"it begins: {' '.join(found[0].split())!r}"
