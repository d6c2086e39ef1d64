"""The one place that dispatches on record types: a table from a record's type to the method that handles it.

Whatever is computed from a journal owns one table and registers its methods with `on`: the writer's fold, the index, a
run's story, its profile, the story of one key, and the compacted copy of a run. To find everything that reads a type
of record, search for `.on("that type"`.

Invariant: a table holds only types that a journal can hold, each once, so a misspelt or doubly registered type fails
at import. A type without a handler is not an error here: the reader has already refused unknown types.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.records import is_known

Owner = TypeVar("Owner")
Record = TypeVar("Record")


class RecordHandlers(dict[str, Callable[[Owner, Record], None]], Generic[Owner, Record]):
    """Handlers by record type. It is a dict because the writer's fold looks up every record: `get` costs one C call."""

    def on(self, *types: str) -> Callable[[Callable[[Owner, Record], None]], Callable[[Owner, Record], None]]:
        """Register the decorated method for these types. ValueError if a type is unknown or has a handler already."""

        def register(handler: Callable[[Owner, Record], None]) -> Callable[[Owner, Record], None]:
            for each in types:
                if not is_known(each) or each in self:
                    raise ValueError(f"record type {each!r}: unknown, or registered twice")
                self[each] = handler
            return handler

        return register
