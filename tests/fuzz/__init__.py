"""Fuzzing of everything that reads bytes of others: what no input may do, and two engines that look for one that does.

``targets`` is what an input is run through; ``python -m tests.fuzz --help`` runs the engines, or replays a file.
"""
