"""Measured heterogeneity, what theory predicts from it, and advice."""

from trimtab.diagnosis.advice import Diagnosis
from trimtab.diagnosis.diagnose import diagnose, diagnosing

__all__ = ["Diagnosis", "diagnose", "diagnosing"]
