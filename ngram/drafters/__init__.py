"""All other n-gram drafters, by the name that --drafter gives: llama-server's, vLLM's, suffix."""
