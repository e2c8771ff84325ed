"""Files to documents: found, decompressed, decoded, and tokenised."""
