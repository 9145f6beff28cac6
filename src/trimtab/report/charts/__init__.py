"""Charts as inline SVG, one function a chart, drawn by us: small, printable, readable aloud.

Numbers go in, an <svg> element comes out. Nothing here knows a comparison or a run.
"""
