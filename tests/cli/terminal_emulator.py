"""As much of a terminal as the view uses: enough to see what stays on the screen, and whether a line wrapped."""

from __future__ import annotations

import re
import unicodedata

TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|[\s\S]")


class Screen:
    """Feeds on output; `lines` is what a user sees, `wrapped` counts lines that ran over the right edge."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.grid: list[list[str]] = [[]]
        self.row = self.column = self.wrapped = 0
        self.cursor_visible = True

    def feed(self, output: str) -> Screen:
        for match in TOKEN.finditer(output):
            if match[3]:
                self._control(match[1], match[2], match[3])
            else:
                self._character(match[0])
        return self

    @property
    def lines(self) -> list[str]:
        text = ["".join(row).rstrip() for row in self.grid]
        while text and not text[-1]:
            text.pop()
        return text

    def _control(self, private: str, number: str, letter: str) -> None:
        count = int(number) if number.isdecimal() else 1
        if letter == "A":
            self.row = max(0, self.row - count)
        elif letter == "K":
            assert number == "2", "only whole lines are erased"
            self.grid[self.row] = []
        elif private and letter in "hl" and number == "25":
            self.cursor_visible = letter == "h"
        else:
            assert letter == "m", f"unexpected control {private}{number}{letter}"

    def _character(self, c: str) -> None:
        if c == "\r":
            self.column = 0
        elif c == "\n":
            self._down()
        else:
            assert c.isprintable(), f"control character {c!r} on the terminal"
            width = 2 if unicodedata.east_asian_width(c) in "WF" else 1
            if self.column + width > self.columns:
                self.wrapped += 1
                self.column = 0
                self._down()
            row = self.grid[self.row]
            row += [" "] * (self.column + 1 - len(row))
            row[self.column] = c
            self.column += width

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.grid):
            self.grid.append([])
