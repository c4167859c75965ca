"""An argument parser for commands of our own."""

from __future__ import annotations

import argparse
from typing import NoReturn

from sglang_tetris.errors import ConfigError


class OneLineParser(argparse.ArgumentParser):
    """Raises a user's mistake instead of printing the usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")
