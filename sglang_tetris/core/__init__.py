"""The method as pure functions: tensors and integers in, tensors out; no engine, no settings."""
