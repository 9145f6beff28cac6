"""Names of PyTorch's functions and of tensors' methods, by what they do to a vector."""

_FUNCTIONS = """
    add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow neg abs
    sign sqrt rsqrt square reciprocal exp expm1 log log1p sin cos tanh sigmoid relu erf floor ceil
    round trunc clamp clamp_min clamp_max clip maximum minimum where lerp addcmul addcdiv
    lt le gt ge eq ne logical_and logical_or logical_not isfinite isnan nan_to_num
    zeros_like ones_like full_like clone detach contiguous float double copy zero fill
"""
_OPERATORS = """
    __abs__ __pos__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__ __rtruediv__ __pow__ __rpow__
    __floordiv__ __rfloordiv__ __mod__ __rmod__ __invert__ __and__ __rand__ __or__ __ror__
    __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__
"""
_OPERATORS_IN_PLACE = """
    __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__
    __ixor__ __ilshift__ __irshift__
"""
_OF_THE_WHOLE = """
    __bool__ __float__ __int__ __complex__ __index__ __len__ __iter__ __reversed__ __getitem__
    __contains__ __matmul__ __rmatmul__ __format__
"""
_SHARING = "data grad numpy untyped_storage storage data_ptr set_ __array__ __dlpack__"

SPECIAL_METHODS = (*_OPERATORS.split(), *_OF_THE_WHOLE.split())
"""What Python looks up in the class itself, but for addition, multiplication and changes."""

SPECIAL_METHODS_IN_PLACE = tuple(_OPERATORS_IN_PLACE.split())
"""The operators that change their first operand."""

SHARES_MEMORY = frozenset(_SHARING.split())
"""Through what these return, a tensor can be changed in place unnoticed."""

_CHANGING = {*SPECIAL_METHODS_IN_PLACE, "__setitem__"}
_ALIKE = {*_FUNCTIONS.split(), *_OPERATORS.split(), *SPECIAL_METHODS_IN_PLACE}
_ALIKE |= {"__rsub__", "__rdiv__"}


def changes_in_place(name: str) -> bool:
    """Tell whether a function of this name changes its first argument.

    >>> changes_in_place("add_"), changes_in_place("__iadd__"), changes_in_place("__add__")
    (True, True, False)
    """
    return name in _CHANGING or (name.endswith("_") and not name.endswith("__"))


def treats_numbers_alike(name: str) -> bool:
    """Tell whether each number of a result depends on the numbers in the same place alone.

    >>> treats_numbers_alike("sqrt_"), treats_numbers_alike("norm")
    (True, False)
    """
    plain = name if name.endswith("__") else name.removesuffix("_")
    return plain in _ALIKE
