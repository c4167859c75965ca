"""SGLang's entry point. SGLang logs and swallows what is raised here, so there is little of it;
``sglang-tetris doctor`` calls it without the net."""

from __future__ import annotations


def register() -> None:
    """Teach this process about TETRIS; SGLang calls it in every process it starts."""
    from sglang_tetris.engine.compat import check_version
    from sglang_tetris.engine.registration import register_all

    check_version()
    register_all()
