"""Colours that can be seen: an algorithm has one everywhere, made darker or lighter where needed.

No colour carries meaning alone: lines have dashes and labels, marks have shapes and titles.
"""

LEAST = 3.2  # contrast of a line with a white page >= 3.2; WCAG 2.2 asks for 3
DARK = 4.5  # thin lines glare less on a dark page, and need >= 4.5
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2")


def readable(colour: str, background: str, least: float = LEAST) -> str:
    """Return the colour, moved towards black or white until it stands out from the background.

    >>> readable("#edae49", "#ffffff"), readable("#00798c", "#ffffff")
    ('#b48437', '#00798c')
    """
    towards = 0.0 if luminance(background) > 0.5 else 255.0
    parts = _parts(colour)
    for step in range(51):
        moved = "#" + "".join(f"{round(p + (towards - p) * step / 50):02x}" for p in parts)
        if contrast(moved, background) >= least:
            return moved
    return moved


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21, as WCAG defines it.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return round((light + 0.05) / (dark + 0.05), 2)


def luminance(colour: str) -> float:
    """Return how bright a colour is, 0 to 1."""
    sRGB = [part / 255 for part in _parts(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in sRGB]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _parts(colour: str) -> list[int]:
    return [int(colour[j : j + 2], 16) for j in (1, 3, 5)]
