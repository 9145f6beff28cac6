"""The commit protocol: the coordinator, which states it, and a site, which keeps it.

Imports storage and message. It knows no transport: `ask` is a function that it is given.
"""
