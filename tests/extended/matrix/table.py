"""What the matrix's cells came to, and the tables that show it."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

_WIDTH = 300  # characters of a failure's text that are shown


@dataclass
class Table:
    """Rows and columns in the order in which they are first named."""

    title: str
    heads: tuple[str, ...]
    """Of the columns that name a row."""
    columns: tuple[str, ...]
    cells: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)

    def put(self, row: tuple[str, ...], column: str, text: str) -> None:
        assert len(row) == len(self.heads)
        assert column in self.columns
        self.cells.setdefault(row, {})[column] = text

    def lines(self) -> list[str]:
        """In Markdown, aligned. A cell that nobody has filled is a dash."""
        rows: list[Sequence[str]] = [(*self.heads, *self.columns)]
        rows += [(*row, *(found.get(c, "-") for c in self.columns)) for row, found in self.cells.items()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["| " + " | ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) + " |" for row in rows]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        return lines


class Watch:
    """Seconds since it was made, or since `start`: what had to be built first isn't counted."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began


class Results:
    """The tables of one test run."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}  # by title
        self.notes: list[str] = []  # failures in full, and how the cells were made

    @contextmanager
    def cell(self, table: Table, row: tuple[str, ...], column: str) -> Generator[Watch, None, None]:
        """Whatever happens inside is what the cell says; an exception goes on."""
        mine = self.tables.setdefault(table.title, table)
        watch = Watch()
        try:
            yield watch
        except pytest.skip.Exception:
            mine.put(row, column, "skipped")
            raise
        except BaseException as e:
            mine.put(row, column, f"FAILED after {watch.seconds():.1f} s")
            reason = next((line for line in str(e).splitlines() if line.strip()), "")[:_WIDTH]
            self.note(f"{', '.join((*row, column))}: {type(e).__name__}: {reason}")
            raise
        mine.put(row, column, f"ok {watch.seconds():.1f} s")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def lines(self) -> list[str]:
        """All of it, as it is printed and written to a file; empty if no cell was tried."""
        out: list[str] = []
        for table in self.tables.values():
            out += [f"{table.title}:", "", *table.lines(), ""]
        return [*out, *self.notes] if out else []
