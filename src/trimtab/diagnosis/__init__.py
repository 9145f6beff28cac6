"""Measured heterogeneity, what theory predicts from it, and advice."""

from trimtab.diagnosis.diagnose import diagnose, diagnosing
from trimtab.diagnosis.diagnosis import Diagnosis

__all__ = ["Diagnosis", "diagnose", "diagnosing"]
