"""The core's slow twins, written from the definitions in plain Python, and the published rule."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from sglang_tetris.core.calibration import MAX_LOGIT
from sglang_tetris.core.candidates import CandidateTrees

Node = tuple[int, int]  # request, node


def real_nodes(trees: CandidateTrees) -> list[Node]:
    """Return the candidates of the batch, without padding."""
    depths = trees.depths.tolist()
    return [
        (request, node)
        for request in range(trees.num_requests)
        for node in range(trees.num_nodes)
        if depths[request][node] > 0
    ]


def score(
    trees: CandidateTrees, slopes: list[list[float]], intercepts: list[list[float]]
) -> list[list[float]]:
    """Return the scores, node by node."""
    scores = [[-math.inf] * trees.num_nodes for _ in range(trees.num_requests)]
    parents, path_logprobs = trees.parents.tolist(), trees.path_logprobs.tolist()
    sources, depths = trees.sources.tolist(), trees.depths.tolist()
    for request, node in real_nodes(trees):
        parent = parents[request][node]
        above, parent_score = 0.0, 1.0
        if parent >= 0:
            above, parent_score = path_logprobs[request][parent], scores[request][parent]
        source = sources[request][node]
        column = min(depths[request][node], len(slopes[0])) - 1
        scores[request][node] = parent_score * _calibrated(
            path_logprobs[request][node] - above,
            slopes[source][column],
            intercepts[source][column],
        )
    return scores


def _calibrated(logprob: float, slope: float, intercept: float) -> float:
    if math.isnan(logprob) or logprob == -math.inf:
        return 0.0
    logit = MAX_LOGIT
    if logprob < 0.0:
        logit = min(MAX_LOGIT, logprob - math.log(-math.expm1(logprob)))
    return 1 / (1 + math.exp(-(slope * logit + intercept)))


def is_closed(trees: CandidateTrees, nodes: Sequence[Node]) -> bool:
    """Say whether every node's parent is among the nodes, or the root."""
    parents = trees.parents.tolist()
    return all(
        parents[request][node] < 0 or (request, parents[request][node]) in nodes
        for request, node in nodes
    )


def best_closed_sum(scores: torch.Tensor, trees: CandidateTrees, capacity: int) -> float:
    """Return the best sum of scores over all ancestor-closed sets of ``capacity`` nodes."""
    values = scores.tolist()
    return max(
        math.fsum(values[request][node] for request, node in nodes)
        for nodes in itertools.combinations(real_nodes(trees), capacity)
        if is_closed(trees, nodes)
    )


def select(scores: torch.Tensor, trees: CandidateTrees, capacity: int) -> list[int]:
    """Return the selection of a heap that opens a node's children when it takes the node."""
    values, parents, depths = scores.tolist(), trees.parents.tolist(), trees.depths.tolist()
    children: dict[Node, list[Node]] = {}
    for request, node in real_nodes(trees):
        children.setdefault((request, parents[request][node]), []).append((request, node))

    def ranked(nodes: list[Node]) -> list[tuple[float, int, int, int]]:
        return [(-values[r][node], depths[r][node], r, node) for r, node in nodes]

    heap = [
        entry
        for request in range(trees.num_requests)
        for entry in ranked(children.get((request, -1), []))
    ]
    heapq.heapify(heap)
    taken: list[int] = []
    while heap and len(taken) < capacity:
        _, _, request, node = heapq.heappop(heap)
        taken.append(request * trees.num_nodes + node)
        for entry in ranked(children.get((request, node), [])):
            heapq.heappush(heap, entry)
    return sorted(taken)


def lay_out(
    trees: CandidateTrees,
    node_ids: Sequence[int],
    root_token_ids: Sequence[int],
    max_depth: int,
) -> dict[str, object]:
    """Return the fields of the layout as lists, request by request."""
    token_ids, parents = trees.token_ids.tolist(), trees.parents.tolist()
    rows: list[tuple[int, int, int, int, int]] = []  # token, request, depth, node id, parent row
    paths: list[list[int]] = []
    indptr = [0]
    for request, root_token_id in enumerate(root_token_ids):
        row_of = {-1: len(rows)}
        paths.append([len(rows)])
        rows.append((root_token_id, request, 0, -1, -1))
        for node_id in node_ids:
            if node_id // trees.num_nodes != request:
                continue
            node = node_id % trees.num_nodes
            parent = row_of[parents[request][node]]
            row_of[node] = len(rows)
            paths.append([*paths[parent], len(rows)])
            rows.append((token_ids[request][node], request, rows[parent][2] + 1, node_id, parent))
        indptr.append(len(rows))
    families = [
        [row for row, fields in enumerate(rows) if fields[4] == at] for at in range(len(rows))
    ]
    following = {
        row: after for family in families for row, after in itertools.pairwise([*family, -1])
    }
    return {
        "token_ids": [fields[0] for fields in rows],
        "requests": [fields[1] for fields in rows],
        "depths": [fields[2] for fields in rows],
        "nodes": [fields[3] for fields in rows],
        "parents": [fields[4] for fields in rows],
        "first_child": [family[0] if family else -1 for family in families],
        "next_sibling": [following.get(row, -1) for row in range(len(rows))],
        "ancestors": [path + [-1] * (max_depth + 1 - len(path)) for path in paths],
        "verify_lens": [after - before for before, after in itertools.pairwise(indptr)],
        "indptr": indptr,
        "num_verify": len(rows),
        "max_depth": max_depth,
    }


def accept(
    token_ids: Sequence[int], parents: Sequence[int], root_row: int, sampled: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return one request's accepted rows, root first, and its emitted tokens, bonus last."""
    rows, emitted = [root_row], [sampled[root_row]]
    while children := [
        row
        for row, parent in enumerate(parents)
        if parent == rows[-1] and token_ids[row] == emitted[-1]
    ]:
        rows.append(children[0])
        emitted.append(sampled[children[0]])
    return rows, emitted


def splitmix64(state: int, count: int) -> list[int]:
    """Return the first unsigned outputs of SplitMix64 from a state (OOPSLA 2014, figure 16)."""
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        outputs.append(_finalised(state))
    return outputs


def uniform(seed: int, position: int) -> float:
    """Return output ``position`` of the generator that the finalised seed starts, in [0, 1)."""
    state = _finalised(seed % 2**64) + position * 0x9E3779B97F4A7C15
    (output,) = splitmix64(state % 2**64, 1)
    return (output >> 11) / 2**53


def _finalised(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def kept(probs: Sequence[float], *, top_k: int, top_p: float, min_p: float) -> list[int]:
    """Return the ids of the tokens that a row's filters leave, rising."""
    falling = sorted(range(len(probs)), key=lambda token_id: (-probs[token_id], token_id))
    least = Fraction(probs[falling[0]]) * Fraction(min_p)
    stay = []
    before = Fraction(0)
    for rank, token_id in enumerate(falling):
        prob = Fraction(probs[token_id])
        if rank < top_k and before <= Fraction(top_p) and prob >= least:
            stay.append(token_id)
        before += prob
    return sorted(stay)


def draw(probs: Sequence[float], number: float, *, top_k: int, top_p: float, min_p: float) -> int:
    """Return the token in which ``number`` falls when what stays is laid side by side by id."""
    stay = kept(probs, top_k=top_k, top_p=top_p, min_p=min_p)
    target = Fraction(number) * sum(Fraction(probs[token_id]) for token_id in stay)
    mass = Fraction(0)
    for token_id in stay:
        mass += Fraction(probs[token_id])
        if mass > target:
            return token_id
    raise AssertionError("a number of at least 1, or no mass")


def paper_select(logprobs: torch.Tensor, capacity: int) -> torch.Tensor:
    """Return TETRIS's published selection: how many drafts of each chain to verify.

    ``logprobs`` are conditional, [num_requests, depth]. The best cumulative log-probabilities
    win, and a request verifies up to the last position that won.
    """
    num_requests, depth = logprobs.shape
    best = logprobs.cumsum(dim=1).flatten().topk(min(capacity, logprobs.numel())).indices
    lens = torch.zeros(num_requests, dtype=torch.int64)
    return lens.scatter_reduce_(0, best // depth, best % depth + 1, reduce="amax")
