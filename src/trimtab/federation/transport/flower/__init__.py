"""Flower as the transport: its SuperLink behind a guard, and a line of each site to it.

Imports protocol, storage, message and events; the only room that knows Flower's interfaces.
"""
