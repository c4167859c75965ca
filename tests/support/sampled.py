"""Seeded requests with every sampling option that SGLang has, alone and mixed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.support.chats import conversations
from tests.support.generate import generate, outcome

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REGEX = r"(On|In) [A-Z][a-z]{2,8}( [a-z]{1,8}){2,5}\."
EBNF = 'root ::= item ("; " item){1,3} "."\nitem ::= [a-z]{2,8} " = " [0-9]{1,3}'


def _of_sglang(name: str) -> str:
    """Return one of SGLang's custom logit processors as its API wants it."""
    from sglang.srt.sampling import custom_logit_processor  # late: it loads dill

    text: str = getattr(custom_logit_processor, name)().to_str()
    return text


# By name, what goes into the sampling parameters; top-level fields of a request start with ":".
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0},
    "temperature 0.3": {"temperature": 0.3},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 1.2": {"temperature": 1.2},
    "top-k": {"top_k": 20},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "frequency penalty": {"frequency_penalty": 0.6},
    "presence penalty": {"presence_penalty": 0.8},
    "repetition penalty": {"repetition_penalty": 1.2},
    "logit bias": {"logit_bias": {"28": -4.0, "216": 3.0}},
    "at least": {"min_new_tokens": 30},
    "ignored end": {"ignore_eos": True},
    "stop strings": {"stop": [" of", ".\n"]},
    "stop tokens": {"stop_token_ids": [28, 253]},
    "JSON schema": {"json_schema": json.dumps(SCHEMA)},
    "regular expression": {"regex": REGEX},
    "EBNF": {"ebnf": EBNF},
    "disallowed tokens": {
        ":custom_logit_processor": "DisallowedTokensLogitsProcessor",
        "custom_params": {"token_ids": [260, 284, 28]},
    },
    # Reads the answer so far through ``__req__``: the tokens of a row's own path.
    "no repeated 3-gram": {
        ":custom_logit_processor": "DeepseekOCRNoRepeatNGramLogitProcessor",
        "custom_params": {"ngram_size": 3, "window_size": 64},
    },
}
_GRAMMARS = {"JSON schema", "regular expression", "EBNF"}
_PROCESSORS = {"disallowed tokens", "no repeated 3-gram"}
# These can forbid all that a grammar allows; of the last, see patches/.
_AGAINST_GRAMMARS = _PROCESSORS | {"at least", "ignored end"}
_PROMPTS = [turns[0] for turns in conversations(60)]


def request(index: int, *names: str, max_new_tokens: int = 48, **sampling: Any) -> dict[str, Any]:
    """Return a request of ``/generate`` with the named options; its index is its seed and prompt.

    At temperature 0.8 unless an option says otherwise.
    """
    fields: dict[str, Any] = {
        "text": f"<|im_start|>user\n{_PROMPTS[index % len(_PROMPTS)]}<|im_end|>\n"
        "<|im_start|>assistant\n",
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    params = {"temperature": 0.8, "max_new_tokens": max_new_tokens, "sampling_seed": index}
    for name in names:
        for key, value in OPTIONS[name].items():
            if key == ":custom_logit_processor":
                fields["custom_logit_processor"] = _of_sglang(value)
            else:
                params[key] = value
    return {**fields, "sampling_params": params | sampling}


def singles() -> dict[str, dict[str, Any]]:
    """Return a request for each option."""
    return {name: request(100 + i, name) for i, name in enumerate(OPTIONS)}


def combinations(count: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return requests with four random options each that go together."""
    rng = random.Random(seed)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        names = rng.sample(list(OPTIONS), 4)
        if _go_together(set(names)):
            found[" + ".join(names)] = request(200 + len(found), *names)
    return found


def _go_together(names: set[str]) -> bool:
    return (
        sum(name.startswith("temperature") for name in names) <= 1
        and len(names & _GRAMMARS) <= 1
        and len(names & _PROCESSORS) <= 1
        and not (names & _GRAMMARS and names & _AGAINST_GRAMMARS)
    )


def outcomes(
    base_url: str, requests: Sequence[dict[str, Any]], *, at_once: int
) -> list[tuple[Any, ...]]:
    """Send the requests ``at_once`` at a time and return what came back, log-probabilities too."""
    found = []
    for start in range(0, len(requests), at_once):
        for reply in generate(base_url, requests[start : start + at_once]):
            found.append((*outcome(reply), reply["meta_info"]["output_top_logprobs"]))
    return found
