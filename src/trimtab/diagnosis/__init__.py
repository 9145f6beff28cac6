"""`diagnose`: measured heterogeneity, what theory predicts from it, and advice.

diagnose.py runs the stages in order, stages.py holds them, diagnosis.py is what they find.
It may import studies and what stands below it, and algorithms; report, reproduce and cli import it.
"""

from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.diagnosis import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
