"""How much of a prompt is kept, and from which length on; imports nothing."""

KEEP = 0.1  # share of the prompt's tokens
MIN_TOKENS = 1024  # shorter prompts are read in full
