"""Every row of a verification may draw what its request's grammar allows after the row's path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout, lay_out
from tests import builders
from tests.support.grammars import Rising, of_regex, unpacked

# What SGLang's modules say of themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore:Only CUDA", "ignore::DeprecationWarning")

VOCAB = 40  # more than a word of the mask


def lay_out_all(trees: CandidateTrees) -> VerifyLayout:
    node_ids = (~trees.is_padding).flatten().nonzero().flatten()
    depth = int(trees.depths.max()) if trees.num_candidates else 0
    return lay_out(trees, node_ids, torch.zeros(trees.num_requests, dtype=torch.int64), depth)


def path_to(layout: VerifyLayout, row: int) -> list[int]:
    """Return the drafted tokens from below the root to a row."""
    rows = [above for above in layout.ancestors[row, 1:].tolist() if above >= 0]
    return layout.token_ids[rows].tolist()


def masks(grammars: list[Any], layout: VerifyLayout) -> list[set[int]]:
    """Return the tokens that each row may draw."""
    from sglang_tetris.engine.grammar import row_mask  # late: see the filter above

    mask = row_mask([SimpleNamespace(grammar=grammar) for grammar in grammars], layout, VOCAB)
    if mask is None:
        return [set(range(VOCAB))] * layout.num_verify
    assert mask.vocab_mask.shape[0] == layout.num_verify
    return [set(row.nonzero().flatten().tolist()) for row in unpacked(mask.vocab_mask, VOCAB)]


def expected(grammar: Rising | None, path: list[int]) -> set[int]:
    """Return what a row may draw: anything where no grammar applies or none can get."""
    if grammar is None or grammar.finished:
        return set(range(VOCAB))
    try:
        return grammar.after(path).allowed()
    except ValueError:
        return set(range(VOCAB))


def test_masks_by_hand() -> None:
    trees = builders.forest(
        builders.chain(2, token_ids=[30, 9]),
        builders.tree([-1, -1, 0, 0, 1], token_ids=[2, 33, 3, 1, 5]),
    )
    grammar = Rising(VOCAB)
    layout = lay_out_all(trees)

    allowed = masks([None, grammar], layout)

    everything = set(range(VOCAB))
    assert allowed[:3] == [everything] * 3
    assert allowed[3:] == [
        {0, 1, 2},  # the root
        {3, 4, 5},  # 2
        everything,  # 33 is forbidden
        {4, 5, 6},  # 2, 3
        everything,  # 2, 1 is forbidden
        everything,  # below 33
    ]


@pytest.mark.parametrize("seed", range(60))
def test_each_row_is_masked_as_a_plain_decode_at_its_path(seed: int) -> None:
    trees = builders.random_trees(seed, max_nodes=12)
    layout = lay_out_all(trees)
    grammars: list[Any] = [
        None if request % 3 == 2 else Rising(VOCAB, most=1 + request, length=2 + seed % 4)
        for request in range(trees.num_requests)
    ]
    if grammars and seed % 4 == 0:
        grammars[0].finished = True

    allowed = masks(grammars, layout)

    for row, request in enumerate(layout.requests.tolist()):
        assert allowed[row] == expected(grammars[request], path_to(layout, row))


def test_a_grammar_ends_as_it_began() -> None:
    trees = builders.forest(
        builders.tree([-1, -1, 0, 0, 2], token_ids=[5, 6, 7, 30, 8]), builders.chain(3)
    )
    grammars = [Rising(VOCAB).after([1, 4]), Rising(VOCAB, length=2)]

    masks(grammars, lay_out_all(trees))

    assert [grammar.accepted for grammar in grammars] == [[1, 4], []]


@pytest.mark.parametrize("length", [1, 2])
def test_where_a_grammar_ends_everything_is_allowed(length: int) -> None:
    grammar = Rising(VOCAB, length=length)
    layout = lay_out_all(builders.chain(2, token_ids=[0, 1]))

    allowed = masks([grammar], layout)

    assert [len(row) for row in allowed] == [3, *([VOCAB] if length == 1 else [3]), VOCAB]
    assert grammar.accepted == []


def test_a_grammar_that_has_ended_forbids_nothing() -> None:
    allowed = masks([Rising(VOCAB, length=0), Rising(VOCAB)], lay_out_all(CandidateTrees.empty(2)))

    assert [len(row) for row in allowed] == [VOCAB, 3]


@pytest.mark.parametrize("grammars", [[], [None], [None, "finished"]], ids=str)
def test_without_a_grammar_at_work_there_is_no_mask(grammars: list[Any]) -> None:
    from sglang_tetris.engine.grammar import row_mask  # late: see the filter above

    finished = Rising(VOCAB)
    finished.finished = True
    reqs = [SimpleNamespace(grammar=finished if each else None) for each in grammars]

    assert row_mask(reqs, lay_out_all(CandidateTrees.empty(len(reqs))), VOCAB) is None


def test_the_mask_takes_away_all_other_tokens() -> None:
    from sglang_tetris.engine.grammar import row_mask  # late: see the filter above

    reqs = [SimpleNamespace(grammar=None), SimpleNamespace(grammar=Rising(VOCAB, most=2))]
    logits = torch.zeros(2, VOCAB)
    mask = row_mask(reqs, lay_out_all(CandidateTrees.empty(2)), VOCAB)
    assert mask is not None

    mask.apply(logits)

    assert not logits[0].any()
    assert (logits[1] == 0).nonzero().flatten().tolist() == [0, 1]


def test_xgrammar_masks_are_those_of_a_plain_decode() -> None:
    vocabulary = [*"abcdefghijklmnopqrstuvwxyz0123456789 .,", "</s>"]
    stop = vocabulary.index("</s>")
    regexes = [r"[ab]+[0-9]", None, r"(x|yz)*\."]
    grammars: list[Any] = [
        of_regex(regex, vocabulary, stop=stop) if regex else None for regex in regexes
    ]
    ids = vocabulary.index
    trees = builders.forest(
        builders.tree([-1, -1, 0, 2], token_ids=[ids("a"), ids("x"), ids("7"), stop]),
        builders.chain(2),
        builders.tree([-1, -1, 0, 2, 2], token_ids=[ids("y"), ids("."), ids("z"), ids("."), 3]),
    )
    layout = lay_out_all(trees)

    allowed = masks(grammars, layout)

    everything = set(range(VOCAB))
    for row, request in enumerate(layout.requests.tolist()):
        grammar = grammars[request]
        plain = torch.full((1, 2), -1, dtype=torch.int32)
        if grammar is not None:
            later = grammar.copy()
            try:
                for token_id in path_to(layout, row):
                    later.accept_token(token_id)
            except ValueError:
                assert allowed[row] == everything
                continue
            if not later.is_terminated():
                later.fill_vocab_mask(plain, 0)
        assert allowed[row] == set(unpacked(plain, VOCAB)[0].nonzero().flatten().tolist())
    assert allowed[0] == {ids("a"), ids("b")}
    assert all(grammar is None or grammar.accepted_tokens == [] for grammar in grammars)
    grammars[0].accept_token(ids("b"))  # it stands where it stood
