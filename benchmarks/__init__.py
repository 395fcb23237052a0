"""Measurements that the README and the paper's tables are made of: ``make bench``."""
