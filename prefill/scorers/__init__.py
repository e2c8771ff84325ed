"""What gives each token of a prompt a score: attention, words, trained heads."""
