"""The command line: the only place for typer and rich."""
