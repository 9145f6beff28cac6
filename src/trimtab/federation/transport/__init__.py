"""What carries messages between server and sites.

Imports protocol, storage and message.
"""
