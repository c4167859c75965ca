"""What a user can act on, and the exit code that goes with it.

    TetrisError                  1: our fault
    └── UserError                2: the user's to fix
        ├── ConfigError          a setting: its name, what was given, what is allowed
        ├── UnsupportedError     an SGLang option that TETRIS refuses
        ├── EngineMismatchError  an SGLang we were not built for
        └── ModelError           a model that is missing, damaged or does not fit

Each message is one line that names the knob. What only we can break is an ``assert``.
"""

from __future__ import annotations


class TetrisError(Exception):
    """Base of every error that the command line shows without a traceback."""

    exit_code = 1


class UserError(TetrisError):
    """Something that the user can change."""

    exit_code = 2


class ConfigError(UserError):
    """A setting is unknown, malformed or out of range."""


class UnsupportedError(UserError):
    """SGLang was asked for something that does not go together with TETRIS."""


class EngineMismatchError(UserError):
    """The installed SGLang is not the version that this package was built for."""


class ModelError(UserError):
    """A model is missing, damaged, cannot be fetched or does not fit its partner."""
