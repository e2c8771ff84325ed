"""Which drafter pays: costs of a pass by its size, and the llama-server command line."""
