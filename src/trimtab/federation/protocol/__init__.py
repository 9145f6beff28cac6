"""The commit protocol: the coordinator, which states it, and a site, which keeps it.

Imports storage and message; it knows no transport.
"""
