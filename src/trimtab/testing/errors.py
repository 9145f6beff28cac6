"""How a broken rule is said: one sentence, what, where, and what to do."""

from typing import Any


class ContractError(AssertionError):
    """An algorithm breaks the contract; the sentence says what, where, and what to do."""


def require(holds: bool, algorithm: Any, what: str, advice: str) -> None:
    """Raise ContractError with what is wrong and what to do about it, unless the rule holds."""
    if not holds:
        name = getattr(algorithm, "__name__", type(algorithm).__name__)
        raise ContractError(f"{name}: {what}; {advice}.")


def first_line(error: Exception) -> str:
    """Return what an error says, as part of a sentence."""
    return str(error).partition("\n")[0].rstrip(".")
