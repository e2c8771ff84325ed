"""Drafting as llama.cpp's lookup tools do it: the drafter, and the replay of a text with it."""
