"""The command line ``sglang-tetris``: one module per command, and what runs their servers."""
