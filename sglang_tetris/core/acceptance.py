"""Which verified draft tokens stand, and the bonus token after them.

Sample, then match: the target has drawn one token at every row, each from its own distribution
given that row's path. The walk follows, from the root, the child that equals the draw, and the
first draw without such a child is the bonus. Every emitted token is thus the target's own draw
given the tokens before it; the tree only decides how many draws are looked at.

Exact at any temperature, by induction over the emitted position: after x_1 .. x_t the next token
is the draw at the row whose path they are, wherever that row is verified, so

    P(x_{t+1} = v | x_1 .. x_t) = P(draw at that row = v) = target(v | x_1 .. x_t).

Which rows exist follows from the prefixes at the start of the step, for drafts, scores and
selection are deterministic; that the row is reached follows from the numbers of earlier positions,
which are independent of its own (core/noise). Rows at one position on different paths share a
number: harmless, since at most one of them is on the path, and the draws of the others are seen
by nobody. Nor may they be, by what drafts later: the next step draws with these numbers again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_tetris.core.layout import VerifyLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Acceptance:
    """The outcome of one verification, per request."""

    num_correct_drafts: torch.Tensor  # [num_requests] int64, no bonus
    accept_lens: torch.Tensor  # [num_requests] int64, with bonus: one more
    accepted_rows: torch.Tensor  # [num_requests, max_depth + 1] int64; root, correct drafts, -1
    token_ids: torch.Tensor  # [num_requests, max_depth + 1] int64; emitted, bonus last, then -1
    bonus_token_ids: torch.Tensor  # [num_requests] int64


def accept(layout: VerifyLayout, sampled: torch.Tensor) -> Acceptance:
    """Return what stands of the layout when the target drew ``sampled`` at its rows.

    ``sampled`` is [num_verify]; the target's argmax makes it greedy.
    """
    assert sampled.shape == layout.token_ids.shape, "one draw per row"
    nowhere = layout.num_verify  # a row past the last one, whose only child is itself
    rows = torch.arange(layout.num_verify, device=sampled.device)
    drawn_at_parent = sampled[layout.parents.clamp(min=0)]
    is_match = (layout.parents >= 0) & (layout.token_ids == drawn_at_parent)
    matched_child = rows.new_full((layout.num_verify + 1,), nowhere).scatter_(
        0, torch.where(is_match, layout.parents, nowhere), torch.where(is_match, rows, nowhere)
    )

    path = [layout.root_rows]
    for _ in range(layout.max_depth):
        path.append(matched_child[path[-1]])
    accepted = torch.stack(path, dim=1)
    is_accepted = accepted < nowhere

    num_correct_drafts = is_accepted.sum(dim=1) - 1
    with_nowhere = torch.cat((sampled.long(), sampled.new_full((1,), -1, dtype=torch.int64)))
    token_ids = with_nowhere[accepted]
    return Acceptance(
        num_correct_drafts=num_correct_drafts,
        accept_lens=num_correct_drafts + 1,
        accepted_rows=torch.where(is_accepted, accepted, -1),
        token_ids=token_ids,
        bonus_token_ids=token_ids.gather(1, num_correct_drafts[:, None]).squeeze(1),
    )
