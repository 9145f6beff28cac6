"""Numbers as people read them."""


def human(n: float) -> str:
    """Return a number with three digits and the letter of its size.

    >>> human(5200), human(3.4e6), human(12)
    ('5.2 k', '3.4 M', '12 ')
    """
    for letter in ("", "k", "M", "G"):
        if n < 1000:
            return f"{n:.3g} {letter}" if letter else f"{n:.0f} "
        n /= 1000
    return f"{n:.3g} T"


def human_bytes(n: float) -> str:
    """Return a number of bytes in a unit that suits it.

    >>> human_bytes(5200), human_bytes(3.4e6)
    ('5.2 kB', '3.4 MB')
    """
    return f"{human(n)}B"
