"""How many tokens a text is, about: without a tokenizer, without the network, whatever the text holds.

Each model has a tokenizer of its own, and most are not public or have to be fetched; so this counts pieces as they all
cut them (words, groups of digits, marks, single signs of scripts without spaces) and says how far off it may be. A
text such as `<|endoftext|>` is text like any other.
"""

import math
import re

from holdfast.records.samples import Message

LEAST, MOST = 0.65, 1.5
"""The real number is between so many times what is counted here: measured with two public tokenizers on English, code,
JSON, sums and 15 other languages. An older tokenizer may need more for scripts that it cuts into bytes.
"""
_A_MESSAGE = 4
"""What a message takes beside its text: its role, and where it begins and ends."""
_PIECES = re.compile(r"([A-Za-z]+)|( ?\d+)|([\u0080-\u2fff]+)|([\u3000-\U0010ffff]+)|([!-/:-@[-`{-~]+)|\n\s*")
_LETTERS = 6.2
"""A word of more letters is more than one token."""
_DIGITS = 3
_LETTERS_ELSEWHERE = 2.4
"""Accents, Greek, Cyrillic, Hebrew, Arabic, and the scripts of India."""
_SIGNS = 1.1
_MARKS = 2.0


def count_tokens(text: str) -> int:
    """About how many. Never an error, whatever the text is."""
    count = 0.0
    for letters, digits, elsewhere, signs, marks in _PIECES.findall(text):
        if letters:
            count += max(len(letters) / _LETTERS, 1.0)
        elif digits:
            apart = digits[0] == " "  # which is a token of its own before digits
            count += apart + math.ceil((len(digits) - apart) / _DIGITS)
        elif elsewhere:
            count += len(elsewhere) / _LETTERS_ELSEWHERE
        elif signs:
            count += len(signs) / _SIGNS
        elif marks:
            count += max(len(marks) / _MARKS, 1.0)
        else:
            count += 1
    return math.ceil(count)


def count_message_tokens(message: Message) -> int:
    """Of a message's text. What pictures and other files in it come to nobody can say from here."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return _A_MESSAGE + sum(count_tokens(text) for text in texts if isinstance(text, str))
