"""How far a run of the benchmark is: bars on a terminal, a line for each measurement in any case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich import progress
from rich.console import Console

from sglang_tetris.bench.load import Load
from sglang_tetris.bench.run import Plan, Segment
from sglang_tetris.errors import TetrisError


class Progress:
    """Shows a run on stderr for as long as its block lasts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._all = self._bars.add_task("measurements", total=plan.num_measurements)
        self._turns = self._bars.add_task("turns", total=plan.num_turns)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def servers_start(self, num_servers: int) -> None:
        """Say what the wait is for."""
        self._bars.update(self._turns, description=f"{num_servers} servers", completed=0)

    def segment_starts(self, arm: str, load: Load, repeat: int, num_turns: int) -> None:
        """Begin a new bar of turns."""
        del repeat
        self._bars.update(self._turns, description=f"{arm}, {load}", completed=0, total=num_turns)

    def turn_ends(self) -> None:
        """Count one turn."""
        self._bars.advance(self._turns)

    def repeat_ends(self, segments: Sequence[Segment]) -> None:
        """Say what was measured, arm by arm."""
        of_arm: dict[str, list[Segment]] = defaultdict(list)
        for segment in segments:
            of_arm[segment.arm].append(segment)
        for arm, measured in of_arm.items():
            self._bars.advance(self._all)
            seconds = sum(segment.seconds for segment in measured)
            speed = sum(segment.num_output_tokens for segment in measured) / seconds
            num_errors = sum(
                turn.reply.error is not None for segment in measured for turn in segment.turns
            )
            self._console.print(
                f"repeat {measured[0].repeat + 1} of {self._plan.repeats}, {measured[0].load}: "
                f"{arm}: {speed:.1f} tokens/s" + (f", {num_errors} errors" if num_errors else "")
            )

    def arm_fails(self, arm: str, error: TetrisError) -> None:
        """Say what the others go on without."""
        self._console.print(f"{arm} failed: {error}")
