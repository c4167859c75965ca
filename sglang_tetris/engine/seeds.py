"""Every request has a seed of its own, honoured always.

SGLang reads seeds under ``--enable-deterministic-inference`` only, lets the samples of one request
share theirs, and falls back to one constant. Here a request without a seed gets a fresh one where
it enters, before it is sent to every rank; sample k of a request with ``n`` samples gets the k-th
seed after the given one, so the first is what the request would be alone.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from typing import Any

import torch

from sglang_tetris.core.noise import next_seed

_BITS = 64


def give_seed(request: Any) -> None:
    """Set the seed of a request that is about to be sent to the scheduler.

    SGLang sends the samples of one request one after the other with one parameter object between
    them: each takes a copy and leaves the next one's seed behind.
    """
    shared = getattr(request, "sampling_params", None)
    if shared is None:  # an embedding
        return
    own = copy.copy(shared)
    if shared.sampling_seed is None:
        own.sampling_seed = secrets.randbits(_BITS) - (1 << (_BITS - 1))
    elif shared.n > 1:
        shared.sampling_seed = next_seed(shared.sampling_seed)
    request.sampling_params = own


def seeds_of(reqs: list[Any], device: torch.device | str) -> torch.Tensor:
    """Return the requests' seeds, [num_requests] int64.

    One that came past the front door is seeded by its id: the same on every rank.
    """
    seeds = [
        _of_text(req.rid) if req.sampling_params.sampling_seed is None
        else req.sampling_params.sampling_seed
        for req in reqs
    ]  # fmt: skip
    return torch.tensor(seeds, dtype=torch.int64, device=device)


def _of_text(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=_BITS // 8).digest()
    return int.from_bytes(digest, "little", signed=True)
