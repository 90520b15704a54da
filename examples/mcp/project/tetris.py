"""The rules of a falling-blocks game, without a screen: a board, a piece on it, and what a move makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

Cell = tuple[int, int]

WIDTH, HEIGHT = 10, 20
SHAPES: dict[str, tuple[Cell, ...]] = {
    "I": ((0, 1), (1, 1), (2, 1), (3, 1)),
    "O": ((0, 0), (1, 0), (0, 1), (1, 1)),
    "T": ((1, 0), (0, 1), (1, 1), (2, 1)),
    "S": ((1, 0), (2, 0), (0, 1), (1, 1)),
    "Z": ((0, 0), (1, 0), (1, 1), (2, 1)),
    "J": ((0, 0), (0, 1), (1, 1), (2, 1)),
    "L": ((2, 0), (0, 1), (1, 1), (2, 1)),
}
"""Cells (x, y) in a square box; y grows downwards."""
BOX = {"I": 4, "O": 2}
"""The box's side; 3 for all others."""


@dataclass(frozen=True)
class Piece:
    kind: str
    x: int = 3
    y: int = 0
    turns: int = 0
    """Quarter turns to the right."""

    def cells(self) -> frozenset[Cell]:
        side, cells = BOX.get(self.kind, 3), SHAPES[self.kind]
        for _ in range(self.turns % 4):
            cells = tuple((side - 1 - y, x) for x, y in cells)
        return frozenset((self.x + x, self.y + y) for x, y in cells)


@dataclass(frozen=True)
class Game:
    piece: Piece
    filled: frozenset[Cell] = frozenset()
    lines: int = 0
    over: bool = False

    def moved(self, *, x: int = 0, y: int = 0, turns: int = 0) -> Game:
        """The same game where the piece cannot go there."""
        there = replace(self.piece, x=self.piece.x + x, y=self.piece.y + y, turns=self.piece.turns + turns)
        return replace(self, piece=there) if not self.over and self._fits(there) else self

    def dropped(self, following: str) -> Game:
        """The piece falls and stays, full lines vanish, and the following piece comes."""
        if self.over:
            return self
        landed = self
        while (lower := landed.moved(y=1)) is not landed:
            landed = lower
        filled = self.filled | landed.piece.cells()
        full = {row for row in range(HEIGHT) if all((column, row) in filled for column in range(WIDTH))}
        # What is left sinks by as many rows as vanished below it.
        kept = frozenset((x, y + sum(row > y for row in full)) for x, y in filled if y not in full)
        after = Game(Piece(following), kept, self.lines + len(full))
        return replace(after, over=not after._fits(after.piece))

    def _fits(self, piece: Piece) -> bool:
        cells = piece.cells()
        return not cells & self.filled and all(0 <= x < WIDTH and 0 <= y < HEIGHT for x, y in cells)
