"""N-gram caches and drafting: corpus, counts, cache file, drafter, replay."""
