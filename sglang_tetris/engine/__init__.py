"""The adapters between the method and SGLang: the only decoding code that knows the engine."""
