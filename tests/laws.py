"""The exact law of what steps emit, for a target small enough to enumerate every draw.

A target is a table: the next token's distribution after each prefix of up to three tokens. Steps
run until four tokens are out. Prefixes are numbered as in a heap, so shorter ones come first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sglang_tetris.core.acceptance import Acceptance, accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout, lay_out
from sglang_tetris.core.sampling import Filters, draw, kept_probs
from sglang_tetris.core.selection import select
from tests import builders

VOCAB = 5
NUM_EMITTED = 4
MAX_DEPTH = NUM_EMITTED - 1  # a step emits one token more than it has right drafts
ROOT = 1  # the token before the empty prefix

AcceptanceRule = Callable[[VerifyLayout, torch.Tensor], Acceptance]


def after(prefix: int, token: int) -> int:
    """Return the prefix that is one token longer."""
    return VOCAB * prefix + 1 + token


def tokens(prefix: int) -> tuple[int, ...]:
    """Return the tokens of a prefix; 0 is the empty one."""
    return () if prefix == 0 else (*tokens((prefix - 1) // VOCAB), (prefix - 1) % VOCAB)


def num_shorter(length: int) -> int:
    """Return how many prefixes have fewer tokens."""
    return sum(VOCAB**shorter for shorter in range(length))


NUM_PREFIXES = num_shorter(NUM_EMITTED)  # those that are still to be continued


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """What one verification makes of every combination of draws at its rows."""

    prefixes: list[int]  # per row: what its token is drawn after
    depths: list[int]  # per row
    children: list[list[int]]  # per row: its draft tokens
    emitted: torch.Tensor  # [VOCAB ** num_rows] int64: the prefix then; the last row's draw fastest


def steps(
    shape: Sequence[int], capacity: int, draft_probs: torch.Tensor, rule: AcceptanceRule = accept
) -> list[Step]:
    """Return the step after each prefix, in order.

    ``shape`` holds the parents of a candidate tree's nodes, the shallow ones first; the draft's
    likeliest tokens fill it. The prefixes of one length are a batch, whose candidates compete.
    """
    found = []
    for length in range(NUM_EMITTED):
        batch = range(num_shorter(length), num_shorter(length + 1))
        trees = [_tree(prefix, shape, MAX_DEPTH - length, draft_probs) for prefix in batch]
        forest = builders.forest(*trees)
        scores = score(forest, Calibration.identity(1, MAX_DEPTH))
        node_ids = select(scores, forest, capacity * len(trees))
        requests = node_ids // max(1, forest.num_nodes)
        for request, (prefix, tree) in enumerate(zip(batch, trees, strict=True)):
            nodes = node_ids[requests == request] - request * forest.num_nodes
            found.append(_step(prefix, tree, nodes, rule))
    return found


def emitted_law(of_steps: Sequence[Step], chances: Callable[[Step], torch.Tensor]) -> torch.Tensor:
    """Return the probability of each text of ``NUM_EMITTED`` tokens.

    ``chances`` gives that of each combination of draws in a step.
    """
    law = torch.zeros(num_shorter(NUM_EMITTED + 1), dtype=torch.float64)
    law[0] = 1.0
    for prefix, step in enumerate(of_steps):
        law.index_add_(0, step.emitted, law[prefix] * chances(step))
    return law[NUM_PREFIXES:]


def plain_law(probs: torch.Tensor) -> torch.Tensor:
    """Return the law of decoding token by token, ``probs`` being [NUM_PREFIXES, VOCAB]."""
    law = torch.ones(1, dtype=torch.float64)
    for length in range(NUM_EMITTED):
        law = (law[:, None] * probs[num_shorter(length) : num_shorter(length + 1)]).flatten()
    return law


def text(of_steps: Sequence[Step], drawn: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return what is emitted when ``drawn[position][prefix]`` is a row's token, in every step."""
    prefix = 0
    while (position := len(tokens(prefix))) < NUM_EMITTED:
        step = of_steps[prefix]
        combination = 0
        for at, depth in zip(step.prefixes, step.depths, strict=True):
            combination = VOCAB * combination + drawn[position + depth][at]
        prefix = int(step.emitted[combination])
    return tokens(prefix)


def plain_text(drawn: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return what is emitted token by token."""
    prefix = 0
    for of_prefixes in drawn:
        prefix = after(prefix, of_prefixes[prefix])
    return tokens(prefix)


def row_laws(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return the law of the draw after each prefix, [NUM_PREFIXES, VOCAB] float64."""
    kept = kept_probs(filters.scale(logits).softmax(dim=-1), filters)
    return kept / kept.sum(dim=-1, keepdim=True)


def apart(laws: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the chance of each combination of independent draws with these laws."""
    chances = torch.ones(1, dtype=torch.float64)
    for law in laws:
        chances = (chances[:, None] * law).flatten()
    return chances


class Numbers:
    """Draws as functions of one number in [0, 1), so that rows can share it.

    The numbers fall into intervals in which no row of the table changes its token.
    """

    def __init__(self, logits: torch.Tensor, filters: Filters) -> None:
        ends = row_laws(logits, filters).cumsum(dim=-1).flatten()
        ends = torch.cat((ends.new_zeros(1), ends.clamp(max=1.0))).sort().values
        inside = ((ends[1:] + ends[:-1]) / 2).clamp(max=1 - 2.0**-53)
        each = torch.arange(NUM_PREFIXES).repeat_interleave(len(inside))
        drawn = draw(logits[each], filters.of_rows(each), inside.repeat(NUM_PREFIXES))
        self.widths = ends.diff()
        self.drawn = drawn.view(NUM_PREFIXES, len(inside))

    def chances(self, step: Step, number_of_rows: Sequence[int]) -> torch.Tensor:
        """Return the chance of each combination when rows of equal entries share their number."""
        at, chances = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
        num_rows = len(number_of_rows)
        for number in sorted(set(number_of_rows)):
            rows = [row for row in range(num_rows) if number_of_rows[row] == number]
            places = torch.tensor([[VOCAB ** (num_rows - 1 - row)] for row in rows])
            of_intervals = (self.drawn[[step.prefixes[row] for row in rows]] * places).sum(dim=0)
            by_draws = torch.zeros(VOCAB**num_rows, dtype=torch.float64)
            by_draws.index_add_(0, of_intervals, self.widths)
            possible = by_draws.nonzero().flatten()
            at = (at[:, None] + possible).flatten()
            chances = (chances[:, None] * by_draws[possible]).flatten()
        return torch.zeros(VOCAB**num_rows, dtype=torch.float64).index_add_(0, at, chances)


def _tree(
    prefix: int, shape: Sequence[int], max_depth: int, draft_probs: torch.Tensor
) -> CandidateTrees:
    """Return the nodes of a shape that are not too deep, filled with the draft's best tokens."""
    prefixes: list[int] = []
    token_ids: list[int] = []
    logprobs: list[float] = []
    for node, parent in enumerate(shape):
        above = prefix if parent < 0 else prefixes[parent]
        if len(tokens(above)) == len(tokens(prefix)) + max_depth:
            break
        rank = list(shape[:node]).count(parent)
        token_ids.append(int(draft_probs[above].argsort(descending=True)[rank]))
        logprobs.append(float(draft_probs[above, token_ids[-1]].log()))
        prefixes.append(after(above, token_ids[-1]))
    return builders.tree(shape[: len(prefixes)], token_ids=token_ids, logprobs=logprobs)


def _step(prefix: int, tree: CandidateTrees, nodes: torch.Tensor, rule: AcceptanceRule) -> Step:
    """Run the acceptance rule on all combinations of draws at once, as so many requests."""
    num_rows = 1 + len(nodes)
    draws = torch.tensor(list(itertools.product(range(VOCAB), repeat=num_rows)))
    copies = dataclasses.replace(
        tree,
        **{
            name: getattr(tree, name).expand(len(draws), -1)
            for name in ("token_ids", "parents", "depths", "path_logprobs", "sources")
        },
        num_candidates=tree.num_candidates * len(draws),
    )
    node_ids = torch.arange(len(draws))[:, None] * tree.num_nodes + nodes
    roots = torch.full((len(draws),), ROOT)
    layout = lay_out(copies, node_ids.flatten(), roots, MAX_DEPTH)
    emitted = torch.full((len(draws),), prefix)
    for token in rule(layout, draws.flatten()).token_ids.T:
        emitted = torch.where(token >= 0, VOCAB * emitted + 1 + token, emitted)

    token_ids = layout.token_ids.tolist()
    prefixes = []  # of the rows of the first copy
    for path in layout.ancestors[:num_rows].tolist():
        prefixes.append(prefix)
        for row in path[1:]:  # from below the root
            if row >= 0:
                prefixes[-1] = after(prefixes[-1], token_ids[row])
    parents = layout.parents[:num_rows].tolist()
    return Step(
        prefixes=prefixes,
        depths=layout.depths[:num_rows].tolist(),
        children=[
            [token_ids[child] for child in range(num_rows) if parents[child] == row]
            for row in range(num_rows)
        ],
        emitted=emitted,
    )
