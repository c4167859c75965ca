"""The operators of SGLang's own speculative algorithms, for ``sgl_kernel`` on a CPU.

Their trees have a few nodes per request, so plain lists do. The semantics are those of the GPU
kernels in SGLang's kernels/ops/speculative (spec_tree.py, eagle.py, cache_locs.py).
"""

from __future__ import annotations

import torch

_QLEN_ONLY = 1  # TreeMaskMode: what SGLang asks for on a CPU


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """Read each request's ``topk * num_cols`` slots behind its committed tokens."""
    columns = seq_lens[:, None] + torch.arange(topk * num_cols)
    slots = req_to_token[req_pool_indices[:, None], columns]
    out_cache_loc.copy_(slots.flatten())


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    num_verify_tokens: int,
    tree_mask_mode: int,
) -> None:
    """Write each tree's mask, positions and links; place 0 is its root, all others drafts.

    ``selected_index`` [num_requests, num_verify_tokens - 1] names draft tokens among all that were
    expanded, and ``parent_list`` those that were expanded further: draft token j is a child of
    the entry j // topk, the first being the root.
    """
    assert tree_mask_mode == _QLEN_ONLY, f"a tree mask of mode {tree_mask_mode} on a CPU"
    masks, depths, children, siblings = [], [], [], []
    for chosen, expanded in zip(selected_index.tolist(), parent_list.tolist(), strict=True):
        place_of = {node: place for place, node in enumerate(chosen, start=1)}
        paths = [[0]]
        next_token = [-1] * num_verify_tokens
        next_sibling = [-1] * num_verify_tokens
        parents: list[int | None] = [None]
        for place, node in enumerate(chosen, start=1):
            parent = 0 if node < topk else place_of.get(expanded[node // topk])
            parents.append(parent)
            above = [0] if parent is None or parent >= place else paths[parent]
            paths.append([*above, place])
        for place in range(num_verify_tokens - 1, 0, -1):
            parent = parents[place]
            if parent is not None:
                next_sibling[place] = next_token[parent]
                next_token[parent] = place
        masks.append([[place in path for place in range(num_verify_tokens)] for path in paths])
        depths.append([len(path) - 1 for path in paths])
        children.append(next_token)
        siblings.append(next_sibling)
    shape = retrieve_index.shape
    tree_mask.copy_(torch.tensor(masks, dtype=torch.bool).flatten())
    positions.copy_((torch.tensor(depths).view(shape) + seq_lens[:, None]).flatten())
    retrieve_index.copy_(torch.arange(retrieve_index.numel()).view(shape))
    retrieve_next_token.copy_(torch.tensor(children).view(shape))
    retrieve_next_sibling.copy_(torch.tensor(siblings).view(shape))


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Write each tree's positions and links as its mask implies them."""
    shape = (batch_size, draft_token_num, draft_token_num)
    ancestors = tree_mask[: batch_size * draft_token_num**2].view(shape).bool().tril(-1)
    place = torch.arange(draft_token_num)
    parents = torch.where(ancestors, place, -1).amax(dim=-1)
    no_place = draft_token_num

    def first(candidates: torch.Tensor) -> torch.Tensor:
        """Return the first place that each row [request, place, candidate] offers, or -1."""
        found = torch.where(candidates, place, no_place).amin(dim=-1)
        return torch.where(found < no_place, found, -1)

    is_sibling = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    positions.copy_((ancestors.sum(dim=-1) + verified_seq_len[:, None]).flatten())
    retrieve_index.copy_(torch.arange(retrieve_index.numel()).view(shape[:2]))
    retrieve_next_token.copy_(first(ancestors.transpose(1, 2)))
    retrieve_next_sibling.copy_(first(is_sibling & (place > place[:, None])))


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree along the children equal to the target's choice; the last choice is the bonus.

    ``predicts`` gets the choice at every accepted row, ``accept_index`` these rows, and
    ``accept_token_num`` how many are drafts.
    """
    width = candidates.shape[1]
    tokens, rows = candidates.tolist(), retrive_index.tolist()
    first, following = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for request, choices in enumerate(target_predict.tolist()):
        place, path = 0, [0]
        while len(path) < accept_index.shape[1]:
            child = first[request][place]
            while child != -1 and tokens[request][child] != choices[place]:
                child = following[request][child]
            if child == -1:
                break
            place = child
            path.append(place)
        accepted = [rows[request][place] for place in path]
        assert accepted[0] == request * width, "a tree's rows stand together"
        accept_index[request, : len(path)] = torch.tensor(accepted, dtype=accept_index.dtype)
        predicts[accepted] = torch.tensor([choices[p] for p in path], dtype=predicts.dtype)
        accept_token_num[request] = len(path) - 1


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Read the last accepted token of each request."""
    rows = torch.arange(accept_lens.shape[0]) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[rows])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack the slots of the accepted rows."""
    rows = accept_index[accept_index >= 0]
    accept_out_cache_loc[: rows.shape[0]] = out_cache_loc[rows]
