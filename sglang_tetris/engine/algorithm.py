"""What SGLang may ask of the algorithm TETRIS, one class per kind of draft.

SGLang asks the registered object without the server's arguments, so each kind of draft has a
name of its own; the user's ``TETRIS`` becomes one of them when arguments are resolved.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

ALIAS = "TETRIS"
LM = "TETRIS_LM"
LOOKUP = "TETRIS_LOOKUP"
CPU_BACKEND = "tetris_cpu"  # the attention backend that verifies on a CPU


class TetrisAlgorithm(CustomSpecAlgo):
    """Answers for every kind of draft.

    SGLang asks every algorithm the first four questions, and its plugin base class (0.5.23) has
    no answers. Delete them when it has: tests/contract notices.
    """

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """Return SGLang's relay between steps; the bonus token is all that we send through it."""
        from sglang.srt.managers.overlap_utils import FutureMap  # late: it compiles at import

        return FutureMap(
            device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay
        )

    def carries_draft_hidden_states(self) -> bool:
        """No draft here reads the target's hidden states."""
        return False

    def need_topk(self) -> bool:
        """Drafts start from the token history, not from relayed candidates."""
        return False

    def get_platform_worker_cls(self) -> None:
        """There is one worker for all platforms."""
        return

    def has_draft_kv(self) -> bool:
        """Whether drafting writes KV of its own."""
        return False


class TetrisLmAlgorithm(TetrisAlgorithm):
    """A small language model drafts."""

    def is_standalone(self) -> bool:
        """Counts the draft's layers when the KV pool is sized (pool_configurator.py)."""
        return True

    def has_draft_kv(self) -> bool:
        """The draft model has its own KV in the target's slots."""
        return True


class TetrisLookupAlgorithm(TetrisAlgorithm):
    """The request's own text drafts."""


ALGORITHMS: dict[str, type[TetrisAlgorithm]] = {
    ALIAS: TetrisAlgorithm,
    LM: TetrisLmAlgorithm,
    LOOKUP: TetrisLookupAlgorithm,
}
