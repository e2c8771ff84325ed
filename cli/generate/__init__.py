"""What the commands that generate share: options, session, text, tables."""
