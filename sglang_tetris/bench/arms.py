"""What is compared: an arm is a server and, where that can be switched, the settings it runs with.

Arms with equal servers share one process and are switched between segments. ``--arms`` is a short
form of the same objects that ``--arms-file`` holds, so a new arm needs no code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from sglang_tetris.config import SWITCHABLE, TetrisConfig
from sglang_tetris.errors import ConfigError

ALLOWED = (
    "none, [lookup:|lm:]fixed:C, [lookup:|lm:]paper:K+EXTRA, "
    "sglang:ALGORITHM[:KEY=VALUE,...], url:BASE"
)
DRAFT_MODEL = "--draft-model-path"
_READ_BY = {"fixed": "capacity", "per_request": "tokens_per_request"}
_KEY_OF_LAST_ARM = re.compile(r"\w+=")  # continues sglang:ALGORITHM:KEY=VALUE
_TETRIS = re.compile(
    r"(?:(?P<source>lookup|lm):)?"
    r"(?:fixed:(?P<capacity>\d+)|paper:(?P<per_request>\d+)\+(?P<extra>\d+))"
)


class ServerSpec(BaseModel):
    """One server as it is started, or a running one by its address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["plain", "tetris", "sglang", "url"]
    args: tuple[str, ...] = ()  # of `sglang-tetris serve`, besides those that all servers get
    url: str | None = None  # without /v1

    @model_validator(mode="after")
    def _is_one_thing(self) -> ServerSpec:
        if (self.kind == "url") != (self.url is not None):
            raise ValueError("kind 'url' and a url go together")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url {self.url!r}: must start with http:// or https://")
        if self.kind == "url" and self.args:
            raise ValueError("args: a running server takes none")
        return self


class Arm(BaseModel):
    """A named set of server settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    server: ServerSpec
    settings: dict[str, int | str] = {}  # of TETRIS, switched while the server runs

    @model_validator(mode="after")
    def _settings_make_sense(self) -> Arm:
        if self.server.kind != "tetris":
            if self.settings:
                raise ValueError("settings: only a server of kind 'tetris' has them")
            return self
        if unknown := sorted(self.settings.keys() - set(SWITCHABLE)):
            raise ValueError(
                f"settings: {unknown[0]!r} cannot be switched; known: {', '.join(SWITCHABLE)}"
            )
        TetrisConfig.model_validate(self.settings)
        return self

    @property
    def complete_settings(self) -> dict[str, int | str]:
        """The settings with their defaults: what runs must not depend on the arm before."""
        if self.server.kind != "tetris":
            return {}
        config = TetrisConfig.model_validate(self.settings)
        read = ("policy", _READ_BY.get(config.policy), "draft_tokens")
        return {name: getattr(config, name) for name in read if name is not None}

    @property
    def is_fixed(self) -> bool:
        """Whether it is plain speculation of a fixed size: the same capacity in every step, or the
        same for every request because all that is drafted is verified."""
        settings = self.complete_settings
        if not settings:
            return False
        all_verified = settings.get("tokens_per_request") == settings["draft_tokens"]
        return settings["policy"] == "fixed" or all_verified


def parse_arms(text: str, *, draft_model: str | None) -> list[Arm]:
    """Return the arms of ``--arms``; raise ``ConfigError`` for the first that is none."""
    return [_parse_arm(word, draft_model) for word in _split(text)]


def read_arms(path: Path) -> list[Arm]:
    """Return the arms of ``--arms-file``, a JSON list of them."""
    where = f"--arms-file {path}"
    try:
        return TypeAdapter(list[Arm]).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_line(error)}") from None


def check_arms(arms: Sequence[Arm]) -> None:
    """Raise unless there are arms and their names differ."""
    names = [arm.name for arm in arms]
    if not names:
        raise ConfigError(f"--arms: there is none; allowed: {ALLOWED}")
    if doubles := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--arms: {doubles[0]!r} is named twice")


def start_args(spec: ServerSpec, arms: Sequence[Arm]) -> list[str]:
    """Return the flags that start a server on which all of its ``arms`` can run, the first at once.

    It gets the draft tokens of the arm with the most: a switch may only go below them.
    """
    if spec.kind == "plain":
        return ["--no-speculation", *spec.args]
    if spec.kind != "tetris":
        return list(spec.args)
    most = max(int(arm.complete_settings["draft_tokens"]) for arm in arms)
    settings = arms[0].complete_settings | {"draft_tokens": most}
    return [*_flags(settings), *spec.args]


def _flags(settings: dict[str, int | str]) -> Iterator[str]:
    for name, value in settings.items():
        yield "--tetris-" + name.replace("_", "-")
        yield str(value)


def _split(text: str) -> list[str]:
    words: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if words and words[-1].startswith("sglang:") and _KEY_OF_LAST_ARM.match(word):
            words[-1] += "," + word
        else:
            words.append(word)
    return words


def _parse_arm(word: str, draft_model: str | None) -> Arm:
    if word == "none":
        return Arm(name=word, server=ServerSpec(kind="plain"))
    try:
        if word.startswith("url:"):
            url = word.removeprefix("url:").rstrip("/").removesuffix("/v1")
            return Arm(name=word, server=ServerSpec(kind="url", url=url))
        if word.startswith("sglang:"):
            return Arm(name=word, server=_sglang(word, draft_model))
        if match := _TETRIS.fullmatch(word):
            server = _tetris(word, match["source"], draft_model)
            return Arm(name=word, server=server, settings=_settings(match))
    except ValidationError as error:
        raise ConfigError(f"--arms {word}: {_first_line(error)}") from None
    raise ConfigError(f"--arms: unknown arm {word!r}; allowed: {ALLOWED}")


def _settings(match: re.Match[str]) -> dict[str, int | str]:
    if match["capacity"] is not None:
        return {"policy": "fixed", "capacity": int(match["capacity"])}
    per_request = int(match["per_request"])
    return {
        "policy": "per_request",
        "tokens_per_request": per_request,
        "draft_tokens": per_request + int(match["extra"]),
    }


def _tetris(word: str, source: str | None, draft_model: str | None) -> ServerSpec:
    if source == "lm" and draft_model is None:
        raise ConfigError(f"--arms {word}: lm needs a draft model; add {DRAFT_MODEL}")
    source = source or ("lookup" if draft_model is None else "lm")
    args = ["--tetris-sources", source]
    if source == "lm" and draft_model is not None:
        args += ["--speculative-draft-model-path", draft_model]
    return ServerSpec(kind="tetris", args=tuple(args))


def _sglang(word: str, draft_model: str | None) -> ServerSpec:
    _, algorithm, *rest = word.split(":", 2)
    if not algorithm or algorithm.upper() == "TETRIS":
        raise ConfigError(f"--arms {word}: name an algorithm of SGLang's; allowed: {ALLOWED}")
    args = ["--speculative-algorithm", algorithm.upper()]
    keys = []
    for pair in filter(None, rest[0].split(",") if rest else []):
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"--arms {word}: {pair!r} must be KEY=VALUE, as num_steps=3")
        keys.append(key.replace("_", "-"))
        args += [f"--speculative-{keys[-1]}", value]
    if draft_model is not None and algorithm.upper() != "NGRAM" and "draft-model-path" not in keys:
        args += ["--speculative-draft-model-path", draft_model]
    return ServerSpec(kind="sglang", args=tuple(args))


def _first_line(error: ValidationError) -> str:
    """Return where the first mistake is and what it is."""
    first: Any = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
