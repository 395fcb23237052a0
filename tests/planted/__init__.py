"""Bugs that are planted in the trainer, for the audit to find."""
