"""Karimireddy et al., 2020: SCAFFOLD's tables, figures and theorems, and the slides on it."""
