"""Models that the CPU engine runs in one compiled call; SGLang's own serve where they cannot."""
