"""What the demo shows of two servers that held the same chats."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import takewhile

from rich.table import Table

from sglang_tetris.cli.demo_chats import Answer, ChatRun
from sglang_tetris.metrics import StepTotals

_NONE = "-"
_SHOWN_CHARS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same chats without speculation and with TETRIS, and the steps of the latter."""

    plain: ChatRun
    tetris: ChatRun
    steps: StepTotals

    @property
    def pairs(self) -> list[tuple[Answer, Answer]]:
        return list(zip(self.plain.answers, self.tetris.answers, strict=True))

    @property
    def num_equal(self) -> int:
        """Answers that are the same token for token."""
        return sum(plain.token_ids == tetris.token_ids for plain, tetris in self.pairs)

    @property
    def speedup(self) -> float:
        """Output throughput over that without speculation."""
        return self.tetris.output_tokens_per_s / self.plain.output_tokens_per_s


def table(comparison: Comparison) -> Table:
    """Return the measured numbers, one row each."""
    plain, tetris, steps = comparison.plain, comparison.tetris, comparison.steps
    num_answers = len(comparison.pairs)
    rows = [
        (
            "answers equal token for token",
            _NONE,
            f"{comparison.num_equal} of {num_answers}",
        ),
        ("accept length, the bonus counted", "1.00", f"{steps.accept_length:.2f}"),
        ("verify accept rate", _NONE, f"{steps.verify_accept_rate:.1%}"),
        ("mean capacity, draft tokens per step", _NONE, f"{steps.mean_capacity:.1f}"),
        ("rows per step, roots counted", _NONE, f"{steps.rows_per_step:.1f}"),
        ("cached prompt tokens", _cached(plain), _cached(tetris)),
        (
            "output tokens per second",
            *(f"{run.output_tokens_per_s:.1f}" for run in (plain, tetris)),
        ),
    ]
    result = Table("", "without speculation", "TETRIS")
    for column in result.columns[1:]:
        column.justify = "right"
    for row in rows:
        result.add_row(*row)
    return result


def reading(comparison: Comparison) -> str:
    """Return one honest sentence about the numbers."""
    share = f"{comparison.steps.verify_accept_rate:.0%} of the verified draft tokens were right"
    if comparison.speedup >= 1:
        return (
            f"TETRIS was {comparison.speedup:.2f} times as fast here; {share}. A small model "
            "repeats itself, which flatters drafting from its own text."
        )
    return (
        f"TETRIS was slower here, {comparison.speedup:.2f} times the speed without speculation: "
        f"{share}, and that did not pay for their rows on this machine."
    )


def first_difference(comparison: Comparison) -> str | None:
    """Return where the answers first differ, None if they never do."""
    for plain, tetris in sorted(comparison.pairs, key=lambda pair: pair[0].turn):
        if plain.token_ids != tetris.token_ids:
            pairs = zip(plain.token_ids, tetris.token_ids, strict=False)
            num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            return (
                f"chat {plain.title!r}, turn {plain.turn}: the same for {num_equal} tokens\n"
                f"without speculation: {plain.text}\n"
                f"TETRIS: {tetris.text}"
            )
    return None


def transcript(run: ChatRun, title: str) -> str:
    """Return one chat as it went, long answers shortened."""
    return "\n".join(
        f"  user:  {answer.question}\n  model: {_shortened(answer.text)}"
        for answer in run.answers
        if answer.title == title
    )


def _cached(run: ChatRun) -> str:
    cached = sum(answer.num_cached_tokens for answer in run.answers)
    prompts = sum(answer.num_prompt_tokens for answer in run.answers)
    return f"{cached} of {prompts}"


def _shortened(text: str) -> str:
    """Return a text on one line of bounded length."""
    return textwrap.shorten(text, _SHOWN_CHARS, placeholder=" ...")
