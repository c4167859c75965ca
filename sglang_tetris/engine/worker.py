"""The step: draft, score, select, lay out, verify, sample, accept, commit."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from sglang_tetris.engine.algorithm import LM
from sglang_tetris.engine.arguments import settings
from sglang_tetris.engine.draft_model import DraftModelSource
from sglang_tetris.engine.drafting import DraftRequests, DraftSource, Source
from sglang_tetris.engine.history import TokenHistory
from sglang_tetris.engine.lookup import LookupSource
from sglang_tetris.engine.policy import Steering
from sglang_tetris.engine.relay import TetrisDraftInput
from sglang_tetris.engine.requests import stop_token_ids, usable_draft_tokens
from sglang_tetris.engine.sampling import sample
from sglang_tetris.engine.stream import recorders_of
from sglang_tetris.engine.telemetry import PhaseTimer, Telemetry
from sglang_tetris.engine.tracing import tracer_of
from sglang_tetris.engine.verification import Verifier


class TetrisWorker(BaseSpecWorker):
    """Stands between SGLang's scheduler and the target for every forward."""

    def __init__(
        self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
    ) -> None:
        super().__init__()
        config = settings(server_args)
        self.depth = config.draft_tokens
        # Read by SGLang's metrics.
        self.speculative_num_steps = self.depth
        self.speculative_num_draft_tokens = self.depth + 1

        self._target_worker = target_worker
        self._draft_worker: TpModelWorker | None = None
        self.source: DraftSource
        if get_spec().speculative_algorithm == LM:
            self._draft_worker = TpModelWorker(
                server_args=server_args,
                gpu_id=gpu_id,
                nccl_port=nccl_port,
                is_draft_worker=True,
                # The draft runs at the target's positions.
                context_length=target_worker.model_runner.model_config.context_len,
            )
            self.source = DraftModelSource(self._draft_worker)
        else:
            self.source = LookupSource(self.depth)

        self.steering = Steering(config)
        self.calibration = Calibration.identity(len(Source), self.depth)
        self.verifier = Verifier(target_worker)
        self.telemetry = Telemetry(recorders_of(config), tracer_of(config, server_args))

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None
    ) -> GenerationBatchResult:
        """Run one forward for SGLang's scheduler; ``on_publish`` comes under overlap only."""
        is_prefill = batch.forward_mode.is_extend()
        result = self._prefill(batch) if is_prefill else self._decode(batch)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        return result

    def _prefill(self, batch: Any) -> GenerationBatchResult:
        timer = PhaseTimer()
        with timer.phase("prefill"):
            result = self._target_worker.forward_batch_generation(batch)
            self.history.record_prefill(batch, result.next_token_ids)
            self.source.prefill(batch, self.history)
        self.telemetry.report_prefill(batch, timer, result.logits_output)
        result.new_seq_lens = batch.seq_lens
        result.next_draft_input = TetrisDraftInput(bonus_tokens=result.next_token_ids)
        return result

    def _decode(self, batch: Any) -> GenerationBatchResult:
        timer = PhaseTimer()
        policy = self.steering.policy
        requests = self._requests(batch, policy.depth)
        capacity = policy.capacity(requests.num_requests)
        with timer.phase("draft"):
            trees = (
                self.source.propose(requests)
                if capacity > 0 and any(requests.max_lens)
                else CandidateTrees.empty(requests.num_requests)
            )
        with timer.phase("select"):
            scores = score(trees, self.calibration, max_depth=requests.depth)
            selected = select(scores, trees, capacity)
            roots = self.history.roots(requests.req_pool_indices, requests.seq_lens)
            layout = lay_out(trees, selected, roots, requests.depth)
        with timer.phase("verify"):
            output = self.verifier.verify(requests, layout)
        with timer.phase("sample"):
            sampled = sample(requests, layout, output.next_token_logits)
        with timer.phase("commit"):
            acceptance = accept(layout, sampled)
            result = self.verifier.commit(requests, layout, acceptance, output)
            self.history.record_step(requests.req_pool_indices, requests.seq_lens, acceptance)
            self.source.observe(requests, trees, layout, acceptance)
            result.next_draft_input = TetrisDraftInput(bonus_tokens=acceptance.bonus_token_ids)

        self.telemetry.report_step(
            requests,
            trees=trees,
            scores=scores,
            capacity=capacity,
            layout=layout,
            acceptance=acceptance,
            timer=timer,
            logits_output=output,
        )
        return result

    def _requests(self, batch: Any, depth: int) -> DraftRequests:
        window = batch.seq_lens[:, None] + torch.arange(depth + 1, device=batch.seq_lens.device)
        req_to_token = batch.req_to_token_pool.req_to_token
        return DraftRequests(
            batch=batch,
            history=self.history,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            windows=req_to_token[batch.req_pool_indices[:, None], window].long(),
            max_lens=[usable_draft_tokens(req, depth) for req in batch.reqs],
            stop_token_ids=[stop_token_ids(req) for req in batch.reqs],
        )

    # What SGLang asks of any speculative worker.

    def alloc_memory_pool(
        self,
        memory_pool_config: Any = None,
        req_to_token_pool: Any = None,
        token_to_kv_pool_allocator: Any = None,
    ) -> None:
        """Allocate what is indexed like SGLang's pools, once they exist."""
        self.req_to_token_pool = req_to_token_pool
        self.token_to_kv_pool_allocator = token_to_kv_pool_allocator
        num_slots, width = req_to_token_pool.req_to_token.shape
        self.history = TokenHistory(
            num_slots,
            width + self.depth + 1,
            self._target_worker.model_config.vocab_size,
            req_to_token_pool.device,
        )
        self.source.allocate(
            {
                "memory_pool_config": memory_pool_config,
                "req_to_token_pool": req_to_token_pool,
                "token_to_kv_pool_allocator": token_to_kv_pool_allocator,
            }
        )

    def init_cuda_graphs(self) -> None:
        """Prepare the draft's runner; its decode graphs would have the wrong width."""
        if self._draft_worker is not None:
            self._draft_worker.init_cuda_graphs(capture_decode_cuda_graph=False)

    def _draft_model_runners(self) -> tuple[Any, ...]:
        return () if self._draft_worker is None else (self._draft_worker.model_runner,)

    def weight_update_runners(self) -> list[tuple[str, Any]]:
        """Return none: SGLang would load the target's new weights into the draft as well."""
        return []

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        """Return every attention backend that a step touches."""
        runners = (self._target_worker.model_runner, *self._draft_model_runners())
        return tuple(runner.attn_backend for runner in runners)
