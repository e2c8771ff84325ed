"""The model: its weights, its KV cache and its forward pass."""
