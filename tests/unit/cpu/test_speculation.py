"""The operators of SGLang's own speculative algorithms, against their definitions."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from sglang_tetris.cpu import operators, speculation

QLEN_ONLY = 1


@dataclass
class Trees:
    """What SGLang knows of a batch of trees of ``width`` places, the root's counted."""

    width: int
    mask: torch.Tensor
    positions: torch.Tensor
    index: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor

    @classmethod
    def empty(cls, num_requests: int, width: int) -> Trees:
        def places() -> torch.Tensor:
            return torch.full((num_requests, width), -1)

        return cls(
            width=width,
            mask=torch.ones(num_requests * width * width, dtype=torch.bool),
            positions=torch.zeros(num_requests * width, dtype=torch.int64),
            index=places(),
            next_token=places(),
            next_sibling=places(),
        )


def built(
    chosen: list[list[int]], expanded: list[list[int]], seq_lens: torch.Tensor, topk: int
) -> Trees:
    """Return trees from what SGLang's draft leaves behind."""
    trees = Trees.empty(len(chosen), len(chosen[0]) + 1)
    speculation.build_tree_kernel_efficient_cpu(
        torch.tensor(expanded),
        torch.tensor(chosen),
        seq_lens,
        trees.mask,
        trees.positions,
        trees.index,
        trees.next_token,
        trees.next_sibling,
        topk,
        len(chosen[0]),
        trees.width,
        QLEN_ONLY,
    )
    return trees


def random_drafts(rng: random.Random, topk: int, steps: int) -> tuple[list[int], list[int]]:
    """Return chosen draft tokens, ancestor-closed and ascending, and which were expanded."""
    expanded = [-1, *range(topk)]  # the root, then the first step's tokens
    num_drafted = topk
    for _ in range(1, steps):
        step = range(num_drafted, num_drafted + topk * topk)
        expanded += sorted(rng.sample(step, topk))
        num_drafted += topk * topk
    chosen: list[int] = []
    reachable = list(range(topk))
    while len(chosen) < 5:
        node = rng.choice(reachable)
        reachable.remove(node)
        chosen.append(node)
        if node in expanded:
            entry = expanded.index(node)
            children = range(entry * topk, entry * topk + topk)
            reachable += [child for child in children if child < num_drafted]
    return sorted(chosen), expanded


def parents_of(chosen: list[int], expanded: list[int], topk: int) -> list[int]:
    """Return each place's parent, by definition; the root has none."""
    return [-1] + [
        0 if node < topk else chosen.index(expanded[node // topk]) + 1 for node in chosen
    ]


def test_a_chain_is_a_lower_triangle() -> None:
    trees = built([[0, 1, 2]], [[-1, 0, 1]], torch.tensor([40]), topk=1)

    assert trees.mask.view(4, 4).tolist() == torch.ones(4, 4).tril().bool().tolist()
    assert trees.positions.tolist() == [40, 41, 42, 43]
    assert trees.next_token.tolist() == [[1, 2, 3, -1]]
    assert trees.next_sibling.tolist() == [[-1, -1, -1, -1]]


@pytest.mark.parametrize("seed", range(60))
def test_trees_are_built_by_definition(seed: int) -> None:
    rng = random.Random(seed)
    topk, seq_lens = rng.choice([2, 3]), torch.tensor([7, 30])
    drafts = [random_drafts(rng, topk, steps=3) for _ in range(2)]

    trees = built([d[0] for d in drafts], [d[1] for d in drafts], seq_lens, topk)

    masks = trees.mask.view(2, trees.width, trees.width)
    for request, (chosen, expanded) in enumerate(drafts):
        parents = parents_of(chosen, expanded, topk)
        for place in range(trees.width):
            path = {place}
            while parents[min(path)] >= 0:
                path.add(parents[min(path)])
            assert set(masks[request, place].nonzero().flatten().tolist()) == path
            depth = len(path) - 1
            assert trees.positions[request * trees.width + place] == seq_lens[request] + depth
            children = [child for child in range(trees.width) if parents[child] == place]
            listed = [int(trees.next_token[request, place])] if children else []
            while len(listed) < len(children):
                listed.append(int(trees.next_sibling[request, listed[-1]]))
            assert listed == children
    assert trees.index.flatten().tolist() == list(range(2 * trees.width))


@pytest.mark.parametrize("seed", range(30))
def test_a_mask_implies_its_tree(seed: int) -> None:
    rng = random.Random(seed)
    seq_lens = torch.tensor([7, 30])
    drafts = [random_drafts(rng, 2, steps=3) for _ in range(2)]
    trees = built([d[0] for d in drafts], [d[1] for d in drafts], seq_lens, 2)

    again = Trees.empty(2, trees.width)
    speculation.reconstruct_indices_from_tree_mask(
        trees.mask,
        seq_lens,
        again.positions,
        again.index,
        again.next_token,
        again.next_sibling,
        2,
        trees.width,
    )

    assert torch.equal(again.positions, trees.positions)
    assert torch.equal(again.index, trees.index)
    assert torch.equal(again.next_token, trees.next_token)
    assert torch.equal(again.next_sibling, trees.next_sibling)


@pytest.mark.parametrize("seed", range(60))
def test_a_walk_follows_the_targets_choices(seed: int) -> None:
    rng = random.Random(seed)
    drafts = [random_drafts(rng, 2, steps=3) for _ in range(2)]
    trees = built([d[0] for d in drafts], [d[1] for d in drafts], torch.tensor([7, 30]), 2)
    candidates = torch.tensor([[rng.randrange(4) for _ in range(trees.width)] for _ in drafts])
    choices = torch.tensor([[rng.randrange(4) for _ in range(trees.width)] for _ in drafts])
    accept_index = torch.full((2, 4), -1, dtype=torch.int32)
    predicts = torch.zeros(2 * trees.width, dtype=torch.int32)
    num_accepted = torch.zeros(2, dtype=torch.int32)

    speculation.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=num_accepted,
        candidates=candidates,
        retrive_index=trees.index,
        retrive_next_token=trees.next_token,
        retrive_next_sibling=trees.next_sibling,
        target_predict=choices,
    )

    for request, (chosen, expanded) in enumerate(drafts):
        parents = parents_of(chosen, expanded, 2)
        path = [0]
        while len(path) < 4:
            here = path[-1]
            matches = [
                place
                for place in range(trees.width)
                if parents[place] == here and candidates[request, place] == choices[request, here]
            ]
            if not matches:
                break
            path.append(matches[0])
        rows = [request * trees.width + place for place in path]
        assert accept_index[request].tolist() == rows + [-1] * (4 - len(path))
        assert num_accepted[request] == len(path) - 1
        assert predicts[rows].tolist() == [int(choices[request, place]) for place in path]


def test_slots_and_bonus_tokens_are_gathered() -> None:
    table = torch.arange(24).view(3, 8)
    slots = torch.zeros(4, dtype=torch.int64)
    operators.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([2, 0]), table, torch.tensor([3, 5]), slots, 8, 1, 2
    )
    assert slots.tolist() == [19, 20, 5, 6]

    bonus = torch.zeros(2, dtype=torch.int32)
    operators.fill_bonus_tokens_cpu(
        torch.tensor([[5, 6, 0], [7, 0, 0]]), torch.tensor([2, 1]), bonus, 3
    )
    assert bonus.tolist() == [6, 7]

    packed = torch.zeros(3, dtype=torch.int64)
    operators.fill_accept_out_cache_loc_cpu(
        torch.tensor([[0, 2], [3, -1]]), torch.tensor([90, 91, 92, 93]), packed
    )
    assert packed.tolist() == [90, 92, 93]


def test_sglang_finds_the_submodule_it_imports() -> None:
    """In a process of its own, with the finder that its .pth file installs."""
    program = "import sgl_kernel.speculative as module; print(module.__file__)"

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
    )

    assert done.stdout.strip() == speculation.__file__, done.stderr[-2000:]
