"""Karimireddy et al., 2020: Mime's figure."""
