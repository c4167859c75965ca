"""Models that tests make from the demo target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from sglang_tetris.models.cache import MANIFEST, cache_dir, ensure, sha256
from sglang_tetris.models.demo_target import demo_target

_UNCHANGED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


def truncated_target(num_layers: int) -> Path:
    """Return the demo target with its first layers only: a draft that is cheap and often wrong."""
    target = demo_target()

    def build(directory: Path) -> None:
        config = json.loads((target / "config.json").read_text())
        assert 1 <= num_layers <= config["num_hidden_layers"]
        config["num_hidden_layers"] = num_layers
        (directory / "config.json").write_text(json.dumps(config, indent=2))
        weights = {
            name: weight
            for name, weight in load_file(target / "model.safetensors").items()
            if _layer(name) < num_layers
        }
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        for name in _UNCHANGED:
            shutil.copyfile(target / name, directory / name)

    return ensure(
        cache_dir() / f"{target.name}-first-{num_layers}-layers",
        f"truncated from {sha256(target / MANIFEST)}",
        build=build,
    )


def _layer(name: str) -> int:
    """Return the layer that a weight belongs to, -1 for embedding and final norm."""
    parts = name.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1
