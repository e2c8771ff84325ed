"""A prompt's parts: what is asked, what has to stay, spans that may be dropped."""
