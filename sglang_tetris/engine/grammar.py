"""Grammar masks over the rows of a verification."""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.sampling_batch_info import GrammarMask
from sglang.srt.speculative.spec_utils import traverse_tree

from sglang_tetris.core.layout import VerifyLayout


def row_mask(reqs: list[Any], layout: VerifyLayout, vocab_size: int) -> GrammarMask | None:
    """Return what each row may draw under its request's grammar, or None without grammars.

    A request's grammar is walked down its tree and back, so that it stands where it stood:
    SGLang moves it on along the accepted path when it takes in the result. Rows that the grammar
    forbids to reach, and those of requests without one, are left free.
    """
    constrained = [
        (i, req.grammar) for i, req in enumerate(reqs) if req.grammar and not req.grammar.finished
    ]
    if not constrained:
        return None
    any_grammar = constrained[0][1]
    mask = any_grammar.allocate_vocab_mask(
        vocab_size=vocab_size, batch_size=layout.num_verify, device="cpu"
    )
    # The walk is the host's: these are the copies it needs.
    starts = layout.indptr.tolist()
    first_child, next_sibling = layout.first_child.cpu(), layout.next_sibling.cpu()
    token_ids = layout.token_ids.cpu()
    for i, grammar in constrained:
        start, end = starts[i], starts[i + 1]
        links = [links[start:end].sub(start).clamp(min=-1) for links in (first_child, next_sibling)]
        traverse_tree(*links, token_ids[start:end], grammar, mask[start:end], vocab_size)
    device = layout.token_ids.device
    return GrammarMask(any_grammar, any_grammar.move_vocab_mask(mask, device))
