"""Flower as the transport, behind a TLS front of our own.

Imports protocol, storage, message and events; the only room that knows Flower's interfaces.
"""
