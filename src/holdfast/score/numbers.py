"""Numbers in prose: finds the last number in a text.

Understands 1,234.5 and 1'234 and 1.234,5 and 1,23,456; 3e-4 and 3*10^-4 and 2^10; 1/2, 1 1/2, ½ and \\frac{1}{2}; 50%
and $5; digits and minus signs of other scripts. A comma before fewer than three digits separates two numbers: `3,5` is
a list. `1.234` and `1 234` are ambiguous: one and 234 thousandths, and two numbers. If the caller expects whole
numbers, both are 1234, and a comma before one or two digits begins decimals: `18,00` is 18.

Values are exact integers or fractions, so nothing is rounded before it is compared.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

from holdfast.score.definition import shorten

_DIGITS_MAX = 4000  # Python refuses to parse longer integers
_EXPONENT_MAX = 1000
_WINDOW = 2000
"""A text is searched from its end in windows of this many characters, because the search is quadratic in the window for
texts such as `1,11,11,…`.
"""
_BEFORE_WINDOW = 1000
"""Characters before the window that are searched too, so that a number across its start is not read in part."""
_POWER_DIGITS_MAX = 20_000

_SIGNS = str.maketrans(
    {
        "\u2212": "-",  # minus
        "\ufe63": "-",
        "\uff0d": "-",
        "\u2013": "-",  # en dash
        "\uff0b": "+",
        "\uff05": "%",
        "\u066a": "%",  # Arabic percent, thousands, decimal
        "\u066c": ",",
        "\u066b": ".",
        "\uff0c": ",",
        "\uff0e": ".",
        "\u2019": "'",
        "\u2044": "/",
        "\u2215": "/",
    }
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_ONE_CHARACTER_FRACTION = re.compile("([0-9])?([\u00bc-\u00be\u2150-\u215e\u2189])")
_POWER = re.compile("10([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_IN_BRACES = r"\s*\{\s*([-+]?)\s*([0-9]+(?:\.[0-9]+)?)\s*\}"
_LATEX_FRACTION = re.compile(rf"([0-9])?\\[dt]?frac(?:\s*([0-9])([0-9])|{_IN_BRACES}{_IN_BRACES})")
_LATEX_ESCAPE = re.compile(r"\\([%$,])|\{(,)\}")
_GROUPED = re.compile(
    r"""(?<![0-9.,])(?P<whole> [1-9][0-9]{0,2}(?P<gap>[. ])[0-9]{3}(?:(?P=gap)[0-9]{3})*+ | [0-9]++)
    (?:,(?P<decimals>[0-9]{1,2}))? (?![0-9]|[.,/][0-9])""",
    re.VERBOSE,
)
_DATE = re.compile(r"(?<![0-9])[0-9]++(?:/[0-9]++){2,}")

_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![A-Za-z0-9_)\]}%-])[-+])?            # not a sign in 5-3, GPT-4 and 2024-05
    (?:[$\u20ac\u00a3\u00a5\u20b9]\s?)?               # currency
    (?:
        (?P<whole>[0-9]++)[ ](?P<over>[0-9]++)/(?P<under>[0-9]++)
      | (?P<european>
            [1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}+(?![0-9]|\.[0-9])(?:,[0-9]++)?
          | [1-9][0-9]{0,2}\.[0-9]{3},[0-9]++(?!\.[0-9])
        )
      | (?P<plain>
            [0-9]{1,3}(?P<gap>[,'_\u00a0\u2009\u202f])(?:[0-9]{2,3}(?P=gap))*[0-9]{3}(?![0-9])(?:\.[0-9]+)?
          | [0-9]++(?:\.[0-9]+)?
          | (?<![A-Za-z0-9])\.[0-9]+                   # not a decimal point in No.5
        )
    )
    (?:(?:\^|\*\*)[({]?(?P<raised>[-+]?[0-9]+)[)}]?)?
    (?:[eE](?P<e>[-+]?[0-9]+) | \s*(?:[x\u00d7*\u00b7]|\\times|\\cdot)\s*10(?:\^|\*\*)[({]?(?P<power>[-+]?[0-9]+)}?)?
    (?:\s?/\s?(?P<divisor>[0-9]+(?:\.[0-9]+)?))?
    (?P<percent>\s?(?:%|per\s?cent\b))?
    """,
    re.VERBOSE,
)


class Quantity(NamedTuple):
    """A number in a text. `percent`: a percent sign follows; `value` is the number before the sign."""

    value: int | Fraction
    percent: bool
    text: str


def last_quantity(text: str, whole: bool = False) -> Quantity | None:
    """Return the last number in a text with a finite value; None if there is none. `whole`: a dot or a space before
    three digits groups them, as in `1.234` (German) and `1 234` (French), and `18,00` is 18.
    """
    if text.isdecimal() and text.isascii() and len(text) <= _DIGITS_MAX:  # fast path for most targets
        return Quantity(int(text), False, shorten(text))
    plain = _normalise(text)
    if whole:
        plain = _GROUPED.sub(_rewrite_groups, plain)
    for end in range(len(plain), 0, -_WINDOW):
        # The last number that begins in this window; it may extend beyond the window's end.
        start = max(0, end - _WINDOW)
        every = _NUMBER.finditer(plain, max(0, start - _BEFORE_WINDOW), end + _DIGITS_MAX)
        for match in reversed([each for each in every if start <= each.start() < end]):
            value = _value(match)
            if value is not None:
                return Quantity(value, match["percent"] is not None, shorten(match[0].strip()))
    return None


def _normalise(text: str) -> str:
    """Normalise a text: ASCII digits and signs, a/b for every fraction, no LaTeX escapes."""
    if not text.isascii():
        text = _FOREIGN_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)
        text = _ONE_CHARACTER_FRACTION.sub(
            lambda match: (f"{match[1]} " if match[1] else "") + unicodedata.normalize("NFKC", match[2]), text
        )
        text = _POWER.sub(lambda match: "10^" + match[1].translate(_RAISED), text)
        text = text.translate(_SIGNS)
    if "\\" in text or "{" in text:
        text = _LATEX_FRACTION.sub(_rewrite_fraction, text)
        text = _LATEX_ESCAPE.sub(lambda match: match[1] or match[2], text)
    return _DATE.sub(lambda match: match[0].replace("/", " "), text) if text.count("/") > 1 else text


def _rewrite_fraction(match: re.Match[str]) -> str:
    """Rewrite a LaTeX fraction as a/b, with its sign in front."""
    whole, over, under, sign_over, many_over, sign_under, many_under = match.groups()
    sign = "-" if (sign_over == "-") != (sign_under == "-") else ""
    return (f"{whole} " if whole else "") + f"{sign}{over or many_over}/{under or many_under}"


def _rewrite_groups(match: re.Match[str]) -> str:
    """Rewrite `1.234,50` as 1234.50."""
    digits = match["whole"].replace(match["gap"] or ",", "")
    return f"{digits}.{match['decimals']}" if match["decimals"] else digits


def _value(match: re.Match[str]) -> int | Fraction | None:
    if match[0].isdecimal() and len(match[0]) <= _DIGITS_MAX:
        return int(match[0])
    if len(match[0]) > _DIGITS_MAX:
        return None
    exponent, raised = int(match["e"] or match["power"] or 0), int(match["raised"] or 1)
    divisor = Fraction(match["divisor"] or 1)
    if match["whole"]:
        divisor *= int(match["under"])
    if divisor == 0 or abs(exponent) > _EXPONENT_MAX or abs(raised) * len(match[0]) > _POWER_DIGITS_MAX:
        return None
    if match["whole"]:
        number = Fraction(int(match["whole"]) * int(match["under"]) + int(match["over"]))
    elif match["european"]:
        number = Fraction(match["european"].replace(".", "").replace(",", "."))
    else:
        number = Fraction(match["plain"].replace(match["gap"] or ",", ""))
    if raised < 0 and number == 0:
        return None
    number = number**raised * Fraction(10) ** exponent / divisor
    return -number if match["sign"] == "-" else number
