"""Kills steps at every file operation and at random moments, runs them again, and compares with uninterrupted runs.

``faults`` kills a process at a point of its work, ``scenes`` are the steps with what they must come to, and
``python -m tests.torture`` does it for some time and prints the counts.
"""
