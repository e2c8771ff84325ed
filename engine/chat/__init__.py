"""Conversations: messages in one form, and the chat template that makes a prompt of them."""
