"""Requests and batches as SGLang's sampling sees them, without a scheduler or a model."""

from __future__ import annotations

import copy
import weakref
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


@dataclass(kw_only=True)
class Tokenizer:
    """What sampling asks of a tokenizer."""

    eos_token_id: int | None = None
    additional_stop_token_ids: set[int] | None = None


@dataclass(kw_only=True, eq=False)
class Request:
    """Stands in for SGLang's ``Req`` (schedule_batch.py)."""

    sampling_params: Any
    origin_input_ids: array[int]
    output_ids: array[int]
    rid: str = "0"
    grammar: Any = None
    custom_logit_processor: str | None = None
    eos_token_ids: set[int] | None = None
    tokenizer: Tokenizer | None = field(default_factory=Tokenizer)
    return_sampling_mask: bool = False
    sampling_logprobs_mode: str = "selected"

    def __post_init__(self) -> None:
        if self.custom_logit_processor and isinstance(self.sampling_params.custom_params, dict):
            self.sampling_params = copy.copy(self.sampling_params)
            self.sampling_params.custom_params = self.sampling_params.custom_params | {
                "__req__": weakref.proxy(self)
            }


@dataclass(kw_only=True, eq=False)
class Batch:
    """Stands in for SGLang's ``ScheduleBatch`` where it is asked for sampling parameters."""

    reqs: list[Request]
    device: str = "cpu"
    forward_mode: ForwardMode = ForwardMode.DECODE
    spec_algorithm: Any = SpeculativeAlgorithm.NONE
    sampling_info: Any = None


def request(
    prompt: Sequence[int] = (1, 2, 3),
    output: Iterable[int] = (),
    *,
    rid: str = "0",
    grammar: Any = None,
    custom_logit_processor: str | None = None,
    stops: Iterable[int] = (),
    eos: int | None = None,
    **params: Any,
) -> Request:
    """Return a request with SGLang's sampling parameters ``params``.

    ``stops`` are the model's own ending tokens and ``eos`` is the tokenizer's.
    """
    return Request(
        sampling_params=SamplingParams(**params),
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        rid=rid,
        grammar=grammar,
        custom_logit_processor=custom_logit_processor,
        eos_token_ids=set(stops),
        tokenizer=Tokenizer(eos_token_id=eos),
    )
