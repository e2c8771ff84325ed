"""Text to token ids and back, as llama.cpp does it; what ends a text."""
