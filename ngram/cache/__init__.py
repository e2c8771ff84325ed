"""The n-gram cache: counting, its tables, its file formats, merging."""
