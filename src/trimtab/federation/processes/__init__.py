"""Processes that are kept alive: the operator's, the rounds, a site's and its worker.

Imports all else of the federation; nothing but the command line imports it.
"""
