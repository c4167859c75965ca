"""What was drafted: one candidate tree per request, and the invariant that the rest relies on.

Knows nothing of models or engines. A chain is a tree of width 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

NO_SOURCE = -1  # the source of a padding node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateTrees:
    """One candidate tree per request; the root is implicit and always verified.

    A request's nodes come parents before children, siblings have distinct tokens, and padding
    nodes follow the real ones.
    """

    token_ids: torch.Tensor  # [num_requests, num_nodes] int64; padding: -1
    parents: torch.Tensor  # [num_requests, num_nodes] int64; -1 means the root; padding: -1
    depths: torch.Tensor  # [num_requests, num_nodes] int64; 1 just below the root; padding: 0
    path_logprobs: torch.Tensor  # [num_requests, num_nodes] float32; padding: -inf
    sources: torch.Tensor  # [num_requests, num_nodes] int64; padding: NO_SOURCE
    num_candidates: int  # real nodes over the batch, known without asking the device

    @property
    def num_requests(self) -> int:
        """Requests in the batch, those without candidates included."""
        return self.token_ids.shape[0]

    @property
    def num_nodes(self) -> int:
        """Nodes per request, padding included."""
        return self.token_ids.shape[1]

    @property
    def is_padding(self) -> torch.Tensor:
        """Mask of the nodes that stand for no draft token, [num_requests, num_nodes] bool."""
        return self.sources == NO_SOURCE

    @classmethod
    def empty(cls, num_requests: int, device: torch.device | str = "cpu") -> CandidateTrees:
        """Return trees without nodes: every request verifies its root only."""
        no_ids = torch.empty((num_requests, 0), dtype=torch.int64, device=device)
        return cls(
            token_ids=no_ids,
            parents=no_ids,
            depths=no_ids,
            path_logprobs=no_ids.float(),
            sources=no_ids,
            num_candidates=0,
        )

    @classmethod
    def chains(
        cls,
        token_ids: torch.Tensor,
        token_logprobs: torch.Tensor,
        *,
        lens: Sequence[int],
        source: int = 0,
    ) -> CandidateTrees:
        """Return trees of width 1 from [num_requests, depth] tokens and log-probabilities.

        The log-probabilities are conditional, one per draft step. ``lens`` says how many tokens
        of each request count; it lives on the host, so the number of candidates costs no sync.
        """
        num_requests, depth = token_ids.shape
        if token_logprobs.shape != token_ids.shape:
            raise ValueError(
                f"token_logprobs must have the shape of token_ids, {tuple(token_ids.shape)}, "
                f"got {tuple(token_logprobs.shape)}"
            )
        if len(lens) != num_requests or not all(0 <= length <= depth for length in lens):
            raise ValueError(
                f"lens must be {num_requests} lengths between 0 and {depth}, got {list(lens)}"
            )
        # From a host list in one asynchronous copy; a tensor built on the device would wait.
        device_lens = torch.tensor(lens, dtype=torch.int64).to(token_ids.device, non_blocking=True)
        columns = torch.arange(depth, device=token_ids.device)
        is_real = columns < device_lens[:, None]
        return cls(
            token_ids=torch.where(is_real, token_ids.long(), -1),
            parents=torch.where(is_real, columns - 1, -1),
            depths=torch.where(is_real, columns + 1, 0),
            path_logprobs=torch.where(is_real, token_logprobs.float().cumsum(dim=1), -torch.inf),
            sources=torch.where(is_real, source, torch.full_like(columns, NO_SOURCE)),
            num_candidates=sum(lens),
        )


def validate(trees: CandidateTrees) -> None:
    """Raise ``ValueError`` when the trees break their invariant.

    For tests and debugging: it waits for the device. Log-probabilities of real nodes are not
    checked, because scoring copes with any.
    """
    for problem, is_broken in _problems(trees):
        if is_broken:
            raise ValueError(f"candidate trees: {problem}")


def _problems(trees: CandidateTrees) -> list[tuple[str, bool]]:
    shape = trees.token_ids.shape
    by_node = (trees.parents, trees.depths, trees.path_logprobs, trees.sources)
    if len(shape) != 2 or any(values.shape != shape for values in by_node):
        return [("all fields must have the shape [num_requests, num_nodes]", True)]
    if any(
        ids.dtype != torch.int64
        for ids in (trees.token_ids, trees.parents, trees.depths, trees.sources)
    ):
        return [("token_ids, parents, depths and sources must be int64", True)]

    is_padding, parents, depths = trees.is_padding, trees.parents, trees.depths
    nodes = torch.arange(trees.num_nodes, device=parents.device)
    no_draft = (trees.token_ids == -1) & (parents == -1) & (depths == 0)
    no_draft &= trees.path_logprobs == -torch.inf
    has_later_parent = (parents < -1) | (parents >= nodes)
    with_root = torch.cat((depths.new_zeros((trees.num_requests, 1)), depths), dim=1)
    # Clamped so that a wrong parent is reported as such, and not as an index error.
    parent_depths = with_root.gather(1, (parents + 1).clamp(0, trees.num_nodes))
    siblings = (parents[:, :, None] == parents[:, None, :]) & (nodes[:, None] < nodes)
    twins = siblings & (trees.token_ids[:, :, None] == trees.token_ids[:, None, :])
    is_real = ~is_padding

    def anywhere(mask: torch.Tensor) -> bool:
        return bool(mask.any())

    return [
        ("path_logprobs must be float32", trees.path_logprobs.dtype != torch.float32),
        (
            f"num_candidates is {trees.num_candidates}, "
            f"but there are {int(is_real.sum())} real nodes",
            trees.num_candidates != int(is_real.sum()),
        ),
        ("sources must be NO_SOURCE or at least 0", anywhere(trees.sources < NO_SOURCE)),
        ("padding must follow the real nodes", anywhere(is_padding[:, :-1] & is_real[:, 1:])),
        ("padding must be token -1, parent -1, depth 0, -inf", anywhere(is_padding & ~no_draft)),
        ("draft tokens must be at least 0", anywhere(is_real & (trees.token_ids < 0))),
        ("parents must come before children", anywhere(is_real & has_later_parent)),
        (
            "a node must be one deeper than its parent",
            anywhere(is_real & (depths != parent_depths + 1)),
        ),
        ("siblings must have distinct tokens", anywhere(twins & is_real[:, None, :])),
    ]
