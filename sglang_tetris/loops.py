"""Whether an answer repeats itself: a token is inside a repetition loop when the 10-gram that ends
with it has occurred at least twice before in the same answer.

Small models fall into such loops, and a draft that copies is always right there: figures are given
with and without them. Knows tokens as numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence

GRAM = 10
_OCCURRED = 2  # this often before


class LoopFinder:
    """Follows one answer as it grows."""

    __slots__ = ("_seen", "_tail")

    def __init__(self) -> None:
        self._tail: tuple[int, ...] = ()
        # By the gram's hash: 64 bits for the few thousand grams of an answer, and only counts
        # would suffer.
        self._seen: dict[int, int] = {}

    def append(self, token_ids: Sequence[int]) -> bool:
        """Append some tokens, at least one; return whether the first of them is in a loop."""
        tokens = (*self._tail, *token_ids)
        first = len(self._tail)
        is_first_inside = False
        for last in range(max(first, GRAM - 1), len(tokens)):
            gram = hash(tokens[last - GRAM + 1 : last + 1])
            seen = self._seen.get(gram, 0)
            self._seen[gram] = seen + 1
            if last == first:
                is_first_inside = seen >= _OCCURRED
        self._tail = tokens[-(GRAM - 1) :]
        return is_first_inside
