"""Logs of many forms to conversations that a replay can go through."""
