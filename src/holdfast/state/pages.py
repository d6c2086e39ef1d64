"""Pages of the index: the rows of up to 1,000 neighbouring keys of one cell.

A page is changed in memory and stored as blobs (see `snapshot`): the answers, the positions of all records of its keys,
and one blob for each evaluation. Equal content gives equal bytes, so two indexes of the same records can be compared by
the checksums of their blobs.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.journal import Position
from holdfast.records import AnomaliesRechecked, ScoreGiven, parse_key
from holdfast.state.rows import AnswerGist, AnswerRow, EditRow, MadeGist, MadeRow, ScoreRow, decode_value
from holdfast.state.snapshot import Blob
from holdfast.state.totals import PageTotals

PAGE_KEYS = 1000
Place = tuple[int, int, int]
"""Number, segment and offset of a record: `Position` as a tuple, because every record of a run makes one."""
_NULL = b"null"


ANSWERS = "answers"
RECORDS = "records"
SCORES = "scores/"
"""The names of a page's blobs; `SCORES` is followed by the evaluation."""


class PageEntry(msgspec.Struct):
    """A page in the directory: its blobs by name, and its totals."""

    blobs: dict[str, Blob]
    totals: PageTotals


class EvaluationRows(msgspec.Struct):
    """The scores of one evaluation in one page, by ordinal."""

    made: dict[int, dict[str, MadeRow]] = msgspec.field(default_factory=dict)
    """Then by scorer."""
    edits: dict[int, list[EditRow]] = msgspec.field(default_factory=dict)
    """In the order of their records."""

    def put(self, found: ScoreGiven, place: Place) -> None:
        """Add what a scorer gave."""
        rows = self.made.get(found.o)
        if rows is None:
            rows = self.made[found.o] = {}
        elif any(row.last and row.of == found.of for row in rows.values()):
            self._begin_round(rows, found)
        failure = "" if found.failure is None else found.failure.message
        value, is_taken = msgspec.json.encode(found.value), bool(found.taken)
        is_unread = found.unreadable
        rows[found.scorer] = MadeRow(
            found.o, found.of, found.scorer, value, found.reason, *place, failure, is_taken, found.last, is_unread
        )

    def leave_only(self, answer: AnswerRow) -> None:
        """Remove scores of other answers to the key of a finished one."""
        rows = self.made.get(answer.o, {})
        for name in [name for name, row in rows.items() if row.of != answer.n]:
            del rows[name]
        if answer.o in self.edits:
            self.edits[answer.o] = [edit for edit in self.edits[answer.o] if edit.of == answer.n]

    def _begin_round(self, rows: dict[str, MadeRow], found: ScoreGiven) -> None:
        """Before the first new score of a fully scored answer, remove its old scores, under whatever names they were
        given. Scores set by hand stay.
        """
        edited = {edit.scorer for edit in self.edits.get(found.o, ()) if edit.of == found.of}
        for name, row in list(rows.items()):
            if row.of == found.of and name in edited:
                rows[name] = msgspec.structs.replace(row, last=False)
            elif row.of == found.of:
                del rows[name]

    def edit(self, found: ScoreGiven, place: Place) -> None:
        """Add a score that a person set."""
        value = msgspec.json.encode(found.value)
        row = EditRow(found.o, found.of, found.scorer, value, found.reason, *place, found.author, found.at)
        self.edits.setdefault(found.o, []).append(row)
        # A row without a value, so that the hand-set score counts even if its scorer gave none.
        nothing = MadeRow(found.o, found.of, found.scorer, _NULL, "", 0, 0, 0, "", False, False, False)
        self.made.setdefault(found.o, {}).setdefault(found.scorer, nothing)

    def counting(self, answers: Mapping[int, AnswerRow]) -> Iterator[ScoreRow]:
        """The scores of answers that count, by ordinal and scorer. A score set by hand replaces the scorer's."""
        for o in sorted(self.made):  # new rows are in the order of the journal
            answer, rows = answers.get(o), self.made[o]
            if answer is None or answer.status != "finished":
                continue
            edits = {edit.scorer: edit for edit in self.edits.get(o, ()) if edit.of == answer.n}
            for row in rows.values() if len(rows) == 1 else [row for _, row in sorted(rows.items())]:
                edit = edits.get(row.scorer) if edits else None
                if row.of != answer.n:
                    continue
                if edit is None:
                    value = decode_value(row.encoded)
                    made = (row.scorer, value, row.reason, row.failure, "", row.last, row.taken, row.unreadable)
                    yield ScoreRow(o, *made)
                else:
                    yield ScoreRow(o, row.scorer, edit.value, edit.reason, "", edit.author, row.last, row.taken)

    def forget(self, first: int, last: int) -> None:
        """Remove scores set by hand whose record is lost."""
        for o, edits in list(self.edits.items()):
            self.edits[o] = [edit for edit in edits if not first <= edit.n <= last]

    def encode(self) -> bytes:
        made = [row for o in sorted(self.made) for _, row in sorted(self.made[o].items())]
        return _encoder.encode((made, [edit for o in sorted(self.edits) for edit in self.edits[o]]))

    @classmethod
    def decode(cls, content: bytes) -> "EvaluationRows":
        made, edits = _evaluation.decode(content)
        found = cls()
        for row in made:
            found.made.setdefault(row.o, {})[row.scorer] = row
        for edit in edits:
            found.edits.setdefault(edit.o, []).append(edit)
        return found


class KeyPage(msgspec.Struct):
    """The rows of a page, to be changed."""

    answers: dict[int, AnswerRow] = msgspec.field(default_factory=dict)
    records: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """Places of every record of a key, in the order of the journal: number, segment, offset, number, segment, …"""
    evaluations: dict[str, EvaluationRows] = msgspec.field(default_factory=dict)

    def put_answer(self, row: AnswerRow) -> None:
        self.answers[row.o] = row
        if row.status == "finished":
            for rows in self.evaluations.values():
                rows.leave_only(row)

    def put_score(self, place: Place, found: ScoreGiven) -> None:
        """Add a score, unless it is of a second answer to its key: the first one counts, and keeps its own scores."""
        answer = self.answers.get(found.o)
        if answer is not None and answer.status == "finished" and found.of != answer.n:
            return
        rows = self.evaluations.get(found.evaluation)
        if rows is None:
            rows = self.evaluations[found.evaluation] = EvaluationRows()
        if found.author:
            rows.edit(found, place)
        else:
            rows.put(found, place)

    def put_anomalies(self, found: AnomaliesRechecked) -> None:
        row = self.answers.get(found.o)
        if row is not None and row.n == found.of:
            content = msgspec.json.encode(found.found)
            self.answers[found.o] = msgspec.structs.replace(row, looked=found.version, anomalies=content)

    def retry(self, ordinals: Iterable[int] | None) -> None:
        """Failed samples that get new attempts are unfinished until they end again."""
        for o in [*self.answers] if ordinals is None else ordinals:
            row = self.answers.get(o)
            if row is not None and row.status == "failed":
                self.answers[o] = msgspec.structs.replace(row, status="unfinished")

    def rename(self, model: str) -> None:
        """Give failures of a renamed model the keys of its new name."""
        for o, row in self.answers.items():
            self.answers[o] = msgspec.structs.replace(row, key=str(parse_key(row.key)._replace(model=model)))

    def forget(self, first: int, last: int) -> list[int]:
        """Remove the rows of records that are lost. Returns the ordinals of the answers among them."""
        gone = [o for o, row in self.answers.items() if first <= row.n <= last]
        for o in gone:
            del self.answers[o]
        for o, places in list(self.records.items()):
            kept = [places[at : at + 3] for at in range(0, len(places), 3) if not first <= places[at] <= last]
            self.records[o] = [number for place in kept for number in place]
        for rows in self.evaluations.values():
            rows.forget(first, last)
        return gone

    def encode(self) -> dict[str, bytes]:
        """The contents of its blobs, by name."""
        answers = _encoder.encode([self.answers[o] for o in sorted(self.answers)])
        scores = {f"{SCORES}{name}": rows.encode() for name, rows in self.evaluations.items()}
        records = _encoder.encode({o: self.records[o] for o in sorted(self.records)})
        return {ANSWERS: answers, RECORDS: records, **scores}

    @classmethod
    def decode(cls, contents: Mapping[str, bytes]) -> "KeyPage":
        return cls(
            decode_answers(contents[ANSWERS]),
            _records.decode(contents[RECORDS]),
            {
                name.removeprefix(SCORES): EvaluationRows.decode(content)
                for name, content in contents.items()
                if name.startswith(SCORES)
            },
        )


class PageChanges(msgspec.Struct):
    """New rows of a page, collected because loading the page costs more than a row."""

    answers: dict[int, AnswerRow] = msgspec.field(default_factory=dict)
    records: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """See `KeyPage.records`."""
    scores: list[tuple[Place, ScoreGiven]] = msgspec.field(default_factory=list)
    rechecked: list[AnomaliesRechecked] = msgspec.field(default_factory=list)

    def apply(self, page: KeyPage) -> None:
        for row in self.answers.values():
            page.put_answer(row)
        for o, places in self.records.items():
            page.records[o] = page.records[o] + places if o in page.records else places
        for place, score in self.scores:
            page.put_score(place, score)
        for each in self.rechecked:
            page.put_anomalies(each)


def decode_answers(content: bytes) -> dict[int, AnswerRow]:
    """By ordinal, in plan order."""
    return {row.o: row for row in _answers.decode(content)}


def decode_records(content: bytes) -> dict[int, list[Position]]:
    """The positions of the records of each key."""
    return {
        o: [Position(*flat[at : at + 3]) for at in range(0, len(flat), 3)]
        for o, flat in _records.decode(content).items()
    }


def decode_answer_gists(content: bytes) -> list[AnswerGist]:
    return _answer_gists.decode(content)


def decode_made_gists(content: bytes) -> list[MadeGist]:
    """Without scores set by hand."""
    return _made_gists.decode(content)[0]


_answer_gists = msgspec.msgpack.Decoder(list[AnswerGist])
_made_gists = msgspec.msgpack.Decoder(tuple[list[MadeGist], msgspec.Raw])
_encoder = msgspec.msgpack.Encoder()
_answers = msgspec.msgpack.Decoder(list[AnswerRow])
_evaluation = msgspec.msgpack.Decoder(tuple[list[MadeRow], list[EditRow]])
_records = msgspec.msgpack.Decoder(dict[int, list[int]])
