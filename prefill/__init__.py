"""Speculative prefill."""
