"""The loop that generates: sampling, drafts and their verification, pacing."""
