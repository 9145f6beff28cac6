"""What server and sites write, so that a crash loses nothing: files, ledger, states, keys.

Imports message and core.
"""
