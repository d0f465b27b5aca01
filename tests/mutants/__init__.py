"""Mutation testing: one small fault at a time is put into the core, and some test must fail.

`make mutants` makes and runs them with mutmut; ``[tool.mutmut]`` in pyproject.toml says where, and by which tests they
are looked for. ``argued.toml`` has those that survive and may.
"""
