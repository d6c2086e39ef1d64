"""`where` of a data set: an expression over the columns of a row, such as `level >= 4 and subject in ['algebra']`.

The text is parsed with `ast` and turned into closures; it is never evaluated as Python. Allowed are columns, constants,
comparisons, `and`, `or`, `not`, `in`, `+ - * /`, subscripts with constants, and the functions in `_FUNCTIONS`.
`row['High-level domain']` is a column whose name is no identifier.
A column that a row lacks is None. An order comparison with None is false, so rows without the value are left out.
"""

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import DataError, HoldfastError
from holdfast.records import Row

_CHARACTERS_MAX = 10_000
Value = Callable[[Row], Any]


class FilterError(HoldfastError):
    """An expression that is not allowed, or that does not fit a value. The caller adds the field and the row."""


def _lower(value: Any) -> Any:
    return None if value is None else _text(value, "lower").lower()


def _startswith(value: Any, start: Any) -> bool:
    return value is not None and _text(value, "startswith").startswith(_text(start, "startswith"))


def _len(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, str | list | dict):
        raise FilterError(f"len() needs a text or a list, found {value!r}")
    return len(value)


def _number(kind: type[int] | type[float], value: Any) -> Any:
    try:
        return None if value is None else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise FilterError(f"{kind.__name__}() cannot read {_shown(value)}") from None


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "len": (_len, 1),
    "lower": (_lower, 1),
    "startswith": (_startswith, 2),
    "int": (lambda value: _number(int, value), 1),
    "float": (lambda value: _number(float, value), 1),
}
"""By name: the function, and how many arguments it takes."""
_METHODS = ("lower", "startswith")

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}


class RowFilter:
    """A parsed expression. FilterError if the text is not allowed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: list[str] = []
        """The columns that the expression names."""
        if len(text) > _CHARACTERS_MAX:
            raise FilterError(f"longer than {_CHARACTERS_MAX} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval")
            self._value = self._compile(tree.body)
        except SyntaxError as error:
            raise FilterError(f"{text!r} is not an expression ({error.msg})") from None
        except (RecursionError, MemoryError, ValueError):
            raise FilterError("nested too deeply, or not a text") from None
        if not self.names:
            raise FilterError(f"{text!r} names no column")
        self._unseen = set(self.names)
        self._others: dict[str, None] = {}

    def keeps(self, row: Row) -> bool:
        """Whether the expression is true for a row. FilterError if a value does not fit it."""
        if self._unseen:
            self._unseen -= row.keys()
            if self._unseen:
                self._others |= dict.fromkeys(row)
        return bool(self._value(row))

    def check_names(self, where: str) -> None:
        """After all rows were read: DataError for a column that no row has."""
        for name in sorted(self._unseen) if self._others else ():
            near = difflib.get_close_matches(name, self._others, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the rows have: {', '.join(self._others)}"
            raise DataError(where, f"where: no row has a column {name!r}; {hint}")

    def _compile(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=value) if value is None or isinstance(value, str | int | float):
                return lambda row: value
            case ast.Name(id="null" | "true" | "false" as name):  # as YAML and JSON write them
                constant = {"null": None, "true": True, "false": False}[name]
                return lambda row: constant
            case ast.Name(id=name):
                return self._column(name)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                values = [self._compile(part) for part in parts]
                return lambda row: [value(row) for value in values]
            case ast.Subscript(value=ast.Name(id="row"), slice=ast.Constant(value=str() as key)):
                return self._column(key)
            case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as key)):
                part = self._compile(inner)
                return lambda row: _part(part(row), key)
            case ast.Call(keywords=[]):
                return self._call(node)
        return self._operation(node)

    def _operation(self, node: ast.expr) -> Value:
        match node:
            case ast.BoolOp(op=op, values=parts):
                values = [self._compile(part) for part in parts]
                decide = all if isinstance(op, ast.And) else any
                return lambda row: decide(value(row) for value in values)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                value = self._compile(inner)
                return lambda row: not value(row)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value = self._compile(inner)
                return lambda row: _calculate("-", operator.sub, 0, value(row))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
                symbol, function = _ARITHMETIC[type(sign)]
                first, second = self._compile(left), self._compile(right)
                return lambda row: _calculate(symbol, function, first(row), second(row))
            case ast.Compare():
                return self._comparison(node)
        raise FilterError(
            f"{ast.unparse(node)[:80]!r} is not allowed; use columns, constants, comparisons, and, or, not, in, "
            f"+ - * / and {', '.join(_FUNCTIONS)}"
        )

    def _column(self, name: str) -> Value:
        if name not in self.names:
            self.names.append(name)
        return lambda row: row.get(name)

    def _comparison(self, node: ast.Compare) -> Value:
        values = [self._compile(part) for part in (node.left, *node.comparators)]
        tests = [_comparator(op) for op in node.ops]

        def compare(row: Row) -> bool:
            found = [value(row) for value in values]
            return all(test(left, right) for test, left, right in zip(tests, found, found[1:], strict=False))

        return compare

    def _call(self, node: ast.Call) -> Value:
        match node.func:
            case ast.Name(id=name) if name in _FUNCTIONS:
                parts = list(node.args)
            case ast.Attribute(value=inner, attr=name) if name in _METHODS:  # subject.lower()
                parts = [inner, *node.args]
            case other:
                raise FilterError(f"there is no function {ast.unparse(other)!r}; there are: {', '.join(_FUNCTIONS)}")
        function, count = _FUNCTIONS[name]
        if len(parts) != count:
            raise FilterError(f"{name}() takes {count} {'value' if count == 1 else 'values'}, found {len(parts)}")
        values = [self._compile(part) for part in parts]
        return lambda row: function(*(value(row) for value in values))


def _comparator(op: ast.cmpop) -> Callable[[Any, Any], bool]:
    if type(op) in _ORDER:
        sign, function = _SIGNS[type(op)], _ORDER[type(op)]
        return lambda left, right: _is_ordered(sign, function, left, right)
    match op:
        case ast.Eq() | ast.Is():
            return _is_equal
        case ast.NotEq() | ast.IsNot():
            return lambda left, right: not _is_equal(left, right)
        case ast.In():
            return _is_in
        case _:
            return lambda left, right: not _is_in(left, right)


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):  # in Python, 1 equals True
        return False
    return bool(left == right)


def _is_ordered(sign: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> bool:
    if left is None or right is None:
        return False
    try:
        return bool(function(left, right))
    except TypeError:
        hint = ""
        if isinstance(left, str) != isinstance(right, str):
            hint = "; a column of a CSV file is text: convert it with float()"
        raise FilterError(f"{_shown(left)} {sign} {_shown(right)}: these cannot be compared{hint}") from None


def _is_in(left: Any, right: Any) -> bool:
    if right is None:
        return False
    if isinstance(right, str):
        return isinstance(left, str) and left in right
    if not isinstance(right, list | dict):
        raise FilterError(f"`in` needs a list or a text, found {_shown(right)}")
    return any(_is_equal(left, each) for each in right)


def _calculate(sign: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if not numbers and not (sign == "+" and isinstance(left, str) and isinstance(right, str)):
        raise FilterError(f"{_shown(left)} {sign} {_shown(right)}: arithmetic needs numbers")
    try:
        return function(left, right)
    except (ZeroDivisionError, OverflowError):
        return None


def _part(value: Any, key: str | int) -> Any:
    """An entry of a nested value; None if it has none."""
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | str) and isinstance(key, int) and -len(value) <= key < len(value):
        return value[key]
    return None


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise FilterError(f"{name}() needs a text, found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return ascii(value)[:80]
