"""Trees where lookup drafts chains: beside each drafted token stands a wrong one, scored higher.

So the accepted path is never the front of the window, and its KV must move when it is committed.
"""

from __future__ import annotations

import dataclasses

import torch

from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.lookup import LookupSource

VOCABULARY = 49_152  # of the demo target


def register() -> None:
    propose = LookupSource.propose

    def propose_with_decoys(source: LookupSource, requests: DraftRequests) -> CandidateTrees:
        half = requests.depth // 2  # the window has room for as many nodes as the chain had
        short = dataclasses.replace(requests, max_lens=[min(n, half) for n in requests.max_lens])
        chains = propose(source, short)
        columns = torch.arange(2 * half)
        drafted = columns // 2  # the node of the chain that a column stands for
        is_decoy = columns % 2 == 0

        def widened(values: torch.Tensor) -> torch.Tensor:
            return values[:, drafted]

        is_padding = widened(chains.is_padding)
        decoys = torch.where(is_decoy & ~is_padding, 1, 0)
        parents = torch.where(widened(chains.depths) > 1, 2 * drafted - 1, -1)
        above = widened(chains.path_logprobs.roll(1, dims=1))  # the parent's
        above = torch.where(widened(chains.depths) > 1, above, 0.0)
        return CandidateTrees(
            token_ids=torch.where(
                is_padding, -1, (widened(chains.token_ids) + decoys) % VOCABULARY
            ),
            parents=parents.expand_as(is_padding).where(~is_padding, torch.tensor(-1)),
            depths=widened(chains.depths),
            path_logprobs=torch.where(
                decoys == 1, above - 1e-3, widened(chains.path_logprobs)
            ).masked_fill(is_padding, -torch.inf),
            sources=widened(chains.sources),
            num_candidates=2 * chains.num_candidates,
        )

    LookupSource.propose = propose_with_decoys  # type: ignore[method-assign,assignment]
