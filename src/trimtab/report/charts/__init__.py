"""Charts as inline SVG: a function per chart takes numbers and returns an <svg> element.

No chart knows a comparison or a run.
"""
