"""What server and sites write, so that a crash loses nothing: ledger, states, roster, keys.

Imports message, events and encoding. What `federate status` reads (summary, journal, roster, keys)
needs no torch.
"""
