"""Writes the file of ``--tetris-trace``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from sglang_tetris import __version__
from sglang_tetris.config import TetrisConfig
from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.stream import Appender
from sglang_tetris.metrics import StepRecord
from sglang_tetris.trace import RequestTrace, StepTrace, TraceHeader, pack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTensors:
    """What a trace keeps of a step and only the device knows."""

    seq_lens: torch.Tensor  # [num_requests] int64
    path_logprobs: torch.Tensor  # [num_requests, num_nodes], as are the next five
    scores: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    sources: torch.Tensor
    is_padding: torch.Tensor
    row_requests: torch.Tensor  # [num_verify] int64
    row_nodes: torch.Tensor  # [num_verify] int64; as in VerifyLayout.nodes
    accepted_rows: torch.Tensor  # [num_requests, max_depth + 1] int64

    @classmethod
    def of(
        cls,
        requests: DraftRequests,
        trees: CandidateTrees,
        scores: torch.Tensor,
        layout: VerifyLayout,
        acceptance: Acceptance,
    ) -> StepTensors:
        """Return those of one step."""
        return cls(
            seq_lens=requests.seq_lens.clone(),  # SGLang's own, which may move on before the copy
            path_logprobs=trees.path_logprobs,
            scores=scores,
            parents=trees.parents,
            depths=trees.depths,
            sources=trees.sources,
            is_padding=trees.is_padding,
            row_requests=layout.requests,
            row_nodes=layout.nodes,
            accepted_rows=acceptance.accepted_rows,
        )

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> StepTensors:
        """Return the same fields after ``function``."""
        return StepTensors(**{f.name: function(getattr(self, f.name)) for f in fields(self)})


class Tracer:
    """Appends one item per decode step to a new file."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self._file = Appender("--tetris-trace", path, mode="wb")
        self._file.write(pack(header))

    def write(self, record: StepRecord, tensors: StepTensors, numbers: Sequence[int]) -> None:
        """Append a step; ``tensors`` are on the host, ``numbers`` are the requests' own."""
        step = StepTrace(
            time_s=record.time_s,
            capacity=record.capacity,
            num_rows=record.num_rows,
            seconds=record.seconds,
            requests=_requests(tensors, numbers),
        )
        self._file.write(pack(step))

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def tracer_of(config: TetrisConfig, server_args: Any) -> Tracer | None:
    """Return what the settings ask for."""
    if config.trace is None:
        return None
    draft = server_args.speculative_draft_model_path
    header = TraceHeader(
        model=Path(server_args.model_path).name,
        draft_model=None if draft is None else Path(draft).name,
        settings=config.model_dump(
            include={"sources", "policy", "tokens_per_request", "capacity", "draft_tokens"}
        ),
        version=__version__,
    )
    return Tracer(config.trace, header)


def _requests(tensors: StepTensors, numbers: Sequence[int]) -> list[RequestTrace]:
    num_nodes = tensors.parents.shape[1]
    real = (num_nodes - tensors.is_padding.sum(dim=1)).tolist()  # padding follows the real nodes
    nodes_of_rows = [node % num_nodes if node >= 0 else -1 for node in tensors.row_nodes.tolist()]
    selected: list[list[int]] = [[] for _ in numbers]
    for request, node in zip(tensors.row_requests.tolist(), nodes_of_rows, strict=True):
        if node >= 0:
            selected[request].append(node)
    path_logprobs, scores = tensors.path_logprobs.tolist(), tensors.scores.tolist()
    parents, depths = tensors.parents.tolist(), tensors.depths.tolist()
    sources, seq_lens = tensors.sources.tolist(), tensors.seq_lens.tolist()
    requests = []
    for i, rows in enumerate(tensors.accepted_rows.tolist()):
        accepted = [nodes_of_rows[row] for row in rows[1:] if row >= 0]
        requests.append(
            RequestTrace(
                request=numbers[i],
                seq_len=seq_lens[i],
                path_logprobs=path_logprobs[i][: real[i]],
                scores=scores[i][: real[i]],
                parents=parents[i][: real[i]],
                depths=depths[i][: real[i]],
                sources=sources[i][: real[i]],
                selected=selected[i],
                accepted=accepted,
                accept_length=len(accepted) + 1,
            )
        )
    return requests
