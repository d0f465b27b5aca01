"""The configuration: a YAML file becomes frozen, validated values, or a list of every mistake in it.

Nothing is imported here, so that the session can use `virtual_host` without the loader's file access and TLS.
"""
