"""Faults injected into a real broker, a real gateway and their connections, and what must hold nevertheless.

A seed determines everything: clients, messages, faults and their moments (``schedule``). Clients record what they send
and see (``recording``), and the checks (``checks``) read nothing but the recording.
"""
