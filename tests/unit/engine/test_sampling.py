"""Every verified row draws what a plain decode at its path would, from the same logits."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout, lay_out
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.history import TokenHistory
from tests import builders
from tests.support import plain_decode
from tests.support.grammars import Rising, of_regex
from tests.support.stand_ins import Batch, Request, request

# What SGLang's modules say of themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore:Only CUDA", "ignore::DeprecationWarning")

VOCAB = 40
EOS = 3
NO_REPEATS = "no repeats"  # stands for a custom processor until SGLang can be imported
NO_PAIRS = "no pairs"
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": -1.3},
    "repetition": {"repetition_penalty": 1.4},
    "min_new_tokens": {"min_new_tokens": 6, "eos": EOS, "stops": {8}},
    "logit_bias": {"logit_bias": {"5": 4.0, "7": -100.0, "3": 0.1}},
    "grammar": {"grammar": 9},
    "processor": {"custom_logit_processor": NO_REPEATS, "custom_params": {"floor": -1.0}},
    "sglangs_processor": {
        "custom_logit_processor": NO_PAIRS,
        "custom_params": {"ngram_size": 2, "window_size": 50},
    },
    "two_processors": {
        "custom_logit_processor": (NO_REPEATS, NO_PAIRS),
        "custom_params": {"ngram_size": 2, "window_size": 50},
    },
}
EVERYTHING = {name: value for feature in FEATURES.values() for name, value in feature.items()} | {
    "custom_logit_processor": (NO_PAIRS, NO_REPEATS),
    "custom_params": {"floor": -1.0, "ngram_size": 2, "window_size": 50},
}
PROMPTS = [[9, 4, 4], [11, 12, 13, 14, 15, 9], [20], [5, 6, 5, 6, 5]]
OUTPUTS = [[4, 5, 4, 7], [0], [20, 20, 21, 22, 20, 23], [1, 2]]
TREES = [
    builders.tree([-1, -1, 0, 0, 2, 2], token_ids=[8, 4, 9, 4, 10, EOS]),
    builders.chain(4, token_ids=[1, 1, 3, 4]),
    builders.tree([]),
    builders.tree([-1, 0, 0, 1], token_ids=[4, 5, EOS, 4]),
]


class NoRepeats:
    """A custom logit processor: forbids what the answer has, and moves all else to a floor."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[Any]) -> torch.Tensor:
        assert len(logits) == len(custom_param_list)
        for row, params in enumerate(custom_param_list):
            req = params["__req__"]
            logits[row].clamp_(min=params.get("floor", -9.0))
            logits[row, list(req.output_ids)] = -torch.inf
            logits[row, len(req.output_ids) + len(req.origin_input_ids)] += 1.0
        return logits


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[None]:
    with plain_decode.engine():
        yield


@functools.cache
def serialised(name: str) -> str:
    """Return a processor as it is sent; requests with the same text share a call."""
    from sglang.srt.sampling import custom_logit_processor as processors  # late: see the filter

    by_name: dict[str, Any] = {
        NO_PAIRS: processors.DeepseekOCRNoRepeatNGramLogitProcessor,
        NO_REPEATS: type("NoRepeats", (NoRepeats, processors.CustomLogitProcessor), {}),
    }
    return str(by_name[name].to_str())


def requests_with(feature: dict[str, Any], *, only: set[int]) -> list[Request]:
    """Return the four requests; those in ``only`` ask for the feature, the others for nothing."""
    reqs = []
    for i, (prompt, output) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
        asked = dict(feature) if i in only else {}
        if "grammar" in asked:
            asked["grammar"] = Rising(VOCAB, most=asked["grammar"]).after([0, 2][: 1 + i % 2])
        processor = asked.get("custom_logit_processor")
        if processor is not None:
            name = processor if isinstance(processor, str) else processor[i % 2]
            asked["custom_logit_processor"] = serialised(name)
        # The greedy ones are greedy under their features too.
        asked |= {"temperature": [0.8, 0.0, 1.2, 1.0][i], "top_p": 0.9, "sampling_seed": 7 * i}
        reqs.append(request(prompt, output, rid=str(i), **asked))
    return reqs


def step(reqs: list[Request], trees: CandidateTrees) -> tuple[DraftRequests, VerifyLayout]:
    """Return a verification of all candidates, at the point where the requests stand."""
    slots = [5, 2, 7, 0][: len(reqs)]
    history = TokenHistory(8, 32, VOCAB, "cpu")
    history.token_ids.fill_(31)  # left from others; must not be read
    for slot, req in zip(slots, reqs, strict=True):
        text = torch.tensor([*req.origin_input_ids, *req.output_ids])
        history.token_ids[slot, : len(text)] = text
    seq_lens = [len(req.origin_input_ids) + len(req.output_ids) - 1 for req in reqs]
    depth = max(1, int(trees.depths.max())) if trees.num_candidates else 1
    batch = Batch(reqs=reqs)
    plain_decode.sampling_info(batch, VOCAB)
    requests = DraftRequests(
        batch=batch,
        history=history,
        req_pool_indices=torch.tensor(slots),
        seq_lens=torch.tensor(seq_lens),
        windows=torch.zeros(len(reqs), depth + 1, dtype=torch.int64),
        max_lens=[depth] * len(reqs),
        stop_token_ids=[frozenset()] * len(reqs),
    )
    node_ids = (~trees.is_padding).flatten().nonzero().flatten()
    roots = history.roots(requests.req_pool_indices, requests.seq_lens)
    return requests, lay_out(trees, node_ids, roots, depth)


def logits_for(layout: VerifyLayout, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layout.num_verify, VOCAB, generator=generator) * 3


def check_every_row(requests: DraftRequests, layout: VerifyLayout, raw: torch.Tensor) -> int:
    """Compare every row's logits and draw with a plain decode's; return how many there were.

    Rows that a grammar forbids to reach are drawn at by no one, and are not compared.
    """
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    logits = raw.clone()
    sampled = sample(requests, layout, logits)

    num_compared = 0
    for row, request_id in enumerate(layout.requests.tolist()):
        path = [above for above in layout.ancestors[row, 1:].tolist() if above >= 0]
        try:
            later = plain_decode.after(
                requests.batch.reqs[request_id], layout.token_ids[path].tolist()
            )
        except ValueError:
            continue
        plain = plain_decode.decode(later, raw[row])
        assert torch.equal(logits[row], plain.next_token_logits[0]), row
        assert sampled[row] == plain.token_id, row
        num_compared += 1
    return num_compared


@pytest.mark.parametrize("only", [{0, 1, 2, 3}, {0, 3}, {1}, {2}], ids=str)
@pytest.mark.parametrize("name", FEATURES)
def test_a_row_draws_as_a_plain_decode_at_its_path(name: str, only: set[int]) -> None:
    reqs = requests_with(FEATURES[name], only=only)
    requests, layout = step(reqs, builders.forest(*TREES))

    num_compared = check_every_row(requests, layout, logits_for(layout))

    assert layout.num_verify == 18
    assert num_compared == 18 or (name == "grammar" and num_compared >= 7)


@pytest.mark.parametrize("only", [{0, 1, 2, 3}, {0, 2}, {3}], ids=str)
def test_all_of_it_together_works_in_the_order_of_a_plain_decode(only: set[int]) -> None:
    reqs = requests_with(EVERYTHING, only=only)
    requests, layout = step(reqs, builders.forest(*TREES))

    assert check_every_row(requests, layout, logits_for(layout)) >= 7


@pytest.mark.parametrize("seed", range(12))
def test_random_trees_draw_as_plain_decodes(seed: int) -> None:
    rng = random.Random(seed)
    forests = (builders.random_trees(s, max_nodes=6, max_requests=4) for s in itertools.count(seed))
    trees = next(forest for forest in forests if forest.num_requests > 1)
    names = rng.sample(sorted(FEATURES.keys() - {"two_processors"}), 3)
    asked: dict[str, Any] = {}
    for name in names:
        asked |= FEATURES[name]
    only = {i for i in range(4) if rng.random() < 0.7}
    requests, layout = step(requests_with(asked, only=only)[: trees.num_requests], trees)

    assert check_every_row(requests, layout, logits_for(layout, seed)) >= trees.num_requests


def test_a_root_is_penalised_for_all_that_was_answered_and_for_no_prompt() -> None:
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    reqs = requests_with(FEATURES["frequency"] | FEATURES["repetition"], only={0, 1, 2, 3})
    requests, layout = step(reqs, builders.forest(*TREES))
    raw = logits_for(layout)
    logits = raw.clone()

    sample(requests, layout, logits)

    for root, req in zip(layout.root_rows.tolist(), reqs, strict=True):
        changed = (logits[root] != raw[root]).nonzero().flatten().tolist()
        assert changed == sorted(set(req.output_ids))


def test_the_least_number_of_tokens_counts_a_rows_ancestors() -> None:
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    req = request([9], [4, 4], eos=EOS, min_new_tokens=4)
    requests, layout = step([req], builders.chain(3, token_ids=[5, 6, 7]))
    logits = logits_for(layout)

    sample(requests, layout, logits)

    # Answered at these rows: 2, 3, 4, 5 tokens.
    assert (logits[:, EOS] == -torch.inf).tolist() == [True, True, False, False]


def test_siblings_are_penalised_for_their_own_paths_only() -> None:
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    req = request([9], [4], presence_penalty=1.5)
    requests, layout = step([req], builders.tree([-1, -1, 0, 1], token_ids=[10, 11, 12, 4]))
    raw = logits_for(layout)
    logits = raw.clone()

    sample(requests, layout, logits)

    changed = [(logits[row] != raw[row]).nonzero().flatten().tolist() for row in range(5)]
    assert changed == [[4], [4, 10], [4, 11], [4, 10, 12], [4, 11]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_features_the_logits_stay_as_they_are(temperature: float) -> None:
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    reqs = [request(rid=rid, output=[5], temperature=temperature) for rid in "ab"]
    requests, layout = step(reqs, builders.forest(builders.chain(2), builders.chain(1)))
    raw = logits_for(layout)
    logits = raw.clone()

    sampled = sample(requests, layout, logits)

    assert torch.equal(logits, raw)
    assert torch.equal(sampled, raw.argmax(dim=-1)) == (temperature == 0.0)


def test_a_batch_leaves_its_requests_and_grammars_as_they_were() -> None:
    reqs = requests_with(EVERYTHING, only={0, 1, 2, 3})
    before = [(req.output_ids[:], list(req.grammar.accepted)) for req in reqs]
    requests, layout = step(reqs, builders.forest(*TREES))

    check_every_row(requests, layout, logits_for(layout))

    assert [(req.output_ids, req.grammar.accepted) for req in reqs] == before


def test_what_xgrammar_forbids_is_drawn_nowhere() -> None:
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    vocabulary = [*"abcdefghijklmnopqrstuvwxyz0123456789 .,", "</s>"]
    grammar = of_regex("(ab|cd)+", vocabulary, stop=VOCAB - 1)
    tree = builders.tree([-1, -1, 0, 1], token_ids=[0, 2, 1, 3])  # a, c; ab, cd
    reqs = [request(rid=rid, output=[9]) for rid in "xy"]
    reqs[1].grammar = grammar
    requests, layout = step(reqs, builders.forest(builders.chain(1), tree))
    start = int(layout.root_rows[1])

    for seed in range(30):
        reqs[1].sampling_params.sampling_seed = seed
        plain_decode.sampling_info(requests.batch, VOCAB)
        drawn = sample(requests, layout, logits_for(layout, seed))[start:].tolist()
        text = "".join(vocabulary[token_id] for token_id in drawn)
        assert text[0] in "ac"
        assert text[1:3] == "bd"
        assert set(drawn[3:]) <= {0, 2, VOCAB - 1}
    assert grammar.accepted_tokens == []


def test_a_row_draws_the_same_whatever_else_is_verified() -> None:
    from sglang_tetris.engine.sampling import sample  # late: see the filter

    reqs = requests_with(EVERYTHING | {"grammar": 40}, only={0, 3})
    requests, layout = step(reqs, builders.forest(*TREES))
    raw = logits_for(layout)
    together = sample(requests, layout, raw.clone())

    for i, req in enumerate(reqs):
        rows = slice(int(layout.indptr[i]), int(layout.indptr[i + 1]))
        alone = sample(*step([req], TREES[i]), raw[rows].clone())
        assert torch.equal(alone, together[rows])
