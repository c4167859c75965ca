"""What the demo says of two runs: agreement, ratios, and where the first difference is."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from sglang_tetris.cli.demo_chats import Answer, ChatRun
from sglang_tetris.cli.demo_conversations import CONVERSATIONS
from sglang_tetris.cli.demo_report import (
    Comparison,
    first_difference,
    reading,
    table,
    transcript,
)
from sglang_tetris.metrics import StepTotals

STEPS = StepTotals(
    num_steps=10,
    num_requests=20,
    num_drafted=80,
    capacity=40,
    num_selected=40,
    num_correct_drafts=10,
    num_emitted=30,
    num_rows=60,
)


def answer(title: str, turn: int, *token_ids: int) -> Answer:
    """Return an answer whose text is its tokens."""
    return Answer(
        title=title,
        turn=turn,
        question=f"question {turn}",
        text=" ".join(map(str, token_ids)),
        token_ids=token_ids,
        num_prompt_tokens=10,
        num_cached_tokens=5 * turn,
    )


def run(*answers: Answer, seconds: float = 1.0) -> ChatRun:
    """Return a run of some answers."""
    return ChatRun(answers=answers, seconds=seconds)


PLAIN = run(answer("a", 1, 1, 2, 3), answer("a", 2, 4, 5, 6), answer("b", 1, 7), seconds=2.0)


def compared(*answers: Answer, seconds: float = 1.0) -> Comparison:
    """Return the comparison of a run with ``PLAIN``."""
    return Comparison(plain=PLAIN, tetris=run(*answers, seconds=seconds), steps=STEPS)


def shown(comparison: Comparison) -> list[str]:
    """Return the lines of the table as text."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table(comparison))
    return capture.get().splitlines()


def test_equal_answers_agree() -> None:
    comparison = compared(*PLAIN.answers)

    assert comparison.num_equal == 3
    assert first_difference(comparison) is None


def test_equal_text_of_other_tokens_does_not_agree() -> None:
    other = dataclasses.replace(PLAIN.answers[0], token_ids=(12, 3))

    assert compared(other, *PLAIN.answers[1:]).num_equal == 2


def test_the_first_difference_is_that_of_the_earliest_turn() -> None:
    comparison = compared(answer("a", 1, 1, 2, 3), answer("a", 2, 0), answer("b", 1, 7, 8))

    difference = first_difference(comparison)

    assert comparison.num_equal == 1
    assert difference is not None
    assert difference.splitlines() == [
        "chat 'b', turn 1: the same for 1 tokens",
        "without speculation: 7",
        "TETRIS: 7 8",
    ]


def test_the_table_shows_sums_and_ratios_within_80_columns() -> None:
    lines = shown(compared(*PLAIN.answers))

    for label, *cells in [
        ("answers equal token for token", "3 of 3"),
        ("accept length", "1.00", "1.50"),
        ("verify accept rate", "25.0%"),
        ("mean capacity", "4.0"),
        ("rows per step", "6.0"),
        ("cached prompt tokens", "20 of 30", "20 of 30"),
        ("output tokens per second", "3.5", "7.0"),
    ]:
        (line,) = (line for line in lines if label in line)
        assert [cell for cell in cells if cell not in line] == []
    assert max(map(len, lines)) <= 80


def test_the_reading_says_when_it_was_slower() -> None:
    faster = reading(compared(*PLAIN.answers, seconds=1.0))
    slower = reading(compared(*PLAIN.answers, seconds=4.0))

    assert "2.00 times as fast" in faster
    assert "slower here, 0.50 times" in slower
    assert "25% of the verified draft tokens were right" in faster
    assert "25% of the verified draft tokens" in slower


def test_a_transcript_is_one_chat_with_long_answers_shortened() -> None:
    text = transcript(run(answer("a", 1, *range(1000)), answer("b", 1, 7)), "a")

    assert text.startswith("  user:  question 1\n  model: 0 1 2")
    assert text.endswith(" ...")
    assert "7 8" in text
    assert text.count("user:") == 1


def test_conversations_are_many_and_different() -> None:
    assert len(CONVERSATIONS) >= 12
    assert len({chat.title for chat in CONVERSATIONS}) == len(CONVERSATIONS)
    assert len({turn for chat in CONVERSATIONS for turn in chat.turns}) == 3 * len(CONVERSATIONS)
