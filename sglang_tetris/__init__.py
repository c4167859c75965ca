"""TETRIS: batch-wide selection of draft tokens for speculative decoding in SGLang."""

__version__ = "0.1.0"
