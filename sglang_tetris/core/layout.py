"""What the target sees: the rows of one verification, without padding between them.

Each request's root row comes first and its selected nodes follow in node order, so a parent's
row is always before its children's. Knows nothing of attention or of KV slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_tetris.core.candidates import CandidateTrees


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifyLayout:
    """The rows of the target forward in compact order; row ids index all [num_verify] fields."""

    token_ids: torch.Tensor  # [num_verify] int64; a row's input token
    requests: torch.Tensor  # [num_verify] int64; never falls
    depths: torch.Tensor  # [num_verify] int64; 0 at the roots
    nodes: torch.Tensor  # [num_verify] int64; request * num_nodes + node, -1 at the roots
    parents: torch.Tensor  # [num_verify] int64; row ids, -1 at the roots
    first_child: torch.Tensor  # [num_verify] int64; row ids, -1 at the leaves
    next_sibling: torch.Tensor  # [num_verify] int64; row ids, -1 at the last of its siblings
    ancestors: torch.Tensor  # [num_verify, max_depth + 1] int64; root .. the row itself, then -1
    verify_lens: torch.Tensor  # [num_requests] int64; rows per request, root counted
    indptr: torch.Tensor  # [num_requests + 1] int64; a request's rows are indptr[i]:indptr[i + 1]
    num_verify: int  # rows over the batch, roots counted
    max_depth: int  # bound on depths

    @property
    def num_requests(self) -> int:
        """Requests in the batch; each has a root row."""
        return self.verify_lens.shape[0]

    @property
    def root_rows(self) -> torch.Tensor:
        """Row of each request's root, [num_requests] int64."""
        return self.indptr[:-1]

    def positions(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """Return each row's position when a request's root stands at ``seq_lens``."""
        return seq_lens[self.requests] + self.depths


def lay_out(
    trees: CandidateTrees, node_ids: torch.Tensor, root_token_ids: torch.Tensor, max_depth: int
) -> VerifyLayout:
    """Return the verify layout of the selected nodes (as ``select`` returns them).

    ``max_depth`` is a bound on the depth of the nodes that the host knows, such as the number of
    draft steps.
    """
    num_requests, num_nodes = trees.token_ids.shape
    assert root_token_ids.shape == (num_requests,), "one root per request"
    num_verify = num_requests + node_ids.shape[0]
    requests = torch.arange(num_requests, device=node_ids.device)
    node_requests = node_ids // num_nodes

    # Ids are ascending, so searching for each request's first possible id counts those before.
    offsets = torch.arange(num_requests + 1, device=node_ids.device)
    indptr = torch.searchsorted(node_ids, offsets * num_nodes) + offsets
    root_rows = indptr[:-1]
    node_rows = torch.arange(node_ids.shape[0], device=node_ids.device) + node_requests + 1
    rows = torch.cat((root_rows, node_rows))

    def by_row(of_roots: torch.Tensor, of_nodes: torch.Tensor) -> torch.Tensor:
        values = torch.cat((of_roots, of_nodes))
        return torch.empty_like(values).scatter_(0, rows, values)

    no_row = torch.full_like(root_rows, -1)
    # Column 0 is the root, so that parent -1 needs no case of its own.
    row_of = trees.parents.new_full((num_requests, num_nodes + 1), -1)
    row_of[:, 0] = root_rows
    row_of = row_of.flatten().scatter_(0, node_ids + node_requests + 1, node_rows)
    node_parents = trees.parents.flatten()[node_ids]
    parents = by_row(no_row, row_of[node_requests * (num_nodes + 1) + node_parents + 1])
    depths = by_row(torch.zeros_like(root_rows), trees.depths.flatten()[node_ids])
    first_child, next_sibling = _links(parents)
    return VerifyLayout(
        token_ids=by_row(root_token_ids, trees.token_ids.flatten()[node_ids]),
        requests=by_row(requests, node_requests),
        depths=depths,
        nodes=by_row(no_row, node_ids),
        parents=parents,
        first_child=first_child,
        next_sibling=next_sibling,
        ancestors=_ancestors(parents, depths, max_depth),
        verify_lens=indptr.diff(),
        indptr=indptr,
        num_verify=num_verify,
        max_depth=max_depth,
    )


def _links(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's first child and next sibling, in row order."""
    num_verify = parents.shape[0]
    nowhere = num_verify  # one slot too many takes what must not be written
    by_parent = torch.argsort(parents, stable=True)  # the roots, then family by family
    parent = parents[by_parent]
    # A root has no siblings: before and after a family stands something that is never a parent.
    stop = parents.new_full((1,), -2)
    is_first = (parent != torch.cat((stop, parent[:-1]))) & (parent >= 0)
    has_next = (parent == torch.cat((parent[1:], stop))) & (parent >= 0)

    first_child = parents.new_full((num_verify + 1,), -1)
    first_child.scatter_(0, torch.where(is_first, parent, nowhere), by_parent)
    following = torch.where(has_next, by_parent.roll(-1), -1)
    next_sibling = torch.empty_like(parents).scatter_(0, by_parent, following)
    return first_child[:-1], next_sibling


def _ancestors(parents: torch.Tensor, depths: torch.Tensor, max_depth: int) -> torch.Tensor:
    """Return each row's path from the root to itself, -1 after it."""
    rows = torch.arange(parents.shape[0], device=parents.device)
    columns = torch.arange(max_depth + 1, device=parents.device)
    ancestors = torch.where(columns == depths[:, None], rows[:, None], -1)
    # Each round doubles the known end of the path: take over what the row at its start knows.
    start = torch.where(parents < 0, rows, parents)
    for _ in range(max_depth.bit_length()):
        ancestors = torch.maximum(ancestors, ancestors[start])
        start = start[start]
    return ancestors
