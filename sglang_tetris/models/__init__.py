"""Where the models of the demo come from."""
