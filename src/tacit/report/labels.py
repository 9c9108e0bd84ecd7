"""Numbers and sizes in words, the same in tables, sentences and progress lines."""


def size(count: float) -> str:
    """Format a number of bytes with its unit (powers of 1000).

    Example:
        >>> size(999), size(999.6), size(1_500_000)
        ('999 B', '1 kB', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # what would be rounded to 1000 belongs to the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def size_against(count: float, reference: float, name: str) -> str:
    """Format a number of bytes, and its ratio to that of a reference method.

    Example:
        >>> size_against(116e6, 3400e6, "fl-std"), size_against(3e6, 2e6, "fl-std"), size_against(2e6, 2e6, "fl-std")
        ('116 MB (29.3× less than fl-std)', '3 MB (1.5× more than fl-std)', '2 MB (as much as fl-std)')
    """
    low, high = sorted((count, reference))
    if low <= 0:
        return size(count)
    ratio = f"{high / low:.3g}"
    if ratio == "1":
        return f"{size(count)} (as much as {name})"
    return f"{size(count)} ({ratio}× {'less' if count < reference else 'more'} than {name})"


def number(value: float) -> str:
    """Format a number with four significant digits, or without decimals from 1000 on.

    Example:
        >>> number(0.78123), number(209_500.4), number(1e-6), number(380)
        ('0.7812', '209500', '1e-06', '380')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
