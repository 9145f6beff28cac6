"""Flower as the transport, behind a TLS front of our own."""
