"""What n-gram drafting, multi-token prediction and speculative prefill share."""
