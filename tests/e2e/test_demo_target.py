"""The demo target as its users see it: fetched, converted, and answering."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_tetris.models.demo_target import demo_target, verify

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the demo target from nothing, in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_TETRIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        directory = demo_target()
        verify()
    return directory


def test_it_answers_a_question(target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )

    with torch.inference_mode():
        answer = model.generate(**prompt, max_new_tokens=32, do_sample=False)[0]

    assert tokenizer.decode(answer).endswith("The capital of France is Paris.<|im_end|>")


@pytest.mark.parametrize("text", ["In 2024, 3.14 apples", "naïve café\n\n  東京 🙂", "don't\tx  y"])
def test_text_survives_the_tokenizer_and_digits_stay_single(target: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)

    token_ids = tokenizer.encode(text)

    assert tokenizer.decode(token_ids) == text
    assert not any(
        len(token) > 1 and any(letter.isdigit() for letter in token)
        for token in tokenizer.convert_ids_to_tokens(token_ids)
    )
