"""GGUF files: their metadata and tensors, read with every length checked; what a file is."""
