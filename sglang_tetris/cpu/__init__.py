"""The operators that SGLang's CPU engine imports from ``sgl_kernel``, on any CPU."""
