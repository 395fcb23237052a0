"""Mutation tests: small changes to the code that privacy rests on, each of which a test or the audit must notice.

``operators`` makes the mutants of a source file, ``targets`` chooses which are run and by which tests, ``workshop``
runs one in a copy of the checkout, ``equivalents`` reads the list of those that change nothing, and ``report`` writes
``docs/mutants.md``. ``make mutants`` does it all.
"""
