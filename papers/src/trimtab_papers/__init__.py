"""Tables and figures of the papers, and benchmarks: `trimtab reproduce` and `trimtab bench`.

This module imports nothing, so that the command line finds both commands without loading torch.
"""
