"""Grammars over small vocabularies: one by hand, and one of xgrammar's."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch


class Rising:
    """A grammar by hand: each token is larger than the last by at most ``most``.

    It ends after ``length`` tokens. Its masks are packed as xgrammar's are, which SGLang's walk
    down a tree relies on.
    """

    def __init__(self, vocab_size: int, *, most: int = 3, length: int = 100) -> None:
        self.vocab_size = vocab_size
        self.most = most
        self.length = length
        self.finished = False
        self.accepted: list[int] = []

    def allowed(self) -> set[int]:
        """Return what may come next; everything once it has ended."""
        if self.is_terminated():
            return set(range(self.vocab_size))
        last = self.accepted[-1] if self.accepted else -1
        return set(range(last + 1, min(self.vocab_size, last + 1 + self.most)))

    def after(self, token_ids: Iterable[int]) -> Rising:
        """Return a copy that has taken these tokens."""
        later = copy.deepcopy(self)
        for token_id in token_ids:
            later.accept_token(token_id)
        return later

    # What SGLang calls (constrained/base_grammar_backend.py).

    def accept_token(self, token_id: int) -> None:
        if token_id not in self.allowed():
            raise ValueError(f"{token_id} after {self.accepted}")
        self.accepted.append(token_id)

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def is_terminated(self) -> bool:
        return len(self.accepted) >= self.length

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: str) -> torch.Tensor:
        return torch.full((batch_size, -(-vocab_size // 32)), -1, dtype=torch.int32, device=device)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        bits = torch.zeros(vocab_mask.shape[1] * 32, dtype=torch.int64)
        bits[sorted(self.allowed())] = 1
        words = (bits.view(-1, 32) << torch.arange(32)).sum(dim=1)
        vocab_mask[idx] = words.where(words < 2**31, words - 2**32).int()

    @staticmethod
    def fill_vocab_mask_batched(entries: Iterable[Any], vocab_mask: torch.Tensor) -> None:
        for entry in entries:
            entry.grammar.fill_vocab_mask(vocab_mask, entry.row)

    @staticmethod
    def move_vocab_mask(vocab_mask: torch.Tensor, device: Any) -> torch.Tensor:
        return vocab_mask.to(device)

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        logits.masked_fill_(~unpacked(vocab_mask, logits.shape[-1]), -torch.inf)


def unpacked(vocab_mask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return which tokens a packed mask allows, [num_rows, vocab_size] bool."""
    bits = (vocab_mask[:, :, None] >> torch.arange(32)) & 1
    return bits.flatten(1)[:, :vocab_size].bool()


def of_regex(regex: str, vocabulary: list[str], *, stop: int) -> Any:
    """Return SGLang's grammar object for a regular expression; ``stop`` ends the answer."""
    # Late: it imports SGLang's layers, which have something to say about the machine.
    from sglang.srt.constrained.xgrammar_backend import MAX_ROLLBACK_TOKENS, XGrammarGrammar
    from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType

    info = TokenizerInfo(
        vocabulary, vocab_type=VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[stop]
    )
    compiled = GrammarCompiler(info).compile_regex(regex)
    matcher = GrammarMatcher(compiled, max_rollback_tokens=MAX_ROLLBACK_TOKENS)
    return XGrammarGrammar(matcher, len(vocabulary), compiled, None)
