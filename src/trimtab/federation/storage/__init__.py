"""What server and sites write, so that a crash loses nothing: ledger, states, roster, keys.

Imports message and events. What `federate status` reads (summary, journal, roster, keys)
needs no torch.
"""
