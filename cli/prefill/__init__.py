"""What the commands of speculative prefill show."""
