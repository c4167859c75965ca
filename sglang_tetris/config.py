"""Every setting of TETRIS: read once, checked, frozen.

The field's name is the flag (``--tetris-draft-tokens``), the key of the JSON file and, in
upper case, the suffix of the environment variable (``SGLANG_TETRIS_DRAFT_TOKENS``). A flag
goes before the file, the file before the environment, and each default is written here only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from sglang_tetris.endpoints import check_endpoint, check_unused
from sglang_tetris.errors import ConfigError

ENV_PREFIX = "SGLANG_TETRIS_"
CONFIG_FILE = "config_file"  # names the JSON file: a flag or a variable, never a key of the file
CONTROL_TOKEN = "SGLANG_TETRIS_CONTROL_TOKEN"  # a secret: in the environment only
# Variables with our prefix that are not settings of the algorithm.
OTHER_VARIABLES = frozenset({"SGLANG_TETRIS_CACHE", CONTROL_TOKEN})
# What --tetris-control changes while the server runs; the rest sizes it.
SWITCHABLE = ("policy", "tokens_per_request", "capacity", "draft_tokens")


class TetrisConfig(BaseModel):
    """The settings of one server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: Literal["auto", "lm", "lookup"] = Field(
        default="auto",
        description="what drafts: 'lm' (a small model, --speculative-draft-model-path), 'lookup' "
        "(the request's own text, no model), 'auto': lm when a draft model is given, else lookup",
    )
    policy: Literal["per_request", "fixed"] = Field(
        default="per_request",
        description="rule for the draft tokens verified per step over the whole batch: "
        "'per_request' (--tetris-tokens-per-request times the requests, as published) "
        "or 'fixed' (--tetris-capacity)",
    )
    tokens_per_request: int = Field(
        default=2, ge=0, description="capacity per running request under policy 'per_request'"
    )
    capacity: int = Field(
        default=16, ge=0, description="draft tokens verified per step under policy 'fixed'"
    )
    draft_tokens: int = Field(
        default=4,
        ge=1,
        # Up to here a request near the context limit fits its row of SGLang's slot table, which
        # has room for draft_tokens + 5 tokens more and is asked for 2 * (draft_tokens + 1) beyond
        # context_len - 4 (mem_cache/allocation_sizing.py).
        le=7,
        description="tokens drafted per request and step; more than are verified",
    )
    step_log: Path | None = Field(
        default=None,
        description="append the counts of every step to this file, one JSON line a step",
    )

    step_stream: str | None = Field(
        default=None,
        description="publish the counts of every step here: tcp://127.0.0.1:PORT or ipc:///PATH",
    )
    trace: Path | None = Field(
        default=None,
        description="write the scores and the outcome of every step to this file, for replay; "
        "no tokens",
    )
    control: str | None = Field(
        default=None,
        description="accept new settings while serving here: tcp://127.0.0.1:PORT or "
        f"ipc:///PATH; requests carry the secret in {CONTROL_TOKEN}",
    )

    @field_validator("step_stream", "control")
    @classmethod
    def _stays_on_this_machine(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            check_endpoint(endpoint)
            check_unused(endpoint)
        return endpoint

    @field_validator("step_log", "trace")
    @classmethod
    def _can_be_created(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                path.open("a").close()
            except OSError as error:
                raise ValueError(f"cannot be written: {error.strerror}") from None
        return path

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> TetrisConfig:
        unread = "capacity" if self.policy == "per_request" else "tokens_per_request"
        if unread in self.model_fields_set:
            raise ValueError(
                f"{flag_of(unread)} is not read under --tetris-policy {self.policy}; "
                "leave it out or change the policy"
            )
        return self

    @model_validator(mode="after")
    def _endpoints_differ(self) -> TetrisConfig:
        if self.control is not None and self.control == self.step_stream:
            raise ValueError(
                f"--tetris-control and --tetris-step-stream are both {self.control}; "
                "they need endpoints of their own"
            )
        return self

    @model_validator(mode="after")
    def _drafts_fill_the_capacity(self) -> TetrisConfig:
        if self.policy == "per_request" and self.tokens_per_request > self.draft_tokens:
            raise ValueError(
                f"--tetris-tokens-per-request is {self.tokens_per_request}, more than the "
                f"{self.draft_tokens} of --tetris-draft-tokens; raise the latter or lower the former"
            )
        return self


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> TetrisConfig:
    """Return the settings of this run; raise ``ConfigError`` in one line.

    ``flags`` holds the flags that were given, by field name, with ``config_file`` among them.
    """
    known = {ENV_PREFIX + name.upper(): name for name in (*TetrisConfig.model_fields, CONFIG_FILE)}
    named = {name for name in environ if name.startswith(ENV_PREFIX)}
    if unknown := sorted(named - known.keys() - OTHER_VARIABLES):
        raise ConfigError(f"unknown environment variable {unknown[0]}; known: {_listed(known)}")

    variables = {known[name]: environ[name] for name in named & known.keys()}
    path_in_variable = variables.pop(CONFIG_FILE, None)
    path = flags.get(CONFIG_FILE) or path_in_variable
    flags = {name: value for name, value in flags.items() if name != CONFIG_FILE}
    in_file = _read_file(Path(path)) if path else {}

    try:
        config = TetrisConfig.model_validate({**variables, **in_file, **flags})
    except ValidationError as error:
        origins = [
            (flags, flag_of),
            (in_file, lambda name: f"{path}: {name}"),
            (variables, _variable),
        ]
        raise ConfigError(_one_line(error, origins)) from None
    if config.control is not None and not environ.get(CONTROL_TOKEN):
        raise ConfigError(
            f"--tetris-control {config.control} needs a secret that its clients know: "
            f"set {CONTROL_TOKEN} in the environment"
        )
    return config


def switched(config: TetrisConfig, wanted: Mapping[str, Any]) -> TetrisConfig:
    """Return the settings of a running server after a switch; raise ``ConfigError`` in one line.

    ``wanted`` says all that is to hold: what it leaves out of ``SWITCHABLE`` has its default,
    except ``draft_tokens``: that many which the server was started with, the most it has room for.
    """
    if unknown := sorted(wanted.keys() - set(SWITCHABLE)):
        raise ConfigError(
            f"{unknown[0]!r} cannot be changed while serving; {_listed(SWITCHABLE)} can"
        )
    for name, value in wanted.items():
        if isinstance(value, (bool, float)):
            raise ConfigError(f"{name} is {value}; settings are whole numbers and text")
    try:
        policy = TetrisConfig.model_validate({"draft_tokens": config.draft_tokens, **wanted})
    except ValidationError as error:
        raise ConfigError(_one_line(error, [(wanted, str)])) from None
    if policy.draft_tokens > config.draft_tokens:
        raise ConfigError(
            f"draft_tokens is {policy.draft_tokens}; this server was started with "
            f"--tetris-draft-tokens {config.draft_tokens}, the most it has room for"
        )
    return config.model_copy(update={name: getattr(policy, name) for name in SWITCHABLE})


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--tetris-config-file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--tetris-config-file {path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--tetris-config-file {path}: must hold one JSON object of settings")
    if unknown := sorted(content.keys() - TetrisConfig.model_fields.keys()):
        raise ConfigError(
            f"--tetris-config-file {path}: unknown setting {unknown[0]!r}; "
            f"known: {_listed(TetrisConfig.model_fields)}"
        )
    for name, value in content.items():
        if isinstance(value, (bool, float)):
            raise ConfigError(
                f"--tetris-config-file {path}: {name} is {json.dumps(value)}; "
                "settings are whole numbers and text"
            )
    return content


def _one_line(error: ValidationError, origins: list[Any]) -> str:
    """Say which setting, as its owner wrote it, what was given and what is allowed."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = str(first["loc"][0])
    written = next(spell(name) for given, spell in origins if name in given)
    return f"{written} {first['input']!r}: {message[0].lower()}{message[1:]}"


def flag_of(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--tetris-" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
