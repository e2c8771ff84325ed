"""Needles in haystacks: prompts whose answer is known, for measuring quality."""
